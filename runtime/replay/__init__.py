"""Replays a trace through the runtime, closed loop, and says what each policy cost."""

from .driver import ReplaySettings, replay_trace
from .engines import EngineOptions
from .measure import Measure
from .report import Report, RunReport, write_report
from .run import Progress, Replay, RunOptions
from .table import print_report

__all__ = [
    "EngineOptions",
    "Measure",
    "Progress",
    "Replay",
    "ReplaySettings",
    "Report",
    "RunOptions",
    "RunReport",
    "print_report",
    "replay_trace",
    "write_report",
]
