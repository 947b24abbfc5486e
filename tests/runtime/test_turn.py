"""Turns: what a caller gets, and that a turn which is given up leaves no trace."""

import asyncio
import itertools
from collections.abc import Awaitable
from contextlib import suppress

import anyio
import pytest

from kvalet.backends import BackendError, EngineLost, FinishReason, Message
from kvalet.runtime.clock import run_in_virtual_time
from kvalet.runtime.errors import (
    SessionBusy,
    SessionEnded,
    TurnRefused,
    Unsupported,
    WrongInput,
)
from kvalet.runtime.turn import Turn
from kvalet.scheduler import (
    Phase,
    PrefillDone,
    RestoreStarted,
    SchedulerSettings,
    TurnAborted,
    TurnRejected,
    TurnSubmitted,
)

from .backends import DyingEngine, KeepsFirstToken, RoundBackend, Scribe, Stream
from .world import CancelAt, World, ask, open_world, virtual

# ---- what a caller gets --------------------------------------------------------------


@virtual
async def test_a_reply_says_what_the_turn_cost() -> None:
    """100 tokens of prompt take 1 s, four more of answer 0.4 s: usage says so."""
    async with open_world() as world:
        reply = await ask(world.session("a"), 100)
        assert reply.token_ids == (0,) * 5
        assert reply.finish is FinishReason.LENGTH
        usage = reply.usage
        assert (usage.prompt_tokens, usage.reused_tokens) == (100, 0)
        assert usage.output_tokens == 5
        times_s = (usage.queue_s, usage.ttft_s, usage.turn_s)
        assert times_s == pytest.approx((0, 1.0, 1.4))


@virtual
async def test_the_next_turn_reuses_the_conversation() -> None:
    """The prompt is the whole history; all but its last sampled token is reused."""
    async with open_world("keep") as world:
        session = world.session("a")
        await ask(session, 100)
        reply = await ask(session, 10)
        assert session.context_tokens == 105 + 15
        assert reply.usage.prompt_tokens == 115
        assert reply.usage.reused_tokens == 104
        assert reply.usage.ttft_s == pytest.approx(0.11)


@virtual
async def test_an_answer_of_one_token_needs_no_decode() -> None:
    """With max_tokens 1 the prefill is the whole turn; the next one builds on it."""
    async with open_world("keep") as world:
        session = world.session("a")
        reply = await ask(session, 10, max_tokens=1)
        assert (reply.token_ids, reply.finish) == ((0,), FinishReason.LENGTH)
        assert reply.usage.turn_s == pytest.approx(0.1)
        assert (await ask(session, 10)).usage.reused_tokens == 10


@virtual
async def test_a_first_token_that_comes_with_the_decode() -> None:
    """An engine that keeps the first token for the decode gives the same answer."""
    async with open_world("keep", backend=KeepsFirstToken()) as world:
        session = world.session("a")
        first, second = await ask(session, 10), await ask(session, 10)
        assert (len(first.token_ids), len(second.token_ids)) == (5, 5)
        assert second.usage.reused_tokens == 14


@virtual
async def test_chunks_come_as_they_are_sampled() -> None:
    """A consumer sees each chunk at once; with the last one the turn has ended."""
    async with open_world(backend=Stream()) as world:
        seen: list[tuple[int, Phase]] = []
        async with world.session("a").turn([1] * 10, max_tokens=4) as stream:
            async for chunk in stream:
                seen.append((len(chunk.token_ids), world.lane("a").phase))
        assert seen == [(1, Phase.DECODE)] * 3 + [(1, Phase.IDLE)]
        assert stream.usage.output_tokens == 4
        assert world.lane("a").phase is Phase.IDLE


@virtual
async def test_keep_tokens_compacts_the_history() -> None:
    """Only what is kept is part of the next prompt, and it is reused."""
    async with open_world("keep") as world:
        session = world.session("a")
        await ask(session, 100)
        reply = await ask(session, 20, keep_tokens=40)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (60, 59)
        assert session.context_tokens == 65


