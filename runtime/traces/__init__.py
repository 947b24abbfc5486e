"""Traces of agent sessions: one schema, read, written, imported, scaled, generated."""

from .errors import TraceError, TraceInvalid, TraceUnreadable
from .generate import generate
from .importers.claude_code import ClaudeCodeImporter
from .importers.importer import Importer
from .merge import merge_traces
from .read import read_traces
from .scale import scaled, scaled_to_fit
from .schema import SCHEMA, Header, SessionRecord, Source, Step, Tool
from .settings import GeneratorSettings
from .trace import Trace, TraceSession, context_tokens
from .write import encode_trace, write_trace

__all__ = [
    "SCHEMA",
    "ClaudeCodeImporter",
    "GeneratorSettings",
    "Header",
    "Importer",
    "SessionRecord",
    "Source",
    "Step",
    "Tool",
    "Trace",
    "TraceError",
    "TraceInvalid",
    "TraceSession",
    "TraceUnreadable",
    "context_tokens",
    "encode_trace",
    "generate",
    "merge_traces",
    "read_traces",
    "scaled",
    "scaled_to_fit",
    "write_trace",
]
