"""The runtime: backends with a scheduler each, one store, and the agents in between.

It runs unchanged on a real asyncio loop and on a ``VirtualTimeLoop``. What it starts,
it ends: leaving its block cancels what moves and drops what it has parked. The backend
and the store belong to whoever made them.
"""

import copy
import uuid
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from ..backends import Backend
from ..scheduler import (
    Capacity,
    CostModel,
    Departure,
    LatencyModel,
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
from .homes import Homes

# How long leaving may wait for the store to drop what was parked in it.
_CLOSING_S = 5.0


class Runtime:
    """Schedules the turns of many sessions on one backend, or several alike.

    Several backends have to run the same model. Each is scheduled by itself; sessions
    move between them where one is down or full (``homes``).

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
        backend: Backend | Sequence[Backend],
        *,
        store: StateStore | None = None,
        policy: str | Policy = "auto",
        settings: SchedulerSettings | None = None,
        costs: Path | str | CostModel | None = None,
        persists: bool = False,
        observers: Iterable[Observer] = (),
    ) -> None:
        backends = [backend] if isinstance(backend, Backend) else list(backend)
        if not backends:
            raise WrongInput("a runtime needs a backend")
        self._backends = backends
        self._persists = persists
        self._store = MemoryStore(None) if store is None else store
        self._policy = parse_policy(policy) if isinstance(policy, str) else policy
        self._settings = settings or SchedulerSettings()
        self._costs_path = Path(costs) if isinstance(costs, Path | str) else None
        self._costs = costs if isinstance(costs, CostModel) else CostModel()
        if self._costs_path is not None and self._costs_path.exists():
            self._costs = load_costs(self._costs_path, backend=self._identity)
        self._observers = tuple(observers)
        self._homes: Homes | None = None
        self._stack = AsyncExitStack()
        for each in backends:
            exports = each.capabilities.exports_kv
            if self._policy.traits.departure is Departure.PARK and not exports:
                raise Unsupported(
                    f"policy {self._policy.name!r} moves KV state, and "
                    f"{type(each).__name__} cannot export any"
                )

    async def __aenter__(self) -> Self:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        latency = LatencyModel()
        self._homes = Homes([self._home(b, latency, tasks) for b in self._backends])
        if isinstance(self._store, Inventory):
            self._store.serve(self._homes)
        return self

    def _home(
        self, backend: Backend, latency: LatencyModel, tasks: TaskGroup
    ) -> Dispatch:
        """Return a scheduler at work on *backend*. What tools take, all learn."""
        can = backend.capabilities
        first = backend is self._backends[0]
        alike = can.identity == self._identity
        scheduler = Scheduler(
            capacity=Capacity(
                slots=can.slots,
                kv_tokens=can.kv_tokens,
                context_tokens=can.context_tokens,
                bytes_per_token=can.bytes_per_token,
                exports_kv=can.exports_kv,
                exports_rows=can.exports_rows,
                exports_slices=can.exports_slices,
            ),
            # Some policies remember what they see of their accelerator.
            policy=self._policy if first else copy.deepcopy(self._policy),
            settings=self._settings,
            latency=latency,
            cost=self._costs if alike else CostModel(),
        )
        return Dispatch(
            scheduler=scheduler,
            backend=backend,
            store=self._store,
            clock=LoopClock(),
            tasks=tasks,
            observers=self._observers,
            alone=len(self._backends) == 1,
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        homes, self._homes = self._homes, None
        assert homes is not None
        if self._persists:
            with anyio.move_on_after(_CLOSING_S, shield=True):
                for home in homes.all:
                    await home.leave_all()
        for home in homes.all:
            home.close()
        try:
            # What the body raised is no error of the group's: it leaves as it is.
            await self._stack.__aexit__(None, None, None)
        finally:
            with anyio.move_on_after(_CLOSING_S, shield=True):
                for home in homes.all:
                    await home.empty(keeps=self._persists)
            if self._costs_path is not None:
                try:
                    save_costs(self._costs_path, self._costs, backend=self._identity)
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
        is given. Raises IllegalMove where a session of this id is open, InvalidSetting
        where a setting makes no sense, SessionEnded outside of the runtime's block.
        """
        homes = self._running()
        opened = SessionOpened(
            at_s=homes.all[0].clock.now_s(),
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
        return Session(Conversation(homes, opened, keeping=keeping))

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the first backend, to look at."""
        return self._running().all[0].scheduler

    @property
    def schedulers(self) -> tuple[Scheduler, ...]:
        """The scheduler of each backend, in their order."""
        return tuple(home.scheduler for home in self._running().all)

    @property
    def homes(self) -> Homes:
        """The accelerators, and what the store asks of them."""
        return self._running()

    @property
    def store(self) -> StateStore:
        """Where this runtime parks state."""
        return self._store

    @property
    def _identity(self) -> str:
        return self._backends[0].capabilities.identity

    def _running(self) -> Homes:
        if self._homes is None:
            raise SessionEnded("the runtime is not open: use it with 'async with'")
        return self._homes
