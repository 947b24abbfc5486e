"""Our own HTTP connections against real sockets."""

import asyncio
import time
from contextlib import aclosing

import pytest

from kvalet.backends.http import (
    ConnectFailed,
    ConnectionBroken,
    Origin,
    Outgoing,
    PeerSilent,
    WrongAddress,
)
from kvalet.backends.http.connections import ConnectionAnswer, Connections

from .peer import asked, peer

GET = Outgoing(method="GET", target="/x", headers=())
POST = Outgoing(
    method="POST", target="/y?a=b", headers=((b"x-a", b"1"),), body=b"the body"
)
BODY = bytes(range(256)) * 40


def chunked(body: bytes, size: int = 1000) -> bytes:
    """Return *body* in chunks, as HTTP has them."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in [*parts, b""])


FRAMINGS = {
    "length": b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY),
    "chunked": b"transfer-encoding: chunked\r\n\r\n" + chunked(BODY),
    "until close": b"connection: close\r\n\r\n" + BODY,
}


async def whole(answer: ConnectionAnswer) -> bytes:
    """Return the body of *answer*, and let go of it."""
    async with aclosing(answer):
        return b"".join([piece async for piece in answer])


async def get(connections: Connections, origin: Origin) -> bytes:
    """Return the body of a GET."""
    return await whole(await connections.send(origin, GET, silence_s=5))


@pytest.mark.asyncio
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_bodies_are_the_peers(framing: str) -> None:
    """A body comes as it was sent, however its end is told, behind interim heads."""
    heard: list[tuple[bytes, bytes]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await asked(reader))
        writer.write(b"HTTP/1.1 100 Continue\r\nx-no: 1\r\n\r\n")
        writer.write(b"HTTP/1.1 201 Created\r\nX-Yes: 2\r\n" + FRAMINGS[framing])
        await writer.drain()

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        answer = await connections.send(origin, POST, silence_s=5)
        assert answer.status == 201
        assert (b"x-yes", b"2") in answer.headers
        assert b"x-no" not in dict(answer.headers)
        assert await whole(answer) == BODY
    head, body = heard[0]
    assert head.startswith(b"POST /y?a=b HTTP/1.1\r\nhost: 127.0.0.1:")
    assert (b"x-a: 1" in head, body) == (True, b"the body")


@pytest.mark.asyncio
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_cut_answer_is_never_whole(framing: str) -> None:
    """Wherever the peer breaks off, the caller hears of it and has no wrong byte."""
    short = b"0123456789"
    frames = {
        "length": b"content-length: 10\r\n\r\n" + short,
        "chunked": b"transfer-encoding: chunked\r\n\r\n" + chunked(short, 4),
    }
    said = b"HTTP/1.1 200 OK\r\n" + frames[framing]
    cuts = iter(range(len(said)))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(said[: next(cuts)])

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        for _ in range(len(said)):
            got = b""
            with pytest.raises(ConnectionBroken):
                answer = await connections.send(origin, GET, silence_s=5)
                async with aclosing(answer):
                    async for piece in answer:
                        got += piece
            assert short.startswith(got)


@pytest.mark.asyncio
async def test_connections_are_used_again_and_never_with_rests() -> None:
    """A finished exchange leaves its connection, an unfinished one cuts it."""
    opened = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            await asked(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        for _ in range(5):
            assert await get(connections, origin) == b"ok"
        assert opened == 1
        unread = await connections.send(origin, GET)
        await unread.aclose()
        await unread.aclose()
        assert await get(connections, origin) == b"ok"
        assert opened == 2


@pytest.mark.asyncio
async def test_idle_connections_grow_old() -> None:
    """A connection that has been idle for too long is not used again."""
    opened = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            await asked(reader)
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    fleeting = Connections(idle_at_most_s=0)
    async with peer(talk) as origin, aclosing(fleeting) as connections:
        for _ in range(3):
            assert await get(connections, origin) == b""
            await asyncio.sleep(0)
        assert opened == 3


@pytest.mark.asyncio
async def test_a_kept_connection_that_dies_unanswered_is_replaced_once() -> None:
    """Where the peer closes as we ask, we ask again; after a byte of an answer never.

    A new connection that dies is the caller's to hear of.
    """
    requests: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await asked(reader)
            requests.append(head.split(b" ")[1])
            if requests[-1] == b"/die" and len(requests) == 2:
                return
            if requests[-1] == b"/stutter":
                writer.write(b"HTTP/1.1 2")
                return
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    die = Outgoing(method="POST", target="/die", headers=(), body=b"{}")
    stutter = Outgoing(method="POST", target="/stutter", headers=())
    async with peer(talk) as origin, aclosing(Connections()) as connections:
        assert await get(connections, origin) == b"ok"
        assert await whole(await connections.send(origin, die)) == b"ok"
        assert requests == [b"/x", b"/die", b"/die"]
        with pytest.raises(ConnectionBroken):
            await connections.send(origin, stutter)
        assert requests[3:] == [b"/stutter"]


@pytest.mark.asyncio
async def test_cancelling_cuts_the_connection() -> None:
    """The peer hears within a second that nobody waits for its answer any more."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        began.set()
        try:
            await reader.read()
        finally:
            ended.set()

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        task = asyncio.create_task(connections.send(origin, GET))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(1):
            await ended.wait()


