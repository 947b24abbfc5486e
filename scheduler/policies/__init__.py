"""The policies that ship, by the names that users write.

>>> parse_policy("hold:500ms").name
'hold:0.5'
"""

import re
from collections.abc import Callable

from ..errors import InvalidSetting
from ..policy import Policy
from .auto import Auto
from .drop import Drop
from .keep import Keep
from .park import Park

__all__ = ["POLICY_NAMES", "Auto", "Drop", "Keep", "Park", "parse_policy"]

_PLAIN: dict[str, Callable[[], Policy]] = {
    "auto": Auto,
    "drop": Drop,
    "keep": Keep,
    "park": Park,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}

POLICY_NAMES = ("auto", "drop", "hold:SECONDS", "keep", "park")


def parse_policy(text: str) -> Policy:
    """Return the policy that *text* names; raise InvalidSetting with what is valid."""
    name, colon, parameter = text.strip().partition(":")
    if name == "hold":
        return Park(hold_s=_parse_duration(text, parameter))
    if name not in _PLAIN:
        valid = ", ".join(POLICY_NAMES)
        raise InvalidSetting(f"unknown policy {text!r}; valid are {valid}")
    if colon:
        raise InvalidSetting(f"policy {name!r} takes no parameter, got {parameter!r}")
    return _PLAIN[name]()


def _parse_duration(text: str, parameter: str) -> float:
    match = _DURATION.fullmatch(parameter)
    if match is None:
        raise InvalidSetting(
            f"policy {text!r} needs a hold time such as hold:2, hold:2s or hold:500ms"
        )
    return float(match[1]) * _UNIT_S[match[2]]
