"""Conversations found again by what they begin with."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.runtime.wire.json_values import is_list
from kvalet.runtime.wire.lineage import (
    Lineage,
    canonical_head,
    canonical_items,
    lineage,
    text_blocks,
    token_blocks,
)

TOOL = {"name": "Bash", "input_schema": {"type": "object"}}
RAW = dict[str, msgspec.Raw]


def of(body: dict[str, object]) -> Lineage:
    """Return the lineage of a messages request."""
    fields = msgspec.json.decode(msgspec.json.encode(body), type=RAW)
    items = body["messages"]
    assert is_list(items)
    return lineage(canonical_head(fields), canonical_items(items))


def marked(text: str) -> dict[str, object]:
    """Return a text block with a mark, as Claude Code sets it on its newest message."""
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def asked(*messages: object, system: object = "Be brief.") -> dict[str, object]:
    """Return a messages request."""
    return {
        "model": "m",
        "system": system,
        "tools": [TOOL],
        "messages": [{"role": "user", "content": content} for content in messages],
    }


def test_a_continuation_shares_all_of_its_past() -> None:
    """What a request shares with the one before it is all of that."""
    before, after = of(asked("a", "b")), of(asked("a", "b", "c"))
    assert (before.count, after.count) == (3, 4)
    assert before.shared(after) == after.shared(before) == 3
    assert after[2] == before.tail == before[-1]
    with pytest.raises(IndexError):
        before[3]


def test_wandering_marks_change_nothing() -> None:
    """Cache marks move to the newest message each turn; the lineage stays the same."""
    first = of(asked([marked("a")]))
    second = of(asked([{"type": "text", "text": "a"}], [marked("b")]))
    third = of(asked("a", "b", [marked("c")]))
    assert first.shared(second) == 2
    assert second.shared(third) == 3
    tooled = asked("a")
    tools = [{**TOOL, "cache_control": {"type": "ephemeral"}}]
    assert of({**tooled, "tools": tools}).shared(of(asked([marked("a")]))) == 2


def test_the_billing_line_changes_nothing() -> None:
    """Claude Code's billing line carries a checksum that is new each time."""
    lineages = [
        of(asked("a", system=f"x-anthropic-billing-header: cch={n}\nBe brief."))
        for n in range(2)
    ]
    blocks = [
        of(
            asked(
                "a",
                system=[
                    {"type": "text", "text": f"x-anthropic-billing-header: cch={n}"},
                    marked("Be brief."),
                ],
            )
        )
        for n in range(2)
    ]
    plain = of(asked("a"))
    assert {each.tail for each in (*lineages, *blocks)} == {plain.tail}


def test_other_heads_share_nothing() -> None:
    """Model, system prompt and tools are part of every conversation."""
    mine = of(asked("a"))
    assert mine.shared(of(asked("a", system="Be long."))) == 0
    assert mine.shared(of({**asked("a"), "model": "n"})) == 0
    assert mine.shared(of({**asked("a"), "tools": []})) == 0


def test_an_edit_shares_what_is_before_it() -> None:
    """Requests that part in the middle share what both begin with, and no more."""
    assert of(asked("a", "b", "c")).shared(of(asked("a", "x", "c"))) == 2


@given(st.lists(st.text(max_size=3), max_size=8), st.lists(st.text(max_size=3)))
def test_shared_is_the_common_prefix(mine: list[str], others: list[str]) -> None:
    """Searching for the end of what two share finds what comparing all does."""
    common = 0
    for left, right in zip(mine, others, strict=False):
        if left != right:
            break
        common += 1

    def items(texts: list[str]) -> Iterable[bytes]:
        return [msgspec.json.encode(text) for text in texts]

    shared = lineage(b"h", items(mine)).shared(lineage(b"h", items(others)))
    assert shared == common + 1


def test_prompts_without_messages_have_blocks() -> None:
    """A longer text or list of tokens shares the whole blocks of a shorter one."""
    text = "x" * 3000
    longer = lineage(b"", text_blocks(text + "y" * 1000))
    assert lineage(b"", text_blocks(text)).shared(longer) == 3
    ids = list(range(600))
    more = lineage(b"", token_blocks([*ids, 1, 2]))
    assert lineage(b"", token_blocks(ids)).shared(more) == 3
