"""Traces of agent sessions: one schema, read, written, imported, scaled, generated."""

from .errors import TraceError, TraceInvalid, TraceUnreadable
from .merge import merge_traces
from .read import read_traces
from .schema import SCHEMA, Header, SessionRecord, Source, Step, Tool
from .trace import Trace, TraceSession
from .write import encode_trace, write_trace

__all__ = [
    "SCHEMA",
    "Header",
    "SessionRecord",
    "Source",
    "Step",
    "Tool",
    "Trace",
    "TraceError",
    "TraceInvalid",
    "TraceSession",
    "TraceUnreadable",
    "encode_trace",
    "merge_traces",
    "read_traces",
    "write_trace",
]
