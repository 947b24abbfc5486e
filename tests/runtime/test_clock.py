"""Virtual time: it jumps, it repeats, and it says when nothing can ever happen."""

import asyncio
import socket
import time

import anyio
import pytest

from kvalet.runtime.clock import LoopClock, VirtualTimeLoop, run_in_virtual_time

from .world import virtual


def test_waiting_takes_no_time() -> None:
    """A hundred virtual days pass in a moment, and exactly."""

    async def main() -> float:
        await anyio.sleep(100 * 86_400)
        return asyncio.get_running_loop().time()

    began_s = time.monotonic()
    assert run_in_virtual_time(main()) == 100 * 86_400
    assert time.monotonic() - began_s < 5


@virtual
async def test_timers_go_off_in_their_order() -> None:
    """Sleepers wake by time, not by the order in which they lay down."""
    order: list[float] = []

    async def sleeper(seconds: float) -> None:
        await anyio.sleep(seconds)
        order.append(anyio.current_time())

    async with anyio.create_task_group() as tasks:
        for seconds in (3, 1, 2):
            tasks.start_soon(sleeper, seconds)
    assert order == [1, 2, 3]


def test_every_loop_begins_at_zero() -> None:
    """Runs do not see each other's time."""

    async def main() -> float:
        before_s = LoopClock().now_s()
        await anyio.sleep(5)
        return before_s

    assert [run_in_virtual_time(main()) for _ in range(2)] == [0, 0]


def test_a_deadlock_is_an_error() -> None:
    """Where every task waits and no timer is set, the run ends with that sentence."""

    async def main() -> None:
        await anyio.Event().wait()

    with pytest.raises(RuntimeError, match="every task is waiting and no timer is set"):
        run_in_virtual_time(main())


def test_errors_and_results_come_through() -> None:
    """The main coroutine's end is the run's end."""

    async def fail() -> None:
        raise ValueError("mine")

    async def answer() -> int:
        return 42

    with pytest.raises(ValueError, match="mine"):
        run_in_virtual_time(fail())
    assert run_in_virtual_time(answer()) == 42


@virtual
async def test_calls_at_a_time() -> None:
    """call_at calls then, at once if that has passed, and not when cancelled."""
    clock, calls = LoopClock(), list[tuple[str, float]]()

    def call(name: str) -> None:
        calls.append((name, clock.now_s()))

    await anyio.sleep(5)
    clock.call_at(7, lambda: call("later"))
    clock.call_at(1, lambda: call("past"))
    clock.call_at(6, lambda: call("never")).cancel()
    await anyio.sleep(10)
    assert calls == [("past", 5), ("later", 7)]


@virtual
async def test_real_input_is_heard() -> None:
    """Bytes that have arrived on a socket are read before time jumps on."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(b"hello")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(1000):
            assert await loop.sock_recv(ours, 5) == b"hello"
        assert anyio.current_time() == 0


def test_a_loop_closes_cleanly() -> None:
    """A loop that was never run lets its selector go."""
    loop = VirtualTimeLoop()
    loop.close()
    assert loop.is_closed()
