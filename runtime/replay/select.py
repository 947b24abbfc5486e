"""A part of a trace: some top-level sessions and whatever they spawned."""

from dataclasses import replace

from ..errors import WrongInput
from ..traces import Trace


def first_sessions(trace: Trace, count: int) -> Trace:
    """Return the first *count* top-level sessions by arrival, with all descendants."""
    if count < 1:
        raise WrongInput(f"the number of sessions must be at least 1, not {count}")
    roots = [session for session in trace.sessions if session.parent is None]
    roots.sort(key=lambda session: session.arrival_ms)
    chosen = {session.id for session in roots[:count]}
    added = True
    while added:
        children = {s.id for s in trace.sessions if s.parent in chosen} - chosen
        chosen |= children
        added = bool(children)
    sessions = tuple(session for session in trace.sessions if session.id in chosen)
    return replace(trace, sessions=sessions)
