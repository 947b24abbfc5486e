"""What stands before the gateway hands in, and what it can ask for.

The sidecar and the in-process transports are two fronts of one gateway. An answer is
``backends.http.Answer`` in both.
"""

from dataclasses import dataclass

from ...backends.http import Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """A client's request, whole. Header names are lower case.

    ``tenant`` follows from the client's credential alone; "" is the only one where
    there are no keys. ``request_id`` goes into logs and into the answer.
    """

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    tenant: str = ""
    request_id: str = ""

    def header(self, name: bytes) -> bytes | None:
        """Return the value of the first header of this (lower case) name."""
        for each, value in self.headers:
            if each == name:
                return value
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEvent:
    """What a client says of a tool call itself: it began, or it ended.

    ``session`` and ``agent`` are as in the client's own headers. ``seconds`` and
    ``status`` (ok, error, timeout, cancelled) are of an end; ``expected_s`` is of a
    start.
    """

    session: str
    agent: str = ""
    call: str
    tool: str
    began: bool
    seconds: float | None = None
    status: str = "ok"
    expected_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """A lane of a session as an operator sees it. Ids are the client's, tokens numbers.

    ``lane`` is the id by which it is parked, dropped or ended. ``phase`` is one of
    queued, prefill, decode, tool, idle; ``residency`` is resident, parked, moving or
    absent. ``source`` says where its identity comes from.
    """

    lane: str
    session: str
    agent: str
    tenant: str
    source: str
    model: str
    phase: str
    residency: str
    tokens: int
    turns: int
    open_tools: tuple[str, ...]
    idle_s: float
