"""The shortest way in: a runtime on an embedded real model."""

import os
import warnings
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

from ..backends.llama import LlamaBackend, fetch_default_model
from ..scheduler import Policy, SchedulerSettings
from ..state_store import Inventory, StateStore, open_store
from .budget import budget_note
from .costs import costs_path
from .dispatch import Observer
from .runtime import Runtime


@asynccontextmanager
async def local(
    *,
    model: Path | str | None = None,
    slots: int = 2,
    context_tokens: int | None = None,
    threads: int = 1,
    policy: str | Policy = "auto",
    store: StateStore | str | None = None,
    persists: bool = False,
    settings: SchedulerSettings | None = None,
    costs: Path | str | None = None,
    observers: Iterable[Observer] = (),
) -> AsyncGenerator[Runtime, None]:
    """Start an engine and a runtime on it; stop both at the end.

    *model* is a GGUF file; by default SmolLM2-135M, fetched on first use. Needs
    ``pip install 'kvalet[local]'``. *store* is one, or the text that names it
    (``memory:1GiB,redis://localhost``), by default host memory without limit. Measured
    *costs* are kept in a file, by default the one that ``kvalet calibrate`` writes for
    this model and machine. Raises EngineStartError, ModelUnavailable or StoreUnusable.
    """
    async with AsyncExitStack() as stack:
        if isinstance(store, str):
            opened = await open_store(store, environment=os.environ, say=_warn)
            store = await stack.enter_async_context(aclosing(opened))
        backend = await LlamaBackend.start(
            model_path=model or await fetch_default_model(),
            slots=slots,
            context_tokens=context_tokens,
            threads=threads,
        )
        await stack.enter_async_context(aclosing(backend))
        if isinstance(store, Inventory):
            note = await budget_note(store, backend.capabilities)
            if note is not None:
                _warn(note)
        runtime = Runtime(
            backend,
            store=store,
            policy=policy,
            settings=settings,
            costs=costs or costs_path(backend.capabilities.identity),
            persists=persists,
            observers=observers,
        )
        yield await stack.enter_async_context(runtime)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
