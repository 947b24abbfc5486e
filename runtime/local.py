"""The shortest way in: a runtime on an embedded real model."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from ..backends.llama import LlamaBackend, fetch_default_model
from ..scheduler import Policy, SchedulerSettings
from ..state_store import StateStore
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
    store: StateStore | None = None,
    settings: SchedulerSettings | None = None,
    costs: Path | str | None = None,
    observers: Iterable[Observer] = (),
) -> AsyncGenerator[Runtime, None]:
    """Start an engine and a runtime on it; stop both at the end.

    *model* is a GGUF file; by default SmolLM2-135M, fetched on first use. Needs
    ``pip install 'kvalet[local]'``. Measured *costs* are kept in a file, by default the
    one that ``kvalet calibrate`` writes for this model and machine. Raises
    EngineStartError or ModelUnavailable.
    """
    backend = await LlamaBackend.start(
        model_path=model or await fetch_default_model(),
        slots=slots,
        context_tokens=context_tokens,
        threads=threads,
    )
    async with (
        aclosing(backend),
        Runtime(
            backend,
            store=store,
            policy=policy,
            settings=settings,
            costs=costs or costs_path(backend.capabilities.identity),
            observers=observers,
        ) as runtime,
    ):
        yield runtime
