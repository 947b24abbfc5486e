"""The runtime: one scheduler, one backend, one store, and the agents in between.

It runs unchanged on a real asyncio loop and on a ``VirtualTimeLoop``. What it starts,
it ends: leaving its block cancels what moves and drops what it has parked. The backend
and the store belong to whoever made them.
"""

import uuid
import warnings
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from ..backends import Backend
from ..scheduler import (
    Capacity,
    CostModel,
    Departure,
    Policy,
    Scheduler,
    SchedulerSettings,
    SessionId,
    SessionOpened,
    parse_policy,
)
from ..state_store import Inventory, MemoryStore, StateStore
from .client import Session
from .clock import LoopClock
from .conversation import Conversation, Keeping
from .costs import load_costs, save_costs
from .dispatch import Dispatch, Observer
from .errors import SessionEnded, Unsupported, WrongInput

# How long leaving may wait for the store to drop what was parked in it.
_CLOSING_S = 5.0


class Runtime:
    """Schedules the turns of many sessions on one backend.

    ``policy`` is a name (``auto``, ``keep``, ``park``, ``hold:SECONDS``, ...) or a
    policy. ``costs`` is a file of measured costs: what this runtime learns goes on from
    there, and is written back at the end. A cost model is used and not written.
    Observers hear every event, in order, in the runtime's own task; they must be quick.

    A runtime that ``persists`` leaves the state of sessions that were not ended in the
    store, and copies there at its end what is on the accelerator. Sessions of the same
    ids in the next one go on from it, if the store outlives this process.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        store: StateStore | None = None,
        policy: str | Policy = "auto",
        settings: SchedulerSettings | None = None,
        costs: Path | str | CostModel | None = None,
        persists: bool = False,
        observers: Iterable[Observer] = (),
    ) -> None:
        self._backend = backend
        self._persists = persists
        self._store = MemoryStore(None) if store is None else store
        self._policy = parse_policy(policy) if isinstance(policy, str) else policy
        self._settings = settings or SchedulerSettings()
        self._costs_path = Path(costs) if isinstance(costs, Path | str) else None
        self._costs = costs if isinstance(costs, CostModel) else CostModel()
        if self._costs_path is not None and self._costs_path.exists():
            identity = backend.capabilities.identity
            self._costs = load_costs(self._costs_path, backend=identity)
        self._observers = tuple(observers)
        self._dispatch: Dispatch | None = None
        self._stack = AsyncExitStack()
        can = backend.capabilities
        if self._policy.traits.departure is Departure.PARK and not can.exports_kv:
            raise Unsupported(
                f"policy {self._policy.name!r} moves KV state, and "
                f"{type(backend).__name__} cannot export any"
            )
        self._capacity = Capacity(
            slots=can.slots,
            kv_tokens=can.kv_tokens,
            context_tokens=can.context_tokens,
            bytes_per_token=can.bytes_per_token,
            exports_kv=can.exports_kv,
            exports_rows=can.exports_rows,
        )

    async def __aenter__(self) -> Self:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        self._dispatch = Dispatch(
            scheduler=Scheduler(
                capacity=self._capacity,
                policy=self._policy,
                settings=self._settings,
                cost=self._costs,
            ),
            backend=self._backend,
            store=self._store,
            clock=LoopClock(),
            tasks=tasks,
            observers=self._observers,
        )
        if isinstance(self._store, Inventory):
            self._store.serve(self._dispatch)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        dispatch, self._dispatch = self._dispatch, None
        assert dispatch is not None
        if self._persists:
            with anyio.move_on_after(_CLOSING_S, shield=True):
                await dispatch.leave_all()
        dispatch.close()
        try:
            # What the body raised is no error of the group's: it leaves as it is.
            await self._stack.__aexit__(None, None, None)
        finally:
            with anyio.move_on_after(_CLOSING_S, shield=True):
                await dispatch.empty(keeps=self._persists)
            if self._costs_path is not None:
                identity = self._backend.capabilities.identity
                try:
                    save_costs(self._costs_path, self._costs, backend=identity)
                except WrongInput as problem:  # what was learned is lost, nothing else
                    warnings.warn(str(problem), RuntimeWarning, stacklevel=2)

    def session(
        self,
        id: str | None = None,
        *,
        parent: str | None = None,
        tenant: str = "",
        weight: float = 1.0,
        priority: int = 0,
        blocking: bool = True,
        durable: bool = False,
        resume: bool | None = None,
    ) -> Session:
        """Open a session; *parent* is the session whose tool it is, if any.

        A tool call of the parent waits for its end if it is *blocking*. Tenants share
        the accelerator by *weight*, a higher *priority* goes first. A *durable* session
        is not parked until its copy is in the tier of the store that survives longest.
        With *resume* its first turn, which gives the whole prompt, goes on from what
        is in the store for this *id*; by default, if the runtime persists and an *id*
        is given. Raises IllegalMove
        where a session of this id is open, InvalidSetting where a setting makes no
        sense, SessionEnded outside of the runtime's block.
        """
        dispatch = self._running()
        opened = SessionOpened(
            at_s=dispatch.clock.now_s(),
            session=SessionId(uuid.uuid4().hex if id is None else id),
            parent=None if parent is None else SessionId(parent),
            tenant=tenant,
            weight=weight,
            priority=priority,
            blocking=blocking,
        )
        named = id is not None
        keeping = Keeping(
            durable=durable,
            resumes=(self._persists and named) if resume is None else resume,
            persists=self._persists and named,
        )
        return Session(Conversation(dispatch, opened, keeping=keeping))

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, to look at."""
        return self._running().scheduler

    @property
    def store(self) -> StateStore:
        """Where this runtime parks state."""
        return self._store

    def _running(self) -> Dispatch:
        if self._dispatch is None:
            raise SessionEnded("the runtime is not open: use it with 'async with'")
        return self._dispatch
