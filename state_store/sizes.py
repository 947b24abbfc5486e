"""Sizes and times as people write them.

>>> parse_size("512MiB"), parse_size("1.5 gb"), parse_size("80")
(536870912, 1500000000, 80)
>>> parse_seconds("90"), parse_seconds("24h"), parse_seconds("500ms")
(90.0, 86400.0, 0.5)
"""

import re
from collections.abc import Mapping
from typing import Final

from .errors import StoreUnusable

_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS: Final = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?([a-z]*)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that *text* says, at least one; raise StoreUnusable."""
    size_bytes = int(_parse(text, _BYTES) or 0)
    if not size_bytes:
        raise StoreUnusable(f"{text!r} is no size such as 512MiB or 10GB")
    return size_bytes


def parse_seconds(text: str) -> float:
    """Return the seconds that *text* says, more than 0; raise StoreUnusable."""
    time_s = _parse(text, _SECONDS)
    if not time_s:
        raise StoreUnusable(f"{text!r} is no time such as 30s or 24h")
    return time_s


def _parse(text: str, units: Mapping[str, float]) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    return float(match[1]) * units[match[2].lower()]
