"""Every event as one log line, JSON or for a console.

A line's name is the event's (``tool_ended``, ``restored``, ...), its fields are the
event's fields; moves of state say their milliseconds besides. There is no second
vocabulary, and nothing global is configured.
"""

import re
from collections.abc import Callable
from typing import Literal, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from ...scheduler import Copied, Event, Restored

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def make_logger(
    style: Literal["console", "json"] | str, file: TextIO
) -> FilteringBoundLogger:
    """Return a logger that writes to *file*; times of day in UTC."""
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=file.isatty())
    )
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(file),
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
    )
    return logger


def log_events(logger: FilteringBoundLogger) -> Callable[[Event], None]:
    """Return an observer that logs every event it hears."""
    names: dict[type[Event], tuple[str, tuple[str, ...]]] = {}

    def observe(event: Event) -> None:
        kind = type(event)
        if kind not in names:
            name = _WORD.sub("_", kind.__name__).lower()
            names[kind] = name, kind.__struct_fields__
        name, fields = names[kind]
        values = {field: getattr(event, field) for field in fields}
        if isinstance(event, Copied | Restored):
            values["ms"] = round(event.seconds * 1000, 3)
        logger.info(name, **values)

    return observe
