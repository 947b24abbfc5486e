"""The records of a cc-trace, and the files that hold them.

One JSON object is one recording: a file of its own, or one of many lines. Fields that
nobody here needs are passed over, so that later releases can be read.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import DecodeError, Meta, Struct, ValidationError
from msgspec.json import Decoder

from ..errors import TraceUnreadable
from ..lines import Advance, read_lines

Seconds = Annotated[float, Meta(ge=-1e9, le=1e9)]
"""A time or a duration; what is larger was measured by no clock."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
"""A number of tokens."""


class Request(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "at_s": "t",
        "input_tokens": "in",
        "output_tokens": "out",
        "block_ids": "hash_ids",
        "llm_s": "api_time",
        "wait_s": "think_time",
        "ttft_s": "ttft",
    },
):
    """One call of a model, or a subagent with calls of its own.

    ``wait_s`` is the gap before the call. A subagent carries ``requests``, and stands
    where it ended: ``at_s`` is its end, as ``at_s`` less ``duration_ms`` is within a
    second of the end of the call that started it, in every recording at hand.
    """

    at_s: Seconds
    type: str = ""
    model: str | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    block_ids: list[int] | None = None
    input_types: list[str] | None = None
    stop: str | None = None
    llm_s: Seconds | None = None
    wait_s: Seconds | None = None
    ttft_s: Seconds | None = None
    agent_id: str | None = None
    duration_ms: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    status: str | None = None
    requests: "list[Request] | None" = None

    @property
    def is_subagent(self) -> bool:
        """Whether this is a subagent and no call."""
        return self.type == "subagent"


class Recording(Struct, frozen=True, kw_only=True):
    """One session and its subagents; block ids mean nothing outside of it."""

    requests: list[Request]
    id: str | None = None
    block_size: Annotated[int, Meta(ge=1, le=2**20)] = 64


_DECODER = Decoder(Recording)


def detects_recording(first_lines: Sequence[bytes]) -> bool:
    """Tell whether a file with these first lines claims to be a cc-trace.

    Only the names of two fields are looked for: a file that breaks off is one too.
    """
    return (
        bool(first_lines)
        and first_lines[0].startswith(b"{")
        and any(b'"hash_id_scope"' in line for line in first_lines)
        and any(b'"requests"' in line for line in first_lines)
    )


def read_recordings(path: Path, advance: Advance) -> Iterator[Recording]:
    """Yield the recordings of a file; raise TraceUnreadable where one is damaged."""
    for line, document in _documents(path, advance):
        try:
            yield _DECODER.decode(document)
        except ValidationError as error:
            complaint, _, place = str(error).partition(" - at `$")
            raise TraceUnreadable.at(
                path,
                f"no cc-trace says so: {complaint[:1].lower()}{complaint[1:]}",
                line=line,
                field=place.removesuffix("`").removeprefix(".") or None,
            ) from error
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceUnreadable.at(
                path, f"the recording is damaged: {error}", line=line
            ) from error


def _documents(path: Path, advance: Advance) -> Iterator[tuple[int, bytes]]:
    """Yield each line, or all lines as one where an object spreads over many."""
    lines = read_lines(path, advance)
    for number, content in lines:
        if content.endswith(b"}"):
            yield number, content
        else:
            rest = [following for _, following in lines]
            yield number, b"\n".join([content, *rest])
