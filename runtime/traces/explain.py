"""Turns what msgspec says about a record into a field and a sentence.

msgspec names the place as ``$.tools[...].dur_ms``, without the index and the value.
Both are what the reader of the message needs, so they are looked up in the line again;
this happens once, on the way out.
"""

import re
from typing import Any, cast, get_args

import msgspec

from ..tool_class import ToolClass
from .schema import (
    SCHEMA,
    Flag,
    GapSource,
    HashScope,
    Next,
    Status,
    Tool,
)

_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")
_UNNAMED_INDEX = "[...]"
_CHOICES: dict[str, tuple[str, ...]] = {
    "class": get_args(ToolClass),
    "gap_source": get_args(GapSource),
    "hash_scope": get_args(HashScope),
    "next": get_args(Next),
    "q": get_args(Flag),
    "status": get_args(Status),
    "time_unit": ("ms",),
}


def explain(line: bytes, error: msgspec.ValidationError) -> tuple[str | None, str]:
    """Return the field that is wrong in *line*, and a sentence that says how."""
    complaint, _, place = str(error).partition(" - at `$")
    try:
        record = cast(object, msgspec.json.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        # The decoder stopped at the wrong field, before it saw the end of the line.
        return None, not_json(broken)
    path = _with_index(record, place.removesuffix("`").removeprefix("."))
    if missing := _MISSING.match(complaint):
        return _join(path, missing["name"]), "the field is missing"
    if unknown := _UNKNOWN.match(complaint):
        return _join(path, unknown["name"]), f"{SCHEMA} has no such field"
    if not path:
        return None, f"the line is no record: {_lower(complaint)}"
    value = _shown(_look_up(record, path))
    if path == "type":
        return path, f"{value} is no record type; expected trace, session or step"
    choices = _CHOICES.get(re.findall(r"[a-z_]+", path)[-1])
    if choices is not None and "enum" in complaint:
        return path, f"{value} is not allowed; expected one of {', '.join(choices)}"
    return path, f"{value} is not allowed: {_lower(complaint)}"


def not_json(error: Exception) -> str:
    """Say what keeps a line from being JSON."""
    return f"the line is not JSON: {error}"


def _with_index(record: object, path: str) -> str:
    """Give the first bad tool its index; other lists are shown as a whole."""
    if not path.startswith("tools" + _UNNAMED_INDEX) or not isinstance(record, dict):
        return path.partition(_UNNAMED_INDEX)[0]
    tools = cast(list[object], cast(dict[str, Any], record)["tools"])
    for index, tool in enumerate(tools):
        try:
            msgspec.convert(tool, Tool)
        except msgspec.ValidationError:
            return path.replace(_UNNAMED_INDEX, f"[{index}]", 1)
    return path


def _look_up(record: object, path: str) -> object:
    value: Any = record
    for part in re.findall(r"[^.\[\]]+", path):
        value = value[int(part) if part.isdecimal() else part]
    return cast(object, value)


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