@virtual
async def test_keep_tokens_reuses_no_more_than_is_kept() -> None:
    """Where the new text differs from the old, reuse ends with what is kept."""
    async with open_world("keep") as world:
        session = world.session("a")
        await ask(session, 100)
        reply = await session.turn([2] * 20, max_tokens=5, keep_tokens=40)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (60, 40)


@pytest.mark.parametrize("keep_tokens", [-1, 16])
@virtual
async def test_keep_tokens_beyond_the_conversation(keep_tokens: int) -> None:
    """keep_tokens must lie within the conversation; the sentence says its length."""
    async with open_world() as world:
        session = world.session("a")
        await ask(session, 10)
        with pytest.raises(WrongInput, match=f"between 0 and 15.*not {keep_tokens}"):
            await ask(session, 10, keep_tokens=keep_tokens)
        assert (await ask(session, 10)).usage.prompt_tokens == 25


@virtual
async def test_nothing_to_say_is_wrong_input() -> None:
    """An empty prompt and an answer of no tokens are refused, and harm nothing."""
    async with open_world() as world:
        session = world.session("a")
        with pytest.raises(WrongInput, match="prompt is empty"):
            await session.turn([])
        with pytest.raises(WrongInput, match="at least 1, not 0"):
            session.turn([1], max_tokens=0)
        assert (await ask(session, 10)).usage.prompt_tokens == 10


@virtual
async def test_text_needs_a_tokenizer() -> None:
    """Text on a backend without one is Unsupported, and the session can go on."""
    async with open_world() as world:
        session = world.session("a")
        with pytest.raises(Unsupported, match="RoundBackend has no tokenizer"):
            await session.turn("hello")
        await ask(session)


@virtual
async def test_text_is_tokenised_once() -> None:
    """Each text is encoded when it is said; the history stays token ids."""
    async with open_world("keep", backend=Scribe()) as world:
        session = world.session("a")
        await session.turn("hello", max_tokens=5)
        reply = await session.turn("again", max_tokens=5)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (15, 9)


@virtual
async def test_chat_replaces_the_conversation() -> None:
    """chat() gives all messages; what they share with the last prompt is reused."""
    async with open_world("keep", backend=Scribe()) as world:
        session = world.session("a")
        system = {"role": "system", "content": "be brief"}
        first = await session.chat([system, Message(role="user", content="hi")])
        again = await session.chat([system, {"role": "user", "content": "ho"}])
        shared = len("system:be brief\nuser:h")
        assert first.usage.prompt_tokens == len("system:be brief\nuser:hi\n")
        assert again.usage.reused_tokens == shared
        assert session.context_tokens == again.usage.prompt_tokens + 256


@virtual
async def test_a_chat_message_lacks_something() -> None:
    """The sentence names the missing key and shows the message."""
    async with open_world(backend=Scribe()) as world:
        session = world.session("a")
        with pytest.raises(
            WrongInput, match=r"needs 'content', got \{'role': 'user'\}"
        ):
            await session.chat([{"role": "user"}])
        await ask(session)


@virtual
async def test_iterating_needs_the_block() -> None:
    """A turn that was not entered cannot be iterated over."""
    async with open_world() as world:
        turn = world.session("a").turn([1])
        with pytest.raises(WrongInput, match="async with"):
            aiter(turn)


@virtual
async def test_a_turn_that_nobody_reads_costs_nothing() -> None:
    """Entering and leaving without reading submits nothing."""
    async with open_world() as world:
        async with world.session("a").turn([1] * 10):
            pass
        assert world.heard(TurnSubmitted) == []


# ---- what a caller cannot have -------------------------------------------------------


