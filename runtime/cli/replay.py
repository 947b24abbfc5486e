"""``kvalet replay``: run a trace under several policies and say what each one cost."""

import sys
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from ...backends import ACCELERATOR_NAMES
from ...scheduler import (
    POLICY_NAMES,
    InvalidSetting,
    Policy,
    SchedulerSettings,
    parse_policy,
)
from ...state_store.setting import STORES, MemoryTier, read_setting
from ..dispatch import Observer
from ..errors import WrongInput
from ..replay.engines import BACKEND_NAMES, EngineOptions
from ..replay.report import check_writable, write_report
from ..replay.run import Replay, RunOptions
from ..replay.select import first_sessions
from ..replay.table import print_report
from ..telemetry import log_events, make_logger
from ..traces import read_traces
from .loop import run_to_end
from .progress import replay_progress

Number = TypeVar("Number", int, int | None)


class LogFormat(StrEnum):
    """How events are logged."""

    NONE = "none"
    CONSOLE = "console"
    JSON = "json"


def replay(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Trace files, Claude Code sessions, or folders of them.",
        ),
    ],
    backend: Annotated[
        str, typer.Option(help=f"The accelerator: {' or '.join(BACKEND_NAMES)}.")
    ] = "llama",
    policy: Annotated[
        str,
        typer.Option(help=f"Policies, by comma: {', '.join(POLICY_NAMES)}."),
    ] = "drop,keep,park,auto",
    slots: Annotated[int, typer.Option(help="Sequences that fit at once.")] = 2,
    model: Annotated[
        Path | None,
        typer.Option(help="A GGUF file instead of the default model (llama)."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the engine (llama).")] = 1,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per slot; by default what the trace needs."),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(help="KV tokens of all slots together (simulated)."),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(ACCELERATOR_NAMES)} (simulated)."),
    ] = None,
    token_scale: Annotated[
        float | None,
        typer.Option(help="Multiply all token counts, to fit a small model."),
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option(help="Multiply all times of the trace: tools, users, arrivals."),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option(help="Replay only the first so many top-level sessions."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Run so many sessions at a time, whatever the arrivals."),
    ] = None,
    store: Annotated[
        str,
        typer.Option(help=f"Where state is parked: {STORES}, or tiers by comma."),
    ] = "memory",
    costs: Annotated[
        Path | None,
        typer.Option(help="Measured costs to start from, as calibrate writes them."),
    ] = None,
    max_prefills: Annotated[
        int, typer.Option(help="Prefills in progress at once.")
    ] = 1,
    target_itl: Annotated[
        float | None,
        typer.Option(help="Cut prefills so that decodes get a token so often (s)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the synthetic prompts.")] = 0,
    report: Annotated[
        Path, typer.Option(help="Where to write the figures as JSON.")
    ] = Path("report.json"),
    log: Annotated[
        LogFormat, typer.Option(help="Log every event on standard error.")
    ] = LogFormat.NONE,
) -> None:
    """Replay traces, closed loop, under each policy, and compare what they cost.

    The embedded real model runs in real time, the simulated one in virtual time.
    """
    policies = _parse_policies(policy)
    check_writable(report)
    options = RunOptions(
        engine=EngineOptions(
            backend=_parse_backend(backend),
            slots=slots,
            model=model,
            threads=_at_least_one("--threads", threads),
            context_tokens=_at_least_one("--context", context),
            kv_tokens=_at_least_one("--kv-tokens", kv_tokens),
            token_scale=token_scale,
            time_scale=time_scale,
            accelerator=accelerator,
        ),
        policies=policies,
        seed=seed,
        concurrency=_at_least_one("--concurrency", concurrency),
        store=_check_store(store, backend),
        costs=costs,
        scheduler=SchedulerSettings(max_prefills=max_prefills, target_itl_s=target_itl),
        observer=_observer(log),
    )
    trace = read_traces(paths)
    if sessions is not None:
        trace = first_sessions(trace, sessions)
    with replay_progress() as progress:
        job = Replay(trace, options, progress)
        try:
            run_to_end(job.run(), virtual=backend == "simulated")
        except BaseException:
            with suppress(WrongInput):
                if job.report.runs:
                    write_report(job.report, report)
                    progress.say(f"the partial report is in {report}")
            raise
    write_report(job.report, report)
    print_report(job.report, Console())
    print(f"The whole report is in {report}.", file=sys.stderr)


def _check_store(text: str, backend: str) -> str:
    tiers = read_setting(text).tiers
    if backend == "simulated" and not all(isinstance(t, MemoryTier) for t in tiers):
        raise WrongInput(
            "that --store goes with --backend llama: the simulated one "
            "runs in virtual time, where no disk or server can keep up"
        )
    return text


def _parse_policies(text: str) -> list[Policy]:
    policies = [parse_policy(part) for part in text.split(",") if part.strip()]
    names = [policy.name for policy in policies]
    if not policies:
        raise InvalidSetting("--policy names no policy")
    if len(set(names)) < len(names):
        raise InvalidSetting(f"--policy names one twice: {text!r}")
    return policies


def _parse_backend(text: str) -> str:
    if text not in BACKEND_NAMES:
        valid = ", ".join(BACKEND_NAMES)
        raise WrongInput(f"unknown backend {text!r}; valid are {valid}")
    return text


def _at_least_one(name: str, value: Number) -> Number:
    if value is not None and value < 1:
        raise WrongInput(f"{name} must be at least 1, not {value}")
    return value


def _observer(log: LogFormat) -> Callable[[str], Observer] | None:
    if log is LogFormat.NONE:
        return None
    logger = make_logger(log.value, sys.stderr)
    return lambda policy: log_events(logger.bind(policy=policy))
