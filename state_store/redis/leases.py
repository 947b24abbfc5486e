"""Who owns a session: a lease that the server keeps by its own clock.

Whoever parks or fetches a session holds its lease from then on, and has it renewed,
until the state is dropped, the store closed, or another owner found to have it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..codec import decode_manifest
from ..errors import StateCorrupt, StateLeased, StateMissing
from ..keys import tenant_of
from ..sealing import Sealer
from ..state import Manifest
from .faults import ServerReply
from .held import Held, HeldSessions
from .layout import Layout, SessionKeys
from .scripts import ACQUIRE, LET_GO, RENEW
from .server import Call, Server

_SHORT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Who we are, how long a lease of ours lasts and how long a state is kept."""

    owner_id: str
    lease_ms: int
    ttl_ms: int


class Leases:
    """Takes, renews and gives back leases; ``lost`` hears what is ours no more."""

    def __init__(
        self,
        server: Server,
        layout: Layout,
        held: HeldSessions,
        terms: Terms,
        lost: Callable[[str], None],
    ) -> None:
        self._server = server
        self._layout = layout
        self._held = held
        self._terms = terms
        self._lost = lost

    async def acquire(self, key: str, *, needs_state: bool) -> Held:
        """Hold the session, knowing what it has now.

        Raises StateLeased, StateCorrupt, and with *needs_state* StateMissing.
        """
        held, keys, terms = self._held.get(key), self._layout.session(key), self._terms
        answer: list[Any] = await self._server.run(
            ACQUIRE,
            keys.all,
            terms.owner_id,
            terms.lease_ms,
            terms.ttl_ms,
            "" if held is None else held.version,
            int(needs_state),
        )
        match answer:
            case [b"leased", owner]:
                self._held.forget(key)
                raise leased(key, owner)
            case [b"missing"]:
                self._held.forget(key)
                raise StateMissing(f"no state is parked under {key!r}")
            case [b"ok", token, version, data]:
                pass
            case _:
                raise ServerReply(f"no answer of ours: {answer!r:.80}")
        if held is None:
            held = Held(key=key, keys=keys, token=int(token))
            self._held.take(held)
        held.token, version = int(token), version.decode()
        manifest: Manifest | None
        if data:
            manifest = read_manifest(self._layout.sealer, key, keys, data)
            held.touched_s = None
        else:
            manifest = held.manifest if version and version == held.version else None
        self._held.update(held, version, manifest)
        return held

    async def renew(self) -> None:
        """Prolong every lease; tell of those that are lost, and of states that are."""
        terms, sessions = self._terms, list(self._held)
        versions = [held.version for held in sessions]
        calls: list[Call] = [
            (
                held.keys.all,
                (
                    terms.owner_id,
                    held.token,
                    terms.lease_ms,
                    terms.ttl_ms,
                    held.version,
                ),
            )
            for held in sessions
        ]
        answers = await self._server.run_each(RENEW, calls)
        for held, version, answer in zip(sessions, versions, answers, strict=True):
            # Whoever changed it while we asked knows better.
            if self._held.get(held.key) is held and held.version == version:
                self._judge(held, answer)

    async def let_go(self, sessions: list[Held]) -> None:
        """Give leases back."""
        await self._server.run_each(
            LET_GO, [(held.keys.all, (self._terms.owner_id,)) for held in sessions]
        )

    def _judge(self, held: Held, answer: list[Any]) -> None:
        match answer:
            case [b"ok", token, version]:
                held.token = int(token)
                is_lost = held.manifest is not None and version.decode() != held.version
            case _:
                is_lost = held.manifest is not None
        if is_lost:
            self._held.forget(held.key)
            self._lost(held.key)


def leased(key: str, owner: bytes) -> StateLeased:
    """Return the error that says who owns the session."""
    who = owner.decode()[:_SHORT] or "somebody"
    return StateLeased(f"the session of {key!r} is owned by {who}")


def read_manifest(sealer: Sealer, key: str, keys: SessionKeys, data: bytes) -> Manifest:
    """Return the manifest in *data*; raise StateCorrupt if it is not that of *key*."""
    manifest = decode_manifest(sealer.open(tenant_of(key), keys.name, data))
    if manifest.key != key:
        raise StateCorrupt(
            f"what is parked under {key!r} is the state of {manifest.key!r}"
        )
    return manifest