@virtual
async def test_a_turn_that_never_fits_is_refused_with_numbers() -> None:
    """TurnRefused says session, prompt, answer and limit; the session goes on."""
    async with open_world("keep") as world:
        session = world.session("a")
        await ask(session, 100)
        with pytest.raises(TurnRefused) as refusal:
            await ask(session, 900)
        assert str(refusal.value) == (
            "session 'a': the turn may come to 1010 tokens (1005 of prompt, 5 of "
            "output); one sequence holds 1000"
        )
        assert len(world.heard(TurnRejected)) == 1
        assert (await ask(session, 10)).usage.reused_tokens == 104


@virtual
async def test_the_kv_memory_limits_a_turn_too() -> None:
    """A turn beyond all KV tokens together is refused although the context has room."""
    backend = RoundBackend(kv_tokens=50)
    async with open_world(backend=backend) as world:
        with pytest.raises(TurnRefused, match="one sequence holds 50"):
            await ask(world.session("a"), 46)
        await ask(world.session("b"), 45)


@virtual
async def test_a_session_is_not_closed_under_its_turn() -> None:
    """Closing it meanwhile is SessionBusy; the turn goes on."""
    async with open_world() as world:
        session = world.session("a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, session, 100)
            await anyio.sleep(0.5)
            with pytest.raises(SessionBusy, match="'a' has a turn in progress"):
                await session.aclose()
        assert session.context_tokens == 105


@virtual
async def test_a_closed_session_takes_no_turn() -> None:
    """SessionEnded after aclose(); closing again is no error."""
    async with open_world() as world:
        session = world.session("a")
        await session.aclose()
        await session.aclose()
        with pytest.raises(SessionEnded, match="'a' is closed"):
            await ask(session)


@virtual
async def test_a_dying_engine_costs_one_turn() -> None:
    """EngineLost reaches the caller; the conversation is as before and goes on."""
    async with open_world("keep", backend=DyingEngine()) as world:
        session = world.session("a")
        with pytest.raises(EngineLost, match="the engine died"):
            await ask(session, 100)
        [aborted] = world.heard(TurnAborted)
        assert aborted.reason == "EngineLost: the engine died"
        assert session.context_tokens == 0
        reply = await ask(session, 100)
        assert (reply.usage.prompt_tokens, reply.usage.reused_tokens) == (100, 0)


@virtual
async def test_another_session_survives_a_dying_engine() -> None:
    """What one caller meets, the caller on the other slot does not."""
    async with open_world("keep", backend=DyingEngine(slots=2)) as world:
        unlucky, lucky = world.session("a"), world.session("b")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect, BackendError, ask(unlucky, 10))
            tasks.start_soon(ask, lucky, 10)
        assert lucky.context_tokens == 15


async def _expect(kind: type[Exception], turn: Awaitable[object]) -> None:
    with pytest.raises(kind):
        await turn


# ---- a turn that is given up ---------------------------------------------------------
#
# The scene: "a" has been parked while its tool ran and wants to go on; "b" holds the
# only slot, or has just let it go. The turn of "a" is queued, restored, prefilled and
# decoded, and is given up at every point of that.


async def _prepare(world: World) -> None:
    """Leave "a" parked with 104 tokens, and "b" in the middle of its prefill."""
    a, b = world.session("a"), world.session("b")
    await ask(a, 100)
    async with a.tool("Bash"):
        await anyio.sleep(100)
        world.background = asyncio.create_task(ask(b, 100))
        await anyio.sleep(0.5)


async def _prove_no_trace(world: World, finished: bool) -> None:
    """The next turn of "a" has the tokens that it should have, and all ends well."""
    a = world.opened[0]
    assert world.lane("a").turn is None
    expected = 105 + 15 if finished else 105
    assert a.context_tokens == expected
    assert world.background is not None
    await world.background
    await world.rest()
    held = world.lane("a").kv_tokens if world.lane("a").slot is not None else 0
    other = world.lane("b").kv_tokens if world.lane("b").slot is not None else 0
    assert world.runtime.scheduler.reserved_tokens == held + other
    reply = await ask(a, 10)
    assert reply.usage.prompt_tokens == expected + 10
    assert a.context_tokens == expected + 15
    await ask(world.opened[1], 10)


