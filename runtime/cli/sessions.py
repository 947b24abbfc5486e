"""``kvalet sessions``: what is parked in a store; look at it, keep a copy, drop it.

A state's key is TENANT/SESSION, the tenant percent-encoded, or SESSION alone.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
import msgspec
import typer

from ...state_store import (
    Manifest,
    StateCorrupt,
    StateLeased,
    StateStoreError,
    tenant_of,
)
from ...state_store.export import write_state
from ..errors import WrongInput
from .loop import run_to_end
from .parked import (
    Parked,
    Tiers,
    Verdict,
    drop_state,
    fetch_state,
    find_states,
    judge,
    nothing_under,
    opened_tiers,
    parked_states,
)
from .sessions_table import (
    SCHEMA,
    place_of,
    print_details,
    print_states,
    state_details,
    state_row,
)

app = typer.Typer(
    no_args_is_help=True, help="List, inspect, export and drop parked state."
)

Store = Annotated[
    str,
    typer.Option(
        envvar="KVALET_STORE",
        help="Where it is parked: disk:PATH or a Redis URL, several by comma.",
        show_default=False,
    ),
]
Key = Annotated[str, typer.Argument(help="TENANT/SESSION, or SESSION of no tenant.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_command(
    store: Store,
    tenant: Annotated[
        str | None, typer.Option(help="Only what is parked for this tenant.")
    ] = None,
    json: Json = False,
) -> None:
    """List what is parked, by tenant and session."""
    found, unreadable, with_keys = run_to_end(_list(store, tenant))
    if json:
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "sessions": [state_row(parked) for parked in found],
            "unreadable": unreadable,
        }
        typer.echo(msgspec.json.encode(content).decode())
    elif found:
        print_states(found)
    else:
        whose = "" if tenant is None else f" for tenant {tenant!r}"
        keys = " that the keys in KVALET_STORE_KEYS open" if with_keys else ""
        typer.echo(f"Nothing is parked{whose}{keys}.")
    if unreadable:
        _say(
            f"{unreadable} states can't be read; whoever fetches one computes it again"
        )


@app.command()
def inspect(key: Key, store: Store, json: Json = False) -> None:
    """Fetch a state, verify it, and show its manifest; exit 1 if it is wrong."""
    verdicts = run_to_end(_inspect(store, key))
    if json:
        content = {"schema": SCHEMA, "states": [state_details(v) for v in verdicts]}
        typer.echo(msgspec.json.encode(content).decode())
    else:
        for verdict in verdicts:
            print_details(state_details(verdict))
    for verdict in verdicts:
        if verdict.reason:
            raise StateCorrupt(verdict.reason)


@app.command()
def export(
    key: Key,
    file: Annotated[Path, typer.Argument(help="The file to write, or to replace.")],
    store: Store,
) -> None:
    """Verify a state and write it to one file, unencrypted, for its owner only."""
    manifest, length_bytes = run_to_end(_export(store, key, file))
    _say(
        f"{file} has {manifest.token_count:,} tokens in {length_bytes:,} bytes; "
        "it is as secret as the conversation"
    )


@app.command()
def drop(
    store: Store,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="TENANT/SESSION, or SESSION."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Drop all that is parked; needs --yes.")
    ] = False,
    tenant: Annotated[
        str | None, typer.Option(help="With --all: only this tenant's.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, all of it.")] = False,
) -> None:
    """Drop parked states; their sessions compute them again if they go on."""
    if everything == bool(keys):
        raise WrongInput("name the keys to drop, or give --all")
    if tenant is not None and not everything:
        raise WrongInput("--tenant goes with --all; a key names its tenant")
    if everything and not yes:
        raise WrongInput("--all drops every state; say --yes as well")
    run_to_end(_drop(store, keys or [], everything, tenant))


async def _list(store: str, tenant: str | None) -> tuple[list[Parked], int, bool]:
    found: list[Parked] = []
    unreadable = 0
    async with opened_tiers(store, _say) as tiers:
        async for parked in parked_states(tiers, tenant):
            if isinstance(parked, Parked):
                found.append(parked)
            else:
                unreadable += 1
    found.sort(key=lambda parked: place_of(parked.manifest))
    return found, unreadable, bool(tiers.key_id)


async def _inspect(store: str, key: str) -> list[Verdict]:
    async with opened_tiers(store, _say) as tiers:
        return [await judge(parked) for parked in await find_states(tiers, key)]


async def _export(store: str, key: str, file: Path) -> tuple[Manifest, int]:
    async with opened_tiers(store, _say) as tiers:
        state = await fetch_state(tiers, key)
    try:
        length_bytes = await anyio.to_thread.run_sync(write_state, state, file)
    except OSError as error:
        raise WrongInput(f"{file} can't be written: {error.strerror}") from error
    return state.manifest, length_bytes


async def _drop(
    store: str, keys: Sequence[str], everything: bool, tenant: str | None
) -> None:
    """Drop what can be dropped, then say what could not."""
    missing: list[str] = []
    leased: list[StateStoreError] = []
    dropped = 0
    async with opened_tiers(store, _say) as tiers:
        if everything:
            keys = await _all_keys(tiers, tenant)
        for key in dict.fromkeys(keys):
            try:
                found = await drop_state(tiers, key)
            except StateLeased as error:
                leased.append(error)
                continue
            dropped += found
            if not found and not everything:
                missing.append(key)
    _say(f"dropped {dropped} of {len(set(keys))} states")
    if leased:
        raise leased[0]
    if missing:
        raise nothing_under(missing)


async def _all_keys(tiers: Tiers, tenant: str | None) -> list[str]:
    keys: list[str] = []
    for _, store in tiers.stores:
        async for key in store.keys():
            if tenant is None or tenant_of(key) == tenant:
                keys.append(key)
    return keys


def _say(sentence: str) -> None:
    print(f"kvalet: {sentence}", file=sys.stderr)
