"""Makes traces of agents that never ran, shaped like ones that did.

No recorded set may be shipped, so this is the built-in workload: latencies by inverse
transform on measured quantiles, time limits as an atom, subagents as sessions of their
own, waits for the user apart from waits for tools. The same settings give the same
trace, and a session does not change when more sessions are asked for.
"""

from dataclasses import dataclass, field
from random import Random

import msgspec

from . import distributions as measured
from .scale import scaled
from .schema import SCHEMA, Header, Next, Source, Status, Step, Tool
from .settings import GeneratorSettings
from .trace import Trace, TraceSession


def generate(settings: GeneratorSettings) -> Trace:
    """Generate the trace of these settings; raise TraceError where one is senseless."""
    settings.check()
    arrivals = Random(f"{settings.seed}/arrivals")
    arrival_s = 0.0
    sessions: list[TraceSession] = []
    for number in range(settings.sessions):
        lane = _Lane(settings, id=f"s{number}", arrival_ms=round(arrival_s * 1000))
        sessions.append(lane.draw())
        sessions.extend(lane.children)
        arrival_s += arrivals.expovariate(settings.arrivals_per_s)
    source = Source(format="generated", note=settings.command_line())
    header = Header(schema=SCHEMA, source=source)
    trace = scaled(
        Trace(header=header, sessions=tuple(sessions)),
        token_scale=settings.token_scale,
        time_scale=settings.time_scale,
    )
    # The command line names the scales already.
    return Trace(header=header, sessions=trace.sessions)


@dataclass(slots=True, eq=False)
class _Lane:
    """A session while its steps are drawn, each from the context so far."""

    settings: GeneratorSettings
    id: str
    arrival_ms: int
    parent: str | None = None
    spawned_by: str | None = None
    t_ms: int = 0
    tool_count: int = 0
    children: list[TraceSession] = field(default_factory=list[TraceSession])
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(f"{self.settings.seed}/{self.id}")

    def draw(self) -> TraceSession:
        """Draw all steps; ``t_ms`` is then the span of the session."""
        steps: list[Step] = []
        count = self._step_count()
        for number in range(count):
            step = self._model_call(number, steps[-1] if steps else None)
            if number < count - 1:
                step = self._with_gap(step)
            self.t_ms += (step.llm_ms or 0) + (step.gap_ms or 0)
            steps.append(step)
        return TraceSession(
            id=self.id,
            parent=self.parent,
            spawned_by=self.spawned_by,
            arrival_ms=self.arrival_ms,
            class_name="interactive" if self.parent is None else "subagent",
            steps=tuple(steps),
        )

    def _step_count(self) -> int:
        settings, sigma = self.settings, measured.STEP_COUNT_SIGMA
        mean = (
            settings.mean_steps if self.parent is None else settings.subagent_mean_steps
        )
        # A lognormal has its mean at 1 when its exponent is shifted by half a variance.
        return max(1, round(mean * self.random.lognormvariate(-(sigma**2) / 2, sigma)))

    def _model_call(self, number: int, previous: Step | None) -> Step:
        prefix, new = self._context(previous)
        output = self._tokens(self.settings.output_tokens, measured.OUTPUT_SIGMA)
        llm_s = measured.model_call_s(prefix + new, new, output)
        return Step(
            session=self.id,
            step=number,
            t_ms=self.t_ms,
            input_tokens=prefix + new,
            prefix_tokens=prefix,
            new_tokens=new,
            output_tokens=output,
            llm_ms=round(llm_s * 1000),
            tool_ms=0,
            next="end",
        )

    def _context(self, previous: Step | None) -> tuple[int, int]:
        """Draw the prefix and the new tokens of the next input."""
        settings = self.settings
        if previous is None:
            message = self._tokens(
                settings.first_message_tokens, measured.FIRST_MESSAGE_SIGMA
            )
            return 0, settings.system_tokens + message
        prefix = (previous.input_tokens or 0) + (previous.output_tokens or 0)
        return prefix, self._tokens(settings.append_tokens, measured.APPEND_SIGMA)

    def _tokens(self, median: float, sigma: float) -> int:
        spread = sigma * self.settings.token_spread
        return max(1, round(median * self.random.lognormvariate(0.0, spread)))

    def _with_gap(self, step: Step) -> Step:
        settings, draw = self.settings, self.random.random()
        if self.parent is None and draw < settings.user_turn_probability:
            return self._with_user_wait(step)
        draw -= settings.user_turn_probability
        if self.parent is None and 0 <= draw < settings.subagent_probability:
            return _with_tools(step, (self._subagent(step),), "subagent")
        tools = tuple(self._tool() for _ in range(self._parallel_count()))
        return _with_tools(step, tools, "tool")

    def _with_user_wait(self, step: Step) -> Step:
        share = self.random.random()
        wait_s = self.settings.user_wait_s * measured.USER_WAITS.at(share)
        wait_ms = round(wait_s * 1000)
        return msgspec.structs.replace(
            step,
            tool_ms=0,
            user_ms=wait_ms,
            overhead_ms=0,
            gap_ms=wait_ms,
            gap_source="generated",
            next="user",
        )

    def _subagent(self, step: Step) -> Tool:
        """Draw a child; the call that spawns it lasts as long as the child does."""
        tool_id = self._next_tool_id()
        child = _Lane(
            self.settings,
            id=f"{self.id}.{len(self.children)}",
            arrival_ms=self.arrival_ms + self.t_ms + (step.llm_ms or 0),
            parent=self.id,
            spawned_by=tool_id,
        )
        self.children.append(child.draw())
        return Tool(
            id=tool_id,
            name="Task",
            class_name="subagent",
            start_ms=0,
            dur_ms=child.t_ms,
            child=child.id,
        )

    def _parallel_count(self) -> int:
        if self.random.random() >= self.settings.parallel_share:
            return 1
        counts, weights = zip(*measured.PARALLEL_COUNTS, strict=True)
        return self.random.choices(counts, weights)[0]

    def _tool(self) -> Tool:
        weights = [tool.weight for tool in measured.TOOLS]
        shape = self.random.choices(measured.TOOLS, weights)[0]
        latency_s, status = self._latency(shape)
        return Tool(
            id=self._next_tool_id(),
            name=shape.name,
            class_name=shape.class_name,
            start_ms=0,
            dur_ms=round(latency_s * 1000),
            status=status,
        )

    def _latency(self, shape: measured.ToolShape) -> tuple[float, Status]:
        settings = self.settings
        hang, share, failure = (self.random.random() for _ in range(3))
        latency_s = shape.latency_s.at(share)
        if shape.may_time_out and (
            hang < settings.timeout_share or latency_s >= settings.timeout_s
        ):
            return settings.timeout_s, "timeout"
        return latency_s, "error" if failure < settings.error_share else "ok"

    def _next_tool_id(self) -> str:
        self.tool_count += 1
        return f"{self.id}.t{self.tool_count - 1}"


def _with_tools(step: Step, tools: tuple[Tool, ...], next: Next) -> Step:
    """End a step with tools that all start at once."""
    longest_ms = max(tool.dur_ms or 0 for tool in tools)
    return msgspec.structs.replace(
        step,
        tools=tools,
        tool_ms=longest_ms,
        overhead_ms=0,
        gap_ms=longest_ms,
        gap_source="generated",
        next=next,
    )
