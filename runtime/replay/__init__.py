"""Replays a trace through the runtime, closed loop, and says what each policy cost."""

from .driver import ReplaySettings, replay_trace
from .measure import Measure
from .report import Report, RunReport, write_report
from .table import render_report

__all__ = [
    "Measure",
    "ReplaySettings",
    "Report",
    "RunReport",
    "render_report",
    "replay_trace",
    "write_report",
]
