"""What clients and servers say to each other, read without doing any I/O."""

from .answer import Call, Timings, Usage
from .api import Api, model_call_api
from .errors import BadRequest, EventTooLong, WireError
from .events import SSEReader, event_data, event_name
from .identity import Identity, identify
from .lineage import Lineage, without_billing
from .request import Fields, ParsedCall, edit, parse_call
from .results import Result
from .shapes import error_answer, error_type, stream_error
from .tap import Tap

__all__ = [
    "Api",
    "BadRequest",
    "Call",
    "EventTooLong",
    "Fields",
    "Identity",
    "Lineage",
    "ParsedCall",
    "Result",
    "SSEReader",
    "Tap",
    "Timings",
    "Usage",
    "WireError",
    "edit",
    "error_answer",
    "error_type",
    "event_data",
    "event_name",
    "identify",
    "model_call_api",
    "parse_call",
    "stream_error",
    "without_billing",
]