async def _give_up_at(suspension: int | None) -> tuple[int, bool]:
    """Cancel the turn at a suspension; return how many there were and if it ended."""
    async with open_world(backend=Stream()) as world:
        await _prepare(world)
        turn = CancelAt(
            _whole(world.opened[0].turn([1] * 10, max_tokens=5)), suspension
        )
        task = asyncio.ensure_future(_await(turn))
        await asyncio.wait([task])
        finished = not task.cancelled()
        await _prove_no_trace(world, finished)
        return turn.suspensions, finished


async def _whole(turn: Turn) -> None:
    await turn


async def _await(awaitable: Awaitable[object]) -> None:
    await awaitable


def test_cancelled_at_every_suspension() -> None:
    """Wherever the turn waits when it is cancelled, nothing of it is left."""
    suspensions, finished = run_in_virtual_time(_give_up_at(None))
    assert finished and suspensions >= 6
    for suspension in range(1, suspensions + 1):
        reached, finished = run_in_virtual_time(_give_up_at(suspension))
        assert reached >= suspension and not finished


async def _give_up_after(seconds: float, rounds: int) -> bool:
    """Cancel the turn after that time and that many rounds of the loop."""
    async with open_world(backend=Stream()) as world:
        await _prepare(world)
        task = asyncio.create_task(ask(world.opened[0], 10))
        await anyio.sleep(seconds)
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await _prove_no_trace(world, not task.cancelled())
        return task.cancelled()


async def _moments() -> list[float]:
    """Return when anything happens in the scene, counted from the turn's submission."""
    async with open_world(backend=Stream()) as world:
        await _prepare(world)
        began_s = anyio.current_time()
        await ask(world.opened[0], 10)
        assert world.heard(RestoreStarted, "a"), "the scene has no restore"
        times = {event.at_s - began_s for event in world.events}
        return sorted(time for time in times if time >= 0)


def test_cancelled_whenever_anything_happens() -> None:
    """At, just before and just after every event, to the single round of the loop."""
    moments = run_in_virtual_time(_moments())
    between = [(a + b) / 2 for a, b in itertools.pairwise(moments)]
    cancelled = [
        run_in_virtual_time(_give_up_after(moment, rounds))
        for moment in (*moments, *between)
        for rounds in range(8)
    ]
    assert cancelled.count(True) > 40 and cancelled.count(False) > 0


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("how", ["break", "raise"])
@virtual
async def test_a_consumer_that_leaves_early(chunks: int, how: str) -> None:
    """Leaving the block, by break or by an exception of its own, ends the turn."""
    async with open_world(backend=Stream()) as world:
        await _prepare(world)
        with suppress(ZeroDivisionError):
            async with world.opened[0].turn([1] * 10, max_tokens=6) as stream:
                count = 0
                async for _ in stream:
                    count += 1
                    if count == chunks and how == "break":
                        break
                    if count == chunks:
                        raise ZeroDivisionError
        assert [e.session for e in world.heard(TurnAborted)] == ["a"]
        await _prove_no_trace(world, finished=False)


@virtual
async def test_a_queued_turn_that_is_cancelled_lets_the_next_one_in() -> None:
    """The line goes on without it, in its order."""
    settings = SchedulerSettings(max_prefills=1)
    async with open_world("keep", settings=settings) as world:
        sessions = [world.session(name) for name in "abc"]
        tasks = [asyncio.create_task(ask(session, 100)) for session in sessions]
        await anyio.sleep(0.5)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert tasks[1].cancelled()
        done = [event.session for event in world.heard(PrefillDone)]
        assert done == ["a", "c"]


@virtual
async def test_a_deadline_cancels_too() -> None:
    """A deadline around a turn is no different from a cancelled task."""
    async with open_world("keep") as world:
        session = world.session("a")
        with anyio.move_on_after(0.5) as deadline:
            await ask(session, 100)
        assert deadline.cancelled_caught
        assert (await ask(session, 100)).usage.prompt_tokens == 100
