"""Does the latency model keep its word?

    python examples/latency_calibration.py [--distributions FILE] [TRACE...]

Learns from one half of the sessions, foretells the calls of the other, and the other
way round. Prints which share of calls ended within each predicted quantile, and the
pinball loss in seconds beside that of one lognormal for all tools and that of each
tool's mean; the same for the time that remains when some has passed, and the expected
time beside the real one. Intervals are 95 % of a bootstrap over sessions. With
``--distributions FILE`` quantiles learned from all calls stand beside measured ones:
{"set": {"tool": {"quantiles_s": {"50": 0.1}}}}.
"""

import argparse
import hashlib
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
from rich.console import Console
from rich.progress import Progress

from kvalet.runtime.traces import Trace, TraceError, TraceSession, read_traces
from kvalet.scheduler.latency import LatencyModel

BUNDLED = Path(__file__).parent / "traces" / "coding-agents.jsonl"
SHARES = (0.10, 0.50, 0.90, 0.99)
ELAPSED_S = (0.0, 0.1, 1.0, 5.0, 30.0)
RESAMPLES = 1_000
SEED = 1
RIVALS = ("model", "lognormal", "mean")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, or a wait for the user, as it was recorded."""

    tool: str
    tool_class: str
    seconds: float
    status: str


class Lognormal:
    """One lognormal distribution for all tools, by the moments of the logarithm."""

    def __init__(self, calls: Sequence[Call]) -> None:
        logs = [math.log(max(call.seconds, 1e-3)) for call in calls]
        deviation = statistics.pstdev(logs)
        self._log_s = statistics.NormalDist(statistics.fmean(logs), deviation or 1e-3)

    def quantile_s(
        self, tool: str, tool_class: str, share: float, elapsed_s: float
    ) -> float:
        """Return the quantile, given that the call has lasted *elapsed_s*."""
        gone = self._log_s.cdf(math.log(elapsed_s)) if elapsed_s > 0 else 0.0
        rank = min(gone + share * (1.0 - gone), 1.0 - 1e-12)
        return max(0.0, math.exp(self._log_s.inv_cdf(rank)) - elapsed_s)


class Means:
    """Each tool's mean, at every share; all tools' mean where a tool is new."""

    def __init__(self, calls: Sequence[Call]) -> None:
        seconds = defaultdict[str, list[float]](list)
        for call in calls:
            seconds[call.tool].append(call.seconds)
        self._all_s = statistics.fmean(call.seconds for call in calls)
        self._mean_s = {tool: statistics.fmean(own) for tool, own in seconds.items()}

    def quantile_s(
        self, tool: str, tool_class: str, share: float, elapsed_s: float
    ) -> float:
        """Return what is left of the mean."""
        return max(0.0, self._mean_s.get(tool, self._all_s) - elapsed_s)


class Forecast(Protocol):
    """Foretells when a share of calls will have ended, in seconds from now."""

    def quantile_s(
        self, tool: str, tool_class: str, share: float, elapsed_s: float
    ) -> float: ...


Rivals = tuple[LatencyModel, Lognormal, Means]


@dataclass(slots=True)
class Score:
    """Sums over calls: how many ended within each quantile, and each rival's loss."""

    calls: int = 0
    within: list[int] = field(default_factory=lambda: [0] * len(SHARES))
    losses_s: list[float] = field(default_factory=lambda: [0.0] * len(RIVALS))
    expected_s: float = 0.0
    real_s: float = 0.0

    def add(self, call: Call, elapsed_s: float, rivals: Rivals) -> None:
        """Judge the forecasts of a call that is still open at *elapsed_s*."""
        left_s = call.seconds - elapsed_s
        self.calls += 1
        self.real_s += left_s
        self.expected_s += rivals[0].remaining_s(call.tool, call.tool_class, elapsed_s)
        forecasts: tuple[Forecast, ...] = rivals
        for place, share in enumerate(SHARES):
            for number, rival in enumerate(forecasts):
                foretold_s = rival.quantile_s(
                    call.tool, call.tool_class, share, elapsed_s
                )
                self.losses_s[number] += pinball_s(left_s, foretold_s, share)
                if number == 0:
                    self.within[place] += left_s <= foretold_s

    def __iadd__(self, other: "Score") -> "Score":
        self.calls += other.calls
        self.expected_s += other.expected_s
        self.real_s += other.real_s
        self.within = [a + b for a, b in zip(self.within, other.within, strict=True)]
        self.losses_s = [
            a + b for a, b in zip(self.losses_s, other.losses_s, strict=True)
        ]
        return self

    def shares(self) -> list[float]:
        """Return the share of calls within each quantile."""
        return [number / self.calls for number in self.within]

    def ratios(self) -> list[float]:
        """Return the model's loss over each other rival's."""
        return [self.losses_s[0] / max(loss, 1e-12) for loss in self.losses_s[1:]]


