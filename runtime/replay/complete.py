"""A trace without gaps: what a replay does where the recording says nothing.

A step whose size is unknown becomes the least that makes a turn: the whole history, one
new token, one token of answer. A history that is longer than the step's input was cut
somewhere; it is cut at its end. The quality flags of the trace stay as they are, and
the report counts them.
"""

import msgspec

from ..traces import Step, Trace, TraceSession


def completed(trace: Trace) -> Trace:
    """Return *trace* with input, prefix, new and output tokens in every step."""
    return Trace(
        header=trace.header,
        sessions=tuple(_completed(session) for session in trace.sessions),
    )


def _completed(session: TraceSession) -> TraceSession:
    steps: list[Step] = []
    context_tokens = 0
    for step in session.steps:
        whole = _whole(step, context_tokens)
        assert whole.input_tokens is not None and whole.output_tokens is not None
        context_tokens = whole.input_tokens + whole.output_tokens
        steps.append(whole)
    return TraceSession(
        id=session.id,
        parent=session.parent,
        spawned_by=session.spawned_by,
        arrival_ms=session.arrival_ms,
        class_name=session.class_name,
        blocking=session.blocking,
        steps=tuple(steps),
    )


def _whole(step: Step, context_tokens: int) -> Step:
    kept = context_tokens
    if step.prefix_tokens is not None:
        kept = min(kept, step.prefix_tokens)
    if step.input_tokens is not None:
        kept = min(kept, step.input_tokens)
    wanted = kept + 1 if step.input_tokens is None else step.input_tokens
    new = max(wanted - kept, 0 if kept else 1)
    return msgspec.structs.replace(
        step,
        prefix_tokens=kept,
        new_tokens=new,
        input_tokens=kept + new,
        output_tokens=max(1, step.output_tokens or 0),
    )
