"""A session, a slow tool, a park, a restore: python examples/embedded.py"""

import asyncio

import kvalet
from kvalet.scheduler import Copied, Event, Restored


def say(event: Event) -> None:
    """Print what the runtime moves."""
    if isinstance(event, Copied | Restored):
        act = "parked" if isinstance(event, Copied) else "restored"
        size_mb, took_ms = event.nbytes / 1e6, event.seconds * 1000
        print(f"{act} {event.kv_tokens} tokens, {size_mb:.1f} MB, in {took_ms:.0f} ms")


async def main() -> None:
    """Ask, run a tool while the state is parked, ask again."""
    notes = "The parser reads one line at a time and never looks back. " * 20
    async with (
        kvalet.local(slots=1, policy="park", observers=[say]) as runtime,
        runtime.session() as session,
    ):
        first = await session.turn(notes + "What does the parser read?", max_tokens=16)
        async with session.tool("Bash"):
            await asyncio.sleep(1)  # the tests run; the slot is free for others
        second = await session.turn("All tests pass. What now?", max_tokens=16)
    used = second.usage
    rate_s = first.usage.ttft_s / first.usage.prompt_tokens
    print(
        f"reused {used.reused_tokens} of {used.prompt_tokens} tokens: first token in "
        f"{used.ttft_s:.2f} s instead of about {rate_s * used.prompt_tokens:.2f} s"
    )


if __name__ == "__main__":
    asyncio.run(main())
