"""Parking must not change a word: the same tokens with it as without it.

One thread, one request at a time and the same prefill boundaries on both sides, since
another batch shape may round differently. The session that is never parked is the
reference.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from kvalet.backends import Message
from kvalet.backends.llama import LlamaBackend

from ...turns import run_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURNS: Final = 4
OUTPUT_TOKENS: Final = 10
QUESTION: Final = Message(role="user", content="List the files, then fix the test.")
RESULTS: Final = (
    "\nsetup.py README tests/test_sum.py\n",
    "\nAssertionError: sum of 2 and 2 is 5\n",
    "\n1 file changed, 1 insertion\n",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(model_path: Path) -> AsyncGenerator[LlamaBackend, None]:
    """One engine per model."""
    async with aclosing(
        await LlamaBackend.start(model_path=model_path, context_tokens=1024)
    ) as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def inputs(backend: LlamaBackend) -> list[list[int]]:
    """The new tokens of every turn: a question, then results of tools."""
    first = await backend.encode_chat([QUESTION])
    return [first, *[await backend.encode(result) for result in RESULTS]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(
    backend: LlamaBackend, inputs: list[list[int]]
) -> list[tuple[int, ...]]:
    """The outputs of a session that stays in its slot all the time."""
    history: list[int] = []
    outputs: list[tuple[int, ...]] = []
    for number, new_tokens in enumerate(inputs):
        turn = await run_turn(backend, 0, history + new_tokens, OUTPUT_TOKENS)
        assert (turn.prefilled.reused_tokens > 0) == (number > 0)
        history += [*new_tokens, *turn.output]
        outputs.append(turn.output)
    await backend.release(0)
    return outputs


async def parked_between_turns(
    backend: LlamaBackend,
    inputs: list[list[int]],
    *,
    slots: tuple[int, ...],
    restart: bool = False,
) -> list[tuple[int, ...]]:
    """Run the same session, exported, released and imported between its turns."""
    history: list[int] = []
    outputs: list[tuple[int, ...]] = []
    for number, new_tokens in enumerate(inputs):
        slot = slots[number % len(slots)]
        following = slots[(number + 1) % len(slots)]
        turn = await run_turn(backend, slot, history + new_tokens, OUTPUT_TOKENS)
        assert number == 0 or turn.prefilled.reused_tokens == len(history) - 1
        history += [*new_tokens, *turn.output]
        outputs.append(turn.output)
        state = await backend.export_kv(slot, "session", turn.held)
        await backend.release(slot)
        if restart:
            await backend.restart()
        await backend.import_kv(following, state, turn.held)
    await asyncio.gather(*map(backend.release, slots))
    return outputs


async def test_the_reference_is_a_conversation(
    reference: list[tuple[int, ...]],
) -> None:
    """There are four turns, and not all alike: identity would show nothing then."""
    assert len(reference) == TURNS and len(set(reference)) > 1
    assert all(len(output) == OUTPUT_TOKENS for output in reference)


async def test_parking_changes_no_token(
    backend: LlamaBackend,
    inputs: list[list[int]],
    reference: list[tuple[int, ...]],
) -> None:
    """Out of the slot and back into it between all turns."""
    assert await parked_between_turns(backend, inputs, slots=(1,)) == reference


async def test_another_slot_changes_no_token(
    backend: LlamaBackend,
    inputs: list[list[int]],
    reference: list[tuple[int, ...]],
) -> None:
    """Every turn in the other slot."""
    assert await parked_between_turns(backend, inputs, slots=(0, 1)) == reference


async def test_another_process_changes_no_token(
    backend: LlamaBackend,
    inputs: list[list[int]],
    reference: list[tuple[int, ...]],
) -> None:
    """Every turn in a process that knows nothing but the parked state."""
    outputs = await parked_between_turns(backend, inputs, slots=(0,), restart=True)
    assert outputs == reference