@pytest.mark.asyncio
async def test_a_slow_reader_stops_the_peer() -> None:
    """Beyond a bound nothing is read that nobody takes; nothing of it is lost."""
    total = 64 << 20
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await asked(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        answer = await connections.send(origin, GET)
        before = -1
        while before != sent:  # until the socket buffers are full
            before = sent
            await asyncio.sleep(0.1)
        assert sent < total / 2
        assert len(await whole(answer)) == total


@pytest.mark.asyncio
async def test_many_streams_at_once() -> None:
    """200 streams get all their pieces, each its own."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await asked(reader)
        name = head.split(b" ")[1]
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"%x\r\n%b\r\n" % (len(name), name))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    async def stream(connections: Connections, origin: Origin, number: int) -> None:
        outgoing = Outgoing(method="GET", target=f"/{number}", headers=())
        got = await whole(await connections.send(origin, outgoing))
        assert got == b"/%d" % number * 20

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        await asyncio.gather(*(stream(connections, origin, n) for n in range(200)))


@pytest.mark.asyncio
async def test_silence_ends_a_call() -> None:
    """A peer that says nothing is given up, before its head and within its body."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await asked(reader)
        if b" /y" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await reader.read()

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        began_s = time.monotonic()
        with pytest.raises(PeerSilent, match=r"0\.05 s"):
            await connections.send(origin, GET, silence_s=0.05)
        with pytest.raises(PeerSilent):
            await whole(await connections.send(origin, POST, silence_s=0.05))
        assert time.monotonic() - began_s < 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "said", [b"\0\0\0garbage", b"HTTP/1.1 abc\r\n\r\n", b"SSH-2.0-x\r\n\r\n"]
)
async def test_what_is_not_http_breaks_the_call(said: bytes) -> None:
    """A peer that does not speak HTTP is named as such."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(said)
        await reader.read()

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        with pytest.raises(ConnectionBroken, match="not HTTP"):
            await connections.send(origin, GET, silence_s=5)


@pytest.mark.asyncio
async def test_unasked_bytes_spoil_the_connection_only() -> None:
    """What follows an answer is never taken for the answer to the next request."""
    opened = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await asked(reader)
        one = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
        writer.write(one + b"ok" + one + b"no")
        await reader.read()

    async with peer(talk) as origin, aclosing(Connections()) as connections:
        assert await get(connections, origin) == b"ok"
        assert await get(connections, origin) == b"ok"
        assert opened == 2


@pytest.mark.asyncio
async def test_head_has_no_body() -> None:
    """The answer to HEAD ends with its head, whatever length that speaks of."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n")
        await reader.read()

    head = Outgoing(method="HEAD", target="/", headers=())
    async with peer(talk) as origin, aclosing(Connections()) as connections:
        answer = await connections.send(origin, head, silence_s=5)
        assert (answer.status, await whole(answer)) == (200, b"")


@pytest.mark.asyncio
async def test_wrong_addresses_are_named() -> None:
    """Nobody there, another scheme and split headers are sentences."""
    nobody = Origin(scheme="http", host="127.0.0.1", port=1)
    secret = Origin(scheme="https", host="127.0.0.1", port=1)
    split = Outgoing(method="GET", target="/", headers=((b"a", b"b\r\nc: d"),))
    async with aclosing(Connections()) as connections:
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
            await connections.send(nobody, GET)
        with pytest.raises(WrongAddress, match="https"):
            await connections.send(secret, GET)
        with pytest.raises(WrongAddress, match="line break"):
            await connections.send(nobody, split)
    with pytest.raises(ConnectFailed, match="closed"):
        await connections.send(nobody, GET)
