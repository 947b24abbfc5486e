"""What leans on what: a tool on its class, a class on all tools, those on a prior.

Each level learns every call below it and has a curve of its own, in which the level
above counts as a few calls. Waits for a person are learned by the same code under the
class "user", which leans on a prior of its own and on nothing else: people's habits
must never be taken for a tool's.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from .sketch import Sketch, SketchRecord
from .survival import Curve, estimate, lindy

USER_CLASS = "user"
"""The class of waits for a person, which are no tool calls."""

_MOST_CLASSES = 64
"""Classes come from a short list; whoever sends more of them gets the late one."""
_LATE_CLASS = "other"
_TOOL_FLOOR_S = 1.0
"""Median .4 s; measured ones of tools are .1 to .6 s (TraceLab, arXiv 2606.30560)."""
_USER_FLOOR_S = 200.0
"""Median 83 s; people's is 86 s in TraceLab, 127 s in the Weka cc-traces."""
_PRIOR_CALLS = 4.0
"""As how many calls the level above counts: half or twice it changes the pinball loss
of examples/latency_calibration.py by a hundredth."""
_PRIOR_SURVIVORS = 1.0
"""As how many of any age; none made that loss a seventh larger after 30 s."""
_PARENT_MEMORY = 8.0
"""Upper levels see more calls, and remember as many times more of them."""
_STALE_SHARE = 1 / 16
"""A curve is estimated again when this share of what its level knows is new."""
_SELF_RELIANT_CALLS = 16 * _PRIOR_CALLS
"""Knowing so many calls, a level does not follow each change of the one above."""


class NamedSketch(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A sketch of a tool, or of a class where ``tool`` is empty."""

    tool: str = ""
    tool_class: str
    sketch: SketchRecord


class LevelsRecord(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """All levels as they are written; the tool that was last seen is last."""

    all_tools: SketchRecord
    classes: tuple[NamedSketch, ...]
    tools: tuple[NamedSketch, ...]


@dataclass(slots=True, eq=False)
class _Level:
    """A sketch and the curve of it, which is estimated again when enough is new.

    Curves above are known by their version: a reference would keep outdated ones.
    """

    sketch: Sketch
    above: "_Level | Curve"
    curve: Curve | None = None
    version: int = 0
    stale_count: int = 0
    follows: int | None = None
    """Version of the curve above that was used; None if a newer one matters little."""

    def current(self) -> Curve:
        """Return the curve."""
        curve = self.curve
        if curve is None or self.sketch.count >= self.stale_count or self._outdated():
            curve = self.curve = self._estimate()
        return curve

    def _outdated(self) -> bool:
        if self.follows is None or isinstance(self.above, Curve):
            return False
        self.above.current()
        return self.above.version != self.follows

    def _estimate(self) -> Curve:
        above, known_calls = self.above, self.sketch.effective_calls
        prior = above if isinstance(above, Curve) else above.current()
        self.version += 1
        self.stale_count = self.sketch.count + 1 + int(known_calls * _STALE_SHARE)
        self.follows = None
        if isinstance(above, _Level) and known_calls < _SELF_RELIANT_CALLS:
            self.follows = above.version
        return estimate(
            self.sketch,
            prior,
            prior_calls=_PRIOR_CALLS,
            prior_survivors=_PRIOR_SURVIVORS,
        )

    def merge(self, sketch: Sketch) -> None:
        self.sketch.merge(sketch)
        self.stale_count = 0


class Levels:
    """Finds, makes and forgets levels; at most *most_tools* tools and 64 classes."""

    def __init__(self, *, half_life_calls: float | None, most_tools: int) -> None:
        self._half_life_calls = half_life_calls
        self._most_tools = most_tools
        self._all_tools = self._upper(lindy(_TOOL_FLOOR_S))
        self._users = lindy(_USER_FLOOR_S)
        self._classes: dict[str, _Level] = {}
        # From the longest unseen to the last seen.
        self._tools: OrderedDict[tuple[str, str], _Level] = OrderedDict()

    def observe(self, tool: str, tool_class: str, seconds: float, status: str) -> None:
        """Tell a call to its tool, its class and all tools."""
        level: _Level | Curve = self._tool(tool, tool_class)
        while isinstance(level, _Level):
            level.sketch.observe(seconds, status)
            level = level.above

    def curve(self, tool: str, tool_class: str) -> Curve:
        """Return the curve of the lowest level that knows anything."""
        level = self._tools.get((tool, tool_class)) or self._classes.get(tool_class)
        if level is not None:
            return level.current()
        return self._users if tool_class == USER_CLASS else self._all_tools.current()

    def sketches(self, tool: str) -> Iterator[Sketch]:
        """Yield the sketch of each class of *tool*."""
        return (
            level.sketch for (name, _), level in self._tools.items() if name == tool
        )

    def merge(self, other: "Levels") -> None:
        """Learn what *other* has learned, as if at the same time."""
        self._all_tools.merge(other._all_tools.sketch)
        for tool_class, level in other._classes.items():
            self._class(tool_class).merge(level.sketch)
        for (tool, tool_class), level in other._tools.items():
            self._tool(tool, tool_class).merge(level.sketch)

    def record(self) -> LevelsRecord:
        """Return all that was learned."""
        return LevelsRecord(
            all_tools=self._all_tools.sketch.record(),
            classes=tuple(
                NamedSketch(tool_class=name, sketch=level.sketch.record())
                for name, level in self._classes.items()
            ),
            tools=tuple(
                NamedSketch(tool=tool, tool_class=name, sketch=level.sketch.record())
                for (tool, name), level in self._tools.items()
            ),
        )

    def load(self, record: LevelsRecord) -> None:
        """Take over what *record* says; raise InvalidSetting where it cannot be."""
        self._all_tools.sketch.load(record.all_tools)
        for named in record.classes:
            self._class(named.tool_class).sketch.load(named.sketch)
        for named in record.tools:
            self._tool(named.tool, named.tool_class).sketch.load(named.sketch)

    def _tool(self, tool: str, tool_class: str) -> _Level:
        key = tool, tool_class
        level = self._tools.get(key)
        if level is None:
            fades = self._half_life_calls is not None
            sketch = Sketch(half_life_calls=self._half_life_calls, watches_drift=fades)
            level = self._tools[key] = _Level(sketch, self._class(tool_class))
            if len(self._tools) > self._most_tools:
                self._tools.popitem(last=False)
        self._tools.move_to_end(key)
        return level

    def _class(self, name: str) -> _Level:
        if name not in self._classes and name != USER_CLASS:
            full = len(self._classes) >= _MOST_CLASSES
            name = _LATE_CLASS if full else name
        level = self._classes.get(name)
        if level is None:
            above = self._users if name == USER_CLASS else self._all_tools
            level = self._classes[name] = self._upper(above)
        return level

    def _upper(self, above: _Level | Curve) -> _Level:
        memory = self._half_life_calls
        memory = None if memory is None else memory * _PARENT_MEMORY
        return _Level(Sketch(half_life_calls=memory), above)
