"""Parked states as people read them, and as JSON."""

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...state_store import Manifest, session_of, tenant_of
from .parked import Parked, Verdict

SCHEMA: Final = "kvalet.sessions/1"

# Enough of a digest to tell models apart.
_SHORT: Final = 12
# What stands in a pipe is not cut to a terminal's width.
_PIPE_COLUMNS: Final = 240


def state_row(parked: Parked) -> dict[str, Any]:
    """Return what a list says of a state."""
    manifest = parked.manifest
    tenant, session = place_of(manifest)
    return {
        "key": manifest.key,
        "tenant": tenant,
        "session": session,
        "store": parked.tier,
        "tokens": manifest.token_count,
        "stored_bytes": manifest.length_bytes,
        "kv_bytes": manifest.kv_bytes,
        "segments": len(manifest.segments),
        "model": manifest.model,
    }


def state_details(verdict: Verdict) -> dict[str, Any]:
    """Return all that there is to say of a state that was looked at."""
    manifest = verdict.parked.manifest
    return {
        **state_row(verdict.parked),
        "engine": manifest.engine,
        "layout": manifest.layout,
        "token_hash": manifest.token_hash,
        "verified": not verdict.reason,
        "reason": verdict.reason,
        "removed": verdict.removed,
    }


def place_of(manifest: Manifest) -> tuple[str, str]:
    """Return a state's tenant and session."""
    return tenant_of(manifest.key), session_of(manifest.key)


def print_states(found: Sequence[Parked]) -> None:
    """Print a table; which store has a state only where there are several."""
    several = len({parked.tier for parked in found}) > 1
    table = Table(box=None, pad_edge=False)
    for name in ("tenant", "session"):
        table.add_column(name, overflow="fold")
    for name in ("tokens", "MB", "segments"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("model", no_wrap=True)
    if several:
        table.add_column("store", no_wrap=True)
    for parked in found:
        manifest = parked.manifest
        cells = [
            *place_of(manifest),
            f"{manifest.token_count:,}",
            f"{manifest.length_bytes / 1e6:,.1f}",
            f"{len(manifest.segments):,}",
            manifest.model[:_SHORT],
            *([parked.tier] if several else []),
        ]
        table.add_row(*(_shown(cell) for cell in cells))
    _console().print(table)


def print_details(details: dict[str, Any]) -> None:
    """Print a line for each that is not empty."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in details.items():
        match value:
            case True:
                text = "yes"
            case False:
                text = "no" if name == "verified" else ""
            case int():
                text = f"{value:,}"
            case _:
                text = str(value)
        if text:
            table.add_row(name.replace("_", " "), _shown(text))
    _console().print(table)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


def _shown(text: str) -> Text:
    """Return *text*, which may come from anybody, without what steers a terminal."""
    return Text(
        "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    )
