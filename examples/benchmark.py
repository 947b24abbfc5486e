"""What the runtime itself costs: python examples/benchmark.py [main-job|waiting|speed]

main-job   the largest resident size of our own process during the main job, without
           the bytes parked in it and without the engine's process; takes a minute
waiting    bytes that one waiting session costs the runtime
speed      turns per second in virtual time, on one core, per policy

The machine may be busy: runs alternate, and the spread is printed beside the median.
"""

import asyncio
import gc
import statistics
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import anyio

import kvalet
from kvalet.runtime.replay import EngineOptions, Replay, RunOptions
from kvalet.runtime.traces import (
    GeneratorSettings,
    Trace,
    TraceSession,
    generate,
    read_traces,
)
from kvalet.scheduler import Copied, CopyForgotten, CopyLost

BUNDLED = Path(__file__).parent / "traces" / "coding-agents.jsonl"
TURNS = 10_000
ROUNDS = 5
WAITING = 2_000
CONTEXT_TOKENS = 400


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    # The main job first: what the others leave on the heap is not its own.
    parts = {"main-job": main_job, "waiting": waiting, "speed": speed}
    names = sys.argv[1:] or list(parts)
    if unknown := [name for name in names if name not in parts]:
        sys.exit(
            f"benchmark: unknown part {unknown[0]!r}; valid are {', '.join(parts)}"
        )
    for name in parts:
        if name in names:
            parts[name]()


def speed() -> None:
    """Replay 10,000 turns in virtual time, with long and short contexts."""
    for token_scale in (1.0, 0.02):
        settings = GeneratorSettings(seed=1, sessions=600, token_scale=token_scale)
        trace = _first_turns(generate(settings), TURNS)
        mean_tokens = trace.input_tokens / trace.step_count
        print(
            f"speed: {trace.step_count:,} turns of {len(trace.sessions)} sessions, "
            f"{mean_tokens:,.0f} tokens of context in the mean"
        )
        _measure_speed(trace)


def _measure_speed(trace: Trace) -> None:
    rates: dict[str, list[float]] = {name: [] for name in ("drop", "keep", "park")}
    for _ in range(ROUNDS):
        for name, measured in rates.items():
            measured.append(trace.step_count / _seconds_for(trace, name))
    for name, measured in rates.items():
        median = statistics.median(measured)
        print(
            f"  {name:<5} {median:7,.0f} turns/s of CPU time "
            f"({min(measured):,.0f} to {max(measured):,.0f})"
        )


def _seconds_for(trace: Trace, policy: str) -> float:
    engine = EngineOptions(backend="simulated", slots=64)
    replay = Replay(
        trace, RunOptions(engine=engine, policies=[kvalet.parse_policy(policy)])
    )
    gc.collect()
    began_s = time.process_time()
    kvalet.run_in_virtual_time(replay.run())
    return time.process_time() - began_s


def _first_turns(trace: Trace, turns: int) -> Trace:
    """Return whole sessions until *turns* are reached; the last one is cut."""
    chosen: list[TraceSession] = []
    for session in trace.sessions:
        if turns <= 0:
            break
        if session.parent is None:
            chosen.append(session)
            turns -= len(session.steps)
    return Trace(header=trace.header, sessions=tuple(chosen))


def waiting() -> None:
    """Let sessions wait in a tool and print what each one costs."""
    kvalet.run_in_virtual_time(_measure_waiting())


async def _measure_waiting() -> None:
    backend = kvalet.SimulatedBackend(slots=4, kv_tokens=8 * CONTEXT_TOKENS)
    bare = await _bytes_of_each(anyio.sleep_forever)
    async with kvalet.Runtime(backend, policy="park") as runtime:
        each = await _bytes_of_each(partial(_wait_in_a_tool, runtime))
    ids = CONTEXT_TOKENS * array("i").itemsize
    print(
        f"waiting: {each - bare:,.0f} bytes a session, {ids:,} of them its "
        f"{CONTEXT_TOKENS} token ids ({bare:,.0f} more for a task that only sleeps)"
    )


async def _bytes_of_each(agent: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Return what one of many agents takes once all of them wait."""
    size_bytes = 0
    async with anyio.create_task_group() as agents:
        tracemalloc.start()
        for _ in range(WAITING):
            agents.start_soon(agent)
        await anyio.sleep(1e6)  # all have had their turn by then
        gc.collect()
        size_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        agents.cancel_scope.cancel()
    return size_bytes / WAITING


async def _wait_in_a_tool(runtime: kvalet.Runtime) -> None:
    async with runtime.session() as session:
        await session.turn(array("i", bytes(4 * (CONTEXT_TOKENS - 10))), max_tokens=10)
        async with session.tool("Bash"):
            await anyio.sleep_forever()


def main_job() -> None:
    """Replay the bundled trace on the real model and print our own size."""
    largest, parked = 0, dict[str, int]()

    def sample(event: kvalet.Event) -> None:
        nonlocal largest
        if isinstance(event, Copied):
            parked[event.session] = event.nbytes
        elif isinstance(event, CopyForgotten | CopyLost):
            parked.pop(event.session, None)
        largest = max(largest, _resident_bytes() - sum(parked.values()))

    options = RunOptions(
        engine=EngineOptions(backend="llama"),
        policies=[kvalet.parse_policy(name) for name in ("drop", "keep", "park")],
        observer=lambda policy: sample,
    )
    asyncio.run(Replay(read_traces([BUNDLED]), options).run())
    print(f"main-job: {largest / 1e6:.0f} MB at most, parked bytes and engine apart")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
