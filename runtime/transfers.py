"""Moves KV state between one backend and the store; each move ends in an event.

Parked state is a cache, so a move may fail in any way: the event says so, and what is
missing is computed again. Nor may it take longer than that would: a turn that waits for
a slow store is worse off than one without a store.
"""

import contextlib
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from ..backends import Backend, BackendError, EngineLost
from ..scheduler import (
    Copied,
    CopyFailed,
    CopyStarted,
    Event,
    Outlook,
    Released,
    Restored,
    RestoreFailed,
    RestoreStarted,
    SessionId,
)
from ..state_store import (
    KVState,
    Receipt,
    StateMissing,
    StateStore,
    StateStoreError,
)
from .clock import Clock
from .late import Calls
from .recovery import Recovery

# A small state is computed in no time; a move of it still deserves a try.
_LEAST_PATIENCE_S = 0.1


class Lane(Protocol):
    """What has to be known of a session to move its state."""

    @property
    def tokens(self) -> "array[int]":
        """Token ids; the first ``kv_tokens`` of them are those of the state."""
        ...

    @property
    def key(self) -> str:
        """Under what its state is in the store."""
        ...

    @property
    def durable(self) -> bool:
        """Whether a copy counts only once it is where it survives this process."""
        ...


class Copy(NamedTuple):
    """How a copy ended, and whose copies it has displaced."""

    event: Event
    evicted: tuple[str, ...] = ()


class Transfers:
    """The ways between one backend's slots and the store, and what is in it for them.

    ``recover`` replaces an engine that was lost in the generation it is given.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        store: StateStore,
        clock: Clock,
        recovery: Recovery,
        recover: Callable[[SessionId, int], Awaitable[None]],
        outlook: Outlook,
    ) -> None:
        self._backend = backend
        self._store = store
        self._clock = clock
        self._recovery = recovery
        self._recover = recover
        self._outlook = outlook
        self._calls = Calls()
        self._parked: set[str] = set()  # what is of use in the store
        self._in_store: set[str] = set()  # under what anything of ours may be there

    async def copy(
        self, copy: CopyStarted, lane: Lane, token_ids: Sequence[int]
    ) -> Copy:
        """Copy a slot's state to the store."""
        began_s = self._clock.now_s()
        try:
            await self._recovery.wait()
            receipt = await self._park(copy, lane, token_ids, copy.first_token)
        except Exception as error:  # what can't be copied is computed again
            return Copy(
                CopyFailed(
                    at_s=self._clock.now_s(),
                    session=copy.session,
                    reason=_reason(error),
                )
            )
        now_s = self._clock.now_s()
        event = Copied(
            at_s=now_s,
            session=copy.session,
            kv_tokens=copy.kv_tokens,
            nbytes=receipt.nbytes,
            seconds=now_s - began_s,
            tier=receipt.tier,
        )
        return Copy(event, receipt.evicted)

    async def restore(
        self, restore: RestoreStarted, key: str, token_ids: Sequence[int]
    ) -> Event:
        """Bring what is parked under *key* back into a slot."""
        began_s = self._clock.now_s()
        try:
            patience_s = self._patience_s(restore.kv_tokens)
            state, receipt = await self._calls.within(
                patience_s, self._store.fetch(key)
            )
            await self._import(restore, state.leading(restore.kv_tokens), token_ids)
        except Exception as error:  # parked state is a cache: it may fail in any way
            return RestoreFailed(
                at_s=self._clock.now_s(), session=restore.session, reason=_reason(error)
            )
        now_s = self._clock.now_s()
        return Restored(
            at_s=now_s,
            session=restore.session,
            kv_tokens=restore.kv_tokens,
            nbytes=receipt.nbytes,
            seconds=now_s - began_s,
            tier=receipt.tier,
        )

    async def release(self, released: Released) -> None:
        """Empty a slot."""
        # A slot that can't be emptied belongs to an engine that is gone: the next turn
        # there says so to its caller.
        with contextlib.suppress(BackendError):
            await self._recovery.wait()
            await self._backend.release(released.slot)

    async def find(self, key: str, prompt: "array[int]") -> int:
        """Return how many leading tokens of *prompt* the store has a state of."""
        try:
            patience_s = self._patience_s(len(prompt))
            manifest = await self._calls.within(patience_s, self._store.find(key))
        except (StateStoreError, TimeoutError):
            return 0
        self._in_store.add(key)
        shared_tokens = manifest.shared_tokens(prompt)
        if shared_tokens:
            self._parked.add(key)
        return shared_tokens

    def useless(self, key: str) -> None:
        """Take note that what is parked under *key* will not be asked for again."""
        self._parked.discard(key)

    def keep(self, key: str) -> None:
        """Leave to others what is parked under *key*."""
        self._in_store.discard(key)

    async def forget(self, key: str) -> None:
        """Drop what is useless under *key*."""
        if key not in self._parked:  # else a newer copy has the key by now
            with contextlib.suppress(Exception):
                await self._store.drop(key)
            self._in_store.discard(key)

    async def empty(self) -> None:
        """Empty all slots, and drop whatever is in the store and was not kept."""
        for slot in range(self._backend.capabilities.slots):
            with contextlib.suppress(BackendError):
                await self._backend.release(slot)
        await self._calls.end()
        self._parked.clear()
        for key in list(self._in_store):
            await self.forget(key)

    async def _park(
        self, copy: CopyStarted, lane: Lane, ids: Sequence[int], first_token: int
    ) -> Receipt:
        state = await self._backend.export_kv(
            copy.slot, lane.key, ids, first_token=first_token
        )
        self._in_store.add(lane.key)
        try:
            receipt = await self._calls.within(
                self._patience_s(copy.kv_tokens),
                self._store.park(state, through=lane.durable),
            )
        except StateMissing:
            if not first_token:
                raise
            # What it was to continue is not there any more, or goes on otherwise.
            return await self._park(copy, lane, ids, 0)
        self._parked.add(lane.key)
        return receipt

    async def _import(
        self, restore: RestoreStarted, state: KVState, ids: Sequence[int]
    ) -> None:
        await self._recovery.wait()
        generation = self._recovery.generation
        try:
            await self._backend.import_kv(restore.slot, state, ids)
        except EngineLost:
            if not self._recovery.possible:
                raise
            # The engine died before; the parked state is as good as ever.
            await self._recover(restore.session, generation)
            await self._backend.import_kv(restore.slot, state, ids)

    def _patience_s(self, tokens: int) -> float:
        """Return how long a move may take: as long as computing the same does."""
        return max(_LEAST_PATIENCE_S, self._outlook.prefill_s(tokens))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the store took longer than computing the state would"
    return str(error) or type(error).__name__
