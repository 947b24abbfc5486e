"""Says what happens: every event as a log line."""

from .log import log_events, make_logger

__all__ = ["log_events", "make_logger"]
