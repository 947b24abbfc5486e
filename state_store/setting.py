"""Where state is parked, as a user writes it: one store, or several by comma.

    memory:1GiB,redis://cache.example:6379?ttl=12h&write=through

``memory`` is this process's, ``disk:PATH`` a folder's, a URL that of a Redis or Valkey.
Several are tiers, the fastest first. Options stand behind a question mark; ours are
taken out of a Redis URL, what is left is Redis's.

    >>> read_setting("memory:64MiB").tiers
    (MemoryTier(budget_bytes=67108864, tenant_budget_bytes=None),)
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypedDict
from urllib.parse import unquote

from .disk import MINIMUM_BUDGET_BYTES
from .errors import StoreUnusable
from .sizes import parse_seconds, parse_size

REDIS_SCHEMES: Final = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
STORES: Final = f"memory, memory:SIZE, disk:PATH, {'://…, '.join(REDIS_SCHEMES)}://…"
"""What there is, for people."""
REDIS_OPTIONS: Final = ("ttl", "lease", "prefix", "connections", "timeout")
"""Those in a Redis URL that are ours."""

_BUDGETS: Final = ("budget", "tenant_budget")
_WRITE: Final = "write"
_NAME: Final = re.compile(r"[a-z_]{1,32}")
# Hosts of a Redis URL are separated by commas too: a tier begins with its kind.
_BETWEEN: Final = re.compile(r",\s*(?=[a-z][a-z0-9+.-]*://|(?:memory|disk)(?:[:?,]|$))")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTier:
    """Host memory up to a budget, overall and for each tenant; None is no limit."""

    budget_bytes: int | None
    tenant_budget_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTier:
    """A folder up to a budget, overall and for each tenant; None is no limit."""

    folder: Path
    budget_bytes: int | None
    tenant_budget_bytes: int | None


class RedisOptions(TypedDict, total=False):
    """What was said of how a Redis is used; arguments of ``RedisStore.open``."""

    ttl_s: float
    lease_s: float
    prefix: str
    connections: int
    command_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTier:
    """A Redis by its URL, which may hold a password."""

    url: str = field(repr=False)
    options: RedisOptions


Tier = MemoryTier | DiskTier | RedisTier


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSetting:
    """The tiers, fastest first, and whether a park waits for the last of them."""

    tiers: tuple[Tier, ...]
    write_through: bool = False


def read_setting(text: str) -> StoreSetting:
    """Return what *text* says; raise StoreUnusable, with no password in the sentence.

    It says which stores or options there are where one is unknown.
    """
    parts = [_Part.of(part) for part in _BETWEEN.split(text.strip())]
    write = parts[-1].options.pop(_WRITE, None)
    if write is not None and len(parts) == 1:
        raise StoreUnusable("?write= goes with several stores, as memory,redis://… is")
    if write not in (None, "behind", "through"):
        raise StoreUnusable(f"?write= is behind or through, not {write!r}")
    tiers = tuple(_tier(part) for part in parts)
    if any(isinstance(tier, MemoryTier) for tier in tiers[1:]):
        raise StoreUnusable("memory can only be the first of several stores")
    return StoreSetting(tiers=tiers, write_through=write == "through")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A tier's text: its kind, what is behind the colon, options, others' options."""

    kind: str
    place: str
    options: dict[str, str]
    query: str

    @classmethod
    def of(cls, text: str) -> "_Part":
        head, _, query = text.partition("?")
        kind, _, place = head.partition(":")
        options: dict[str, str] = {}
        others: list[str] = []
        for option in filter(None, query.split("&")):
            name, _, value = option.partition("=")
            if not _NAME.fullmatch(name):  # which may be the rest of a password
                raise StoreUnusable(
                    f"an option of the {kind[:20]} store is no NAME=VALUE; a ? in a "
                    "password is written %3F"
                )
            if kind in REDIS_SCHEMES and name not in (*REDIS_OPTIONS, _WRITE):
                others.append(option)
                continue
            if name in options:
                raise StoreUnusable(f"the store has ?{name}= twice")
            options[name] = unquote(value)
        return cls(kind=kind, place=place, options=options, query="&".join(others))


def _tier(part: _Part) -> Tier:
    match part.kind:
        case "memory":
            return _memory(part)
        case "disk":
            return _disk(part)
        case kind if kind in REDIS_SCHEMES and part.place.startswith("//"):
            return _redis(part)
        case _:
            # Only its kind is repeated: behind it there may be a password.
            raise StoreUnusable(
                f"there is no store {part.kind[:20]!r}; valid are {STORES}"
            )


def _memory(part: _Part) -> MemoryTier:
    options = dict(part.options)
    if part.place:
        if "budget" in options:
            raise StoreUnusable("the memory store has its budget twice")
        options["budget"] = part.place
    _check_names(part.kind, options, _BUDGETS)
    return MemoryTier(
        budget_bytes=_budget(options, "budget"),
        tenant_budget_bytes=_budget(options, "tenant_budget"),
    )


def _disk(part: _Part) -> DiskTier:
    if not part.place:
        raise StoreUnusable("a disk store names its folder: disk:PATH")
    _check_names(part.kind, part.options, _BUDGETS)
    return DiskTier(
        folder=_folder(part.place),
        budget_bytes=_budget(part.options, "budget"),
        tenant_budget_bytes=_budget(part.options, "tenant_budget"),
    )


def _folder(text: str) -> Path:
    """Return the path; a shell leaves a ~ alone that isn't at the beginning."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise StoreUnusable(f"no user has the folder {text!r}") from None


def _redis(part: _Part) -> RedisTier:
    options = RedisOptions()
    for name, value in part.options.items():
        match name:
            case "ttl":
                options["ttl_s"] = parse_seconds(value)
            case "lease":
                options["lease_s"] = parse_seconds(value)
            case "timeout":
                options["command_timeout_s"] = parse_seconds(value)
            case "connections":
                options["connections"] = _count(name, value)
            case "prefix":
                options["prefix"] = value
            case _:
                raise StoreUnusable("?write= belongs to the last of several stores")
    query = f"?{part.query}" if part.query else ""
    return RedisTier(url=f"{part.kind}:{part.place}{query}", options=options)


def _check_names(kind: str, options: dict[str, str], valid: tuple[str, ...]) -> None:
    for name in options:
        if name == _WRITE:
            raise StoreUnusable("?write= belongs to the last of several stores")
        if name not in valid:
            raise StoreUnusable(
                f"a {kind} store has no option {name!r}; valid are {', '.join(valid)}"
            )


def _budget(options: dict[str, str], name: str) -> int | None:
    if name not in options:
        return None
    size_bytes = parse_size(options[name])
    if size_bytes < MINIMUM_BUDGET_BYTES:
        raise StoreUnusable(
            f"a {name} of {options[name]} holds no state; give at least "
            f"{MINIMUM_BUDGET_BYTES // 2**20} MiB"
        )
    return size_bytes


def _count(name: str, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,2}", text):
        raise StoreUnusable(f"?{name}= is a number from 1 to 999, not {text!r}")
    return int(text)
