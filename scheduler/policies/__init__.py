"""The policies that ship, by the names that users write.

>>> parse_policy("hold:500ms").name
'hold:0.5'
>>> parse_policy("continuum:released:tier").name
'continuum:released:tier'
"""

import re
from collections.abc import Callable

from ..errors import InvalidSetting
from ..policy import Policy
from .auto import Auto
from .continuum import Continuum
from .drop import Drop
from .infercept import InferCept
from .keep import Keep
from .oracle import Oracle
from .park import Park
from .progress_ttl import ProgressTtl
from .thunder import Thunder
from .unlimited import Unlimited

__all__ = [
    "POLICY_NAMES",
    "Auto",
    "Continuum",
    "Drop",
    "InferCept",
    "Keep",
    "Oracle",
    "Park",
    "ProgressTtl",
    "Thunder",
    "Unlimited",
    "parse_policy",
]

_PLAIN: dict[str, Callable[[], Policy]] = {
    "auto": Auto,
    "drop": Drop,
    "infercept": InferCept,
    "keep": Keep,
    "oracle": Oracle,
    "park": Park,
    "unlimited": Unlimited,
}
# A policy that takes flags, and which ones, as its keyword arguments.
_FLAGGED: dict[str, tuple[Callable[..., Policy], tuple[str, ...]]] = {
    "continuum": (Continuum, ("released", "tier")),
    "progress-ttl": (ProgressTtl, ("tier",)),
    "thunder": (Thunder, ("tier",)),
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}

POLICY_NAMES = (
    "auto",
    "continuum[:released][:tier]",
    "drop",
    "hold:SECONDS",
    "infercept",
    "keep",
    "oracle",
    "park",
    "progress-ttl[:tier]",
    "thunder[:tier]",
    "unlimited",
)


def parse_policy(text: str) -> Policy:
    """Return the policy that *text* names; raise InvalidSetting with what is valid."""
    name, colon, parameter = text.strip().partition(":")
    if name == "hold":
        return Park(hold_s=_parse_duration(text, parameter))
    if name in _FLAGGED:
        return _parse_flags(name, parameter.split(":") if colon else [])
    if name not in _PLAIN:
        valid = ", ".join(POLICY_NAMES)
        raise InvalidSetting(f"unknown policy {text!r}; valid are {valid}")
    if colon:
        raise InvalidSetting(f"policy {name!r} takes no parameter, got {parameter!r}")
    return _PLAIN[name]()


def _parse_flags(name: str, given: list[str]) -> Policy:
    make, valid = _FLAGGED[name]
    for flag in given:
        if flag not in valid:
            raise InvalidSetting(
                f"policy {name!r} takes {' and '.join(valid)}, got {flag!r}"
            )
    return make(**{flag: flag in given for flag in valid})


def _parse_duration(text: str, parameter: str) -> float:
    match = _DURATION.fullmatch(parameter)
    if match is None:
        raise InvalidSetting(
            f"policy {text!r} needs a hold time such as hold:2, hold:2s or hold:500ms"
        )
    return float(match[1]) * _UNIT_S[match[2]]
