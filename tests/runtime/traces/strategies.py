"""Arbitrary traces that obey the rules, for hypothesis."""

from typing import Any, get_args

from hypothesis import strategies as st

from kvalet.runtime.tool_class import ToolClass
from kvalet.runtime.traces import (
    SCHEMA,
    Header,
    Source,
    Step,
    Tool,
    Trace,
    TraceSession,
)
from kvalet.runtime.traces.schema import (
    Flag,
    GapSource,
    HashScope,
    Next,
    Status,
)

TEXTS = st.text(min_size=1, max_size=8)
COUNTS = st.none() | st.integers(0, 10**9)


def choice(literal: Any) -> st.SearchStrategy[Any]:
    """One of the values of a Literal."""
    return st.sampled_from(get_args(literal))


@st.composite
def tools(draw: st.DrawFn, id: str) -> Tool:
    """A tool call of this id."""
    return Tool(
        id=id,
        name=draw(st.none() | TEXTS),
        class_name=draw(st.none() | choice(ToolClass)),
        start_ms=draw(st.none() | st.integers(-1000, 1000)),
        dur_ms=draw(COUNTS),
        internal_ms=draw(COUNTS),
        approval_ms=draw(COUNTS),
        status=draw(choice(Status)),
        input_bytes=draw(COUNTS),
        output_tokens=draw(COUNTS),
        output_bytes=draw(COUNTS),
    )


@st.composite
def steps(draw: st.DrawFn, session: str, number: int, context: int) -> Step:
    """A step that shares some of a context of this many tokens."""
    prefix = draw(st.none() | st.just(context) | st.integers(0, context))
    new = draw(st.integers(0, 500))
    is_known = draw(st.integers(0, 9)) > 0
    return Step(
        session=session,
        step=number,
        t_ms=draw(st.none() | st.just(number * 10)),
        model=draw(st.none() | TEXTS),
        input_tokens=(prefix or 0) + new if is_known else None,
        cached_tokens=draw(COUNTS),
        prefix_tokens=prefix if is_known else None,
        new_tokens=new if is_known and prefix is not None else None,
        output_tokens=draw(st.none() | st.integers(0, 300)),
        reasoning_tokens=draw(COUNTS),
        hash_ids=draw(st.none() | st.just((1, 2**63, 3))),
        block_size=draw(st.none() | st.integers(1, 512)),
        hash_scope=draw(st.none() | choice(HashScope)),
        llm_ms=draw(COUNTS),
        ttft_ms=draw(COUNTS),
        tools=tuple(
            draw(tools(f"{number}.{index}")) for index in range(draw(st.integers(0, 2)))
        ),
        tool_ms=draw(COUNTS),
        user_ms=draw(COUNTS),
        overhead_ms=draw(COUNTS),
        gap_ms=draw(COUNTS),
        gap_source=draw(st.none() | choice(GapSource)),
        next=draw(choice(Next)),
        q=tuple(draw(st.lists(choice(Flag), unique=True, max_size=2))),
    )


@st.composite
def sessions(draw: st.DrawFn, id: str) -> TraceSession:
    """A session whose contexts grow, shrink or are unknown."""
    made: list[Step] = []
    context = 0
    for number in range(draw(st.integers(1, 5))):
        step = draw(steps(id, number, context))
        context = (step.input_tokens or 0) + (step.output_tokens or 0)
        made.append(step)
    return TraceSession(
        id=id,
        arrival_ms=draw(st.integers(0, 10**6)),
        class_name=draw(st.none() | TEXTS),
        blocking=draw(st.booleans()),
        steps=tuple(made),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A trace of one to three sessions."""
    ids = draw(st.lists(TEXTS, min_size=1, max_size=3, unique=True))
    note = draw(st.none() | TEXTS)
    source = Source(format="test", files=draw(st.none() | st.just(1)), note=note)
    return Trace(
        header=Header(schema=SCHEMA, source=source),
        sessions=tuple(draw(sessions(id)) for id in ids),
    )