def pinball_s(seconds: float, foretold_s: float, share: float) -> float:
    """Return the pinball loss; its mean is least where the forecast is the quantile."""
    missed_s = seconds - foretold_s
    return missed_s * share if missed_s > 0 else missed_s * (share - 1.0)


Scores = dict[tuple[str, float], Score]
"""By tool (empty: all) and elapsed seconds."""


def main() -> None:
    """Read, judge, print; exit with 2 and a sentence where the input is no good."""
    parser = argparse.ArgumentParser(
        description="Check the predictions of the tool latency model on traces."
    )
    parser.add_argument("traces", nargs="*", type=Path, default=[BUNDLED])
    parser.add_argument("--distributions", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    try:
        with Progress(console=console, disable=not console.is_terminal) as bars:
            task = bars.add_task("reading", total=None)
            trace = read_traces(
                arguments.traces,
                progress=lambda done, total: bars.update(
                    task, completed=done, total=total
                ),
            )
            families = calls_by_family(trace)
            scores = judge(families, bars)
            print_scores(scores, bars)
        if arguments.distributions is not None:
            measured = read_distributions(arguments.distributions)
            compare(flat(families.values()), measured)
    except (TraceError, BadInput) as error:
        print(f"latency_calibration: {error}", file=sys.stderr)
        sys.exit(2)


class BadInput(Exception):
    """What was named on the command line cannot be judged."""


def calls_by_family(trace: Trace) -> dict[str, list[Call]]:
    """Return the calls of each session; those of subagents count as their parent's."""
    families = dict[str, list[Call]]()
    parents = {session.id: session.parent for session in trace.sessions}
    for session in trace.sessions:
        family = session.id
        while (parent := parents.get(family)) is not None:
            family = parent
        families.setdefault(family, []).extend(calls_of(session))
    return families


def calls_of(session: TraceSession) -> Iterable[Call]:
    """Yield what a session waited for and how long, where that is known."""
    for step in session.steps:
        for tool in step.tools:
            if tool.dur_ms is not None and tool.status != "open":
                yield Call(
                    tool.name or "unknown",
                    tool.class_name or "other",
                    tool.dur_ms / 1e3,
                    tool.status,
                )
        if step.user_ms:
            yield Call("user", "user", step.user_ms / 1e3, "ok")


def judge(families: dict[str, list[Call]], bars: Progress) -> list[Scores]:
    """Return the scores of every session, foretold from the half it is not in."""
    halves: tuple[list[list[Call]], ...] = ([], [])
    for family, calls in families.items():
        digest = hashlib.sha256(family.encode()).digest()
        halves[digest[0] % 2].append(calls)
    if not all(any(half) for half in halves):
        raise BadInput(
            f"{len(families)} sessions are too few to learn from one half of them and "
            "foretell the other"
        )
    task = bars.add_task("foretelling", total=len(families))
    scores = list[Scores]()
    for learned, foretold in (halves, halves[::-1]):
        rivals = learn(flat(learned))
        for calls in foretold:
            scores.append(score(calls, rivals))
            bars.advance(task)
    return scores


def learn(calls: list[Call]) -> Rivals:
    """Return the model and its rivals, all of which have seen *calls*.

    The rivals are fitted to tools alone, as the model keeps people apart.
    """
    model = LatencyModel()
    for call in calls:
        model.observe(
            tool=call.tool,
            tool_class=call.tool_class,
            seconds=call.seconds,
            status=call.status,
        )
    tools = [call for call in calls if call.tool != "user"]
    return model, Lognormal(tools), Means(tools)


def score(calls: Iterable[Call], rivals: Rivals) -> Scores:
    """Judge each call at each age it reached; how cancelled ones end is unknown."""
    scores: Scores = defaultdict(Score)
    for call in calls:
        if call.status == "cancelled" or call.tool == "user":
            continue
        for elapsed_s in ELAPSED_S:
            if elapsed_s == 0 or call.seconds > elapsed_s:
                scores["", elapsed_s].add(call, elapsed_s, rivals)
        scores[call.tool, 0.0].add(call, 0.0, rivals)
    return scores


def print_scores(scores: list[Scores], bars: Progress) -> None:
    """Print a line per tool, and lines of all tools with their intervals."""
    columns = "".join(f"{share:>7.0%}" for share in SHARES)
    losses = "".join(f"{name:>10}" for name in RIVALS)
    print(f"{'':<15}{'calls':>7}{'  within quantile':<28}{'  mean (s)':<20}  loss (s)")
    print(f"{'':<22}{columns}{'foretold':>10}{'real':>10}{losses}")
    totals = defaultdict[tuple[str, float], Score](Score)
    for one in scores:
        for key, value in one.items():
            totals[key] += value
    tools = [key for key in totals if key[0]]
    for key in sorted(tools, key=lambda key: -totals[key].calls):
        print_line(key[0], totals[key])
    for elapsed_s in ELAPSED_S:
        name = f"after {elapsed_s:g} s" if elapsed_s else "all tools"
        if ("", elapsed_s) in totals:
            print_line(name, totals["", elapsed_s])
            print_intervals([one.get(("", elapsed_s)) for one in scores], bars)


def print_line(name: str, total: Score) -> None:
    """Print the coverage, the mean, and the mean loss over calls and quantiles."""
    shares = "".join(f"{share:>7.1%}" for share in total.shares())
    means = (total.expected_s / total.calls, total.real_s / total.calls)
    losses = (loss / total.calls / len(SHARES) for loss in total.losses_s)
    figures = "".join(f"{figure:>10.3f}" for figure in (*means, *losses))
    print(f"{name:<15}{total.calls:>7}{shares}{figures}")


def print_intervals(scores: Sequence[Score | None], bars: Progress) -> None:
    """Print between what the figures lie when other sessions had been recorded."""
    known = [one for one in scores if one is not None]
    chance = random.Random(SEED)
    shares, ratios = list[list[float]](), list[list[float]]()
    task = bars.add_task("intervals", total=RESAMPLES)
    for _ in range(RESAMPLES):
        total = Score()
        for one in chance.choices(known, k=len(known)):
            total += one
        shares.append(total.shares())
        ratios.append(total.ratios())
        bars.advance(task)
    bars.remove_task(task)
    coverage = ", ".join(f"{low:.1%} to {high:.1%}" for low, high in interval(shares))
    print(f"{'':<6}coverage {coverage}")
    for rival, (low, high) in zip(RIVALS[1:], interval(ratios), strict=True):
        print(f"{'':<6}loss is {low:.2f} to {high:.2f} times that of the {rival}")


def interval(resamples: list[list[float]]) -> list[tuple[float, float]]:
    """Return the middle 95 % of each figure."""
    cut = len(resamples) // 40
    columns = [sorted(column) for column in zip(*resamples, strict=True)]
    return [(column[cut], column[-1 - cut]) for column in columns]


class Measured(msgspec.Struct):
    """What a file of distributions knows of a tool."""

    quantiles_s: dict[str, float]


def read_distributions(path: Path) -> dict[str, dict[str, Measured]]:
    """Return measured tools by set; what is none of a tool is passed over."""
    try:
        sets = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{path} holds no distributions: {error}") from error
    measured = defaultdict[str, dict[str, Measured]](dict)
    for name, tools in sets.items():
        for tool, content in tools.items():
            try:
                measured[name][tool] = msgspec.convert(content, Measured)
            except msgspec.ValidationError:
                continue
    return measured


def compare(calls: list[Call], measured: dict[str, dict[str, Measured]]) -> None:
    """Print learned quantiles beside measured ones, whatever class a call was of."""
    model = LatencyModel(half_life_calls=None)
    counts = defaultdict[str, int](int)
    for call in calls:
        counts[call.tool] += 1
        model.observe(
            tool=call.tool,
            tool_class=call.tool,
            seconds=call.seconds,
            status=call.status,
        )
    print("\nlearned / measured quantiles in seconds")
    for name, tools in measured.items():
        for tool in (tool for tool in tools if tool in counts):
            pairs = [
                f"{model.quantile_s(tool, tool, share):9.3f} / {known:<9.3f}"
                for share in SHARES
                if (known := tools[tool].quantiles_s.get(f"{share:.0%}"[:-1]))
            ]
            print(f"{name:<26} {tool:<12}{counts[tool]:>6} {' '.join(pairs)}")


def flat(lists: Iterable[list[Call]]) -> list[Call]:
    """Return all calls in one list."""
    return [call for calls in lists for call in calls]


if __name__ == "__main__":
    main()
