"""The report as people read it in a terminal: one column per policy, then what it says.

The closing sentences are computed from the same figures, and say so as plainly when a
policy does not pay.
"""

from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.table import Table

from .report import Report, RunReport, Summary

_Row = tuple[str, Callable[[RunReport], str]]

# Differences below this are what two runs of the same policy differ by here.
_NOISE = 0.05


def print_report(report: Report, console: Console) -> None:
    """Print tables and sentences on *console*."""
    parts: list[RenderableType] = [_policies(report)]
    tools = _tools(report)
    if tools.row_count:
        parts.append(tools)
    parts.extend(_sentences(report))
    console.print(*parts, sep="\n", highlight=False)


def _policies(report: Report) -> Table:
    trace = report.trace
    title = (
        f"{trace.sessions} sessions, {trace.steps} turns, {trace.tools} tool calls on "
        f"{report.backend} with {report.slots} slots"
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("seconds unless said", no_wrap=True)
    for run in report.runs:
        table.add_column(run.policy, justify="right", no_wrap=True)
    for number, group in enumerate(_ROWS):
        if number:
            table.add_section()
        for label, figure in group:
            table.add_row(label, *(figure(run) for run in report.runs))
    return table


def _quantiles(name: str, of: Callable[[RunReport], Summary]) -> list[_Row]:
    return [
        (f"{name}, mean", lambda run: _seconds(of(run).mean)),
        ("  p50", lambda run: _seconds(of(run).p50)),
        ("  p90", lambda run: _seconds(of(run).p90)),
        ("  p99", lambda run: _seconds(of(run).p99)),
        ("  max", lambda run: _seconds(of(run).max)),
    ]


_ROWS: list[list[_Row]] = [
    [
        ("whole run", lambda run: _seconds(run.makespan_s)),
        ("turns done / lost", lambda run: f"{run.turns} / {run.lost_turns}"),
    ],
    _quantiles("time to first token", lambda run: run.ttft_s),
    _quantiles("turn", lambda run: run.turn_s),
    _quantiles("session, start to end", lambda run: run.job_s),
    [
        ("tokens prefilled", lambda run: f"{run.tokens.prefilled:,}"),
        ("  of them again", lambda run: f"{run.tokens.reprefilled:,}"),
        ("tokens reused", lambda run: f"{run.tokens.reused:,}"),
        ("tokens decoded", lambda run: f"{run.tokens.decoded:,}"),
        ("accelerator busy", lambda run: _seconds(run.accelerator.busy_s)),
        ("  of it useful", lambda run: _share(run)),
    ],
    [
        ("parks", lambda run: f"{run.parks.count}"),
        (
            "  MB / mean ms",
            lambda run: _moved(run.parks.bytes, run.parks.seconds, run.parks.count),
        ),
        (
            "restores (verified)",
            lambda run: f"{run.restores.count} ({run.restores.verified})",
        ),
        (
            "  MB / mean ms",
            lambda run: _moved(
                run.restores.bytes, run.restores.seconds, run.restores.count
            ),
        ),
    ],
]


def _tools(report: Report) -> Table:
    """Tool latency as the last run measured it; it is the trace's in every run."""
    table = Table(title="tool calls", title_justify="left", header_style="bold")
    for name in (
        "tool",
        "calls",
        "mean",
        "p50",
        "p90",
        "p99",
        "max",
        "timeouts",
        "errors",
    ):
        table.add_column(name, justify="left" if name == "tool" else "right")
    for name, tool in report.runs[-1].tools.items() if report.runs else ():
        table.add_row(
            name,
            str(tool.count),
            *map(_seconds, (tool.mean, tool.p50, tool.p90, tool.p99, tool.max)),
            str(tool.timeouts),
            str(tool.errors),
        )
    return table


def _sentences(report: Report) -> Iterator[str]:
    if report.partial:
        yield "This report is partial: the replay was stopped before its end."
    runs = {run.policy: run for run in report.runs}
    if report.partial or len(runs) < 2:
        return
    baselines = [name for name in ("drop", "keep") if name in runs]
    for run in report.runs:
        if run.parks.count:
            for baseline in baselines:
                yield _compare(run, runs[baseline])


def _compare(run: RunReport, baseline: RunReport) -> str:
    name, other = run.policy, baseline.policy
    mine, theirs = run.job_s.mean or 0.0, baseline.job_s.mean or 0.0
    saved = baseline.tokens.prefilled - run.tokens.prefilled
    moved_s = run.parks.seconds + run.restores.seconds
    why = (
        f"it computed {saved:,} tokens less and spent {moved_s:.1f} s on moving "
        f"{(run.parks.bytes + run.restores.bytes) / 1e6:,.0f} MB"
    )
    if theirs > mine * (1 + _NOISE):
        return (
            f"{name} beats {other}: a session takes {theirs / mine:.2f}x less time; "
            f"{why}."
        )
    if mine > theirs * (1 + _NOISE):
        return (
            f"{name} does not pay against {other} here: a session takes "
            f"{mine / theirs:.2f}x more time; {why}."
        )
    return f"{name} and {other} are level here (session time within 5 %); {why}."


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 10 else f"{value:,.1f}"


def _share(run: RunReport) -> str:
    busy = run.accelerator.busy_s
    return f"{run.accelerator.useful_s / busy:.0%}" if busy else "-"


def _moved(size_bytes: int, seconds: float, count: int) -> str:
    return f"{size_bytes / 1e6:,.0f} / {seconds / count * 1e3:.1f}" if count else "-"
