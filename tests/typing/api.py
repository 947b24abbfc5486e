"""How the public names are used, for the type checkers; never run."""

from typing import assert_type

import kvalet


async def embedded() -> None:
    async with kvalet.local(slots=2, policy="hold:2") as runtime:
        assert_type(runtime, kvalet.Runtime)
        session = runtime.session("s", parent=None)
        assert_type(session, kvalet.Session)
        assert_type(await session.turn("hello"), kvalet.Reply)
        assert_type(await session.turn([1, 2, 3], max_tokens=4), kvalet.Reply)
        messages = [{"role": "user", "content": "hello"}]
        async with session.chat(messages) as chunks:
            async for chunk in chunks:
                assert_type(chunk, kvalet.Chunk)
                assert_type(chunk.finish, kvalet.FinishReason | None)
        assert_type(chunks.usage, kvalet.Usage)
        async with session.tool("Bash") as call:
            assert_type(call, kvalet.ToolCall)
        assert_type(await session.tool("Read", expected_s=2.0).run(read()), bytes)
        async with session.fork("t") as fork:
            assert_type(fork, kvalet.Session)
            assert_type(await fork.turn("hello", deadline_s=1.5), kvalet.Reply)
        child = runtime.session(
            parent=session.id, tenant="t", weight=2.0, priority=1, blocking=False
        )
        assert_type(child.id, str)


async def read() -> bytes:
    return b""


def policies() -> tuple[kvalet.Policy, ...]:
    return kvalet.parse_policy("keep"), kvalet.parse_policy("hold:2")


def backends(one: kvalet.SimulatedBackend, other: kvalet.LlamaBackend) -> None:
    both: list[kvalet.Backend] = [one, other]
    assert_type(both[0].capabilities.slots, int)


def stores(store: kvalet.MemoryStore) -> kvalet.StateStore:
    return store
