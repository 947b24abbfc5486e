"""Tells the kind of work of a tool call, while its command is still at hand.

Shell calls of one name are tests, installs, looks around: their durations differ by two
orders of magnitude, and a scheduler that learns them needs the difference. The command
itself is private and never kept, so the class is derived before it is dropped.
"""

import re
from collections.abc import Sequence
from typing import Literal

ToolClass = Literal[
    "shell",
    "test",
    "install",
    "git",
    "explore",
    "edit",
    "read",
    "search",
    "web",
    "subagent",
    "plan",
    "other",
]
"""The kind of work a tool did, finer than its name where that is a shell."""

_NAMES: dict[str, ToolClass] = {
    "agent": "subagent",
    "applypatch": "edit",
    "bash": "shell",
    "bashoutput": "shell",
    "edit": "edit",
    "enterplanmode": "plan",
    "execcommand": "shell",
    "exitplanmode": "plan",
    "glob": "search",
    "grep": "search",
    "killbash": "shell",
    "killshell": "shell",
    "localshell": "shell",
    "ls": "explore",
    "multiedit": "edit",
    "notebookedit": "edit",
    "notebookread": "read",
    "powershell": "shell",
    "read": "read",
    "runshellcommand": "shell",
    "shell": "shell",
    "task": "subagent",
    "taskcreate": "plan",
    "tasklist": "plan",
    "taskupdate": "plan",
    "todoread": "plan",
    "todowrite": "plan",
    "toolsearch": "search",
    "updateplan": "plan",
    "webfetch": "web",
    "websearch": "web",
    "write": "edit",
}

_SEPARATOR = re.compile(r"&&|\|\||[;|&\n]")
_PREFIX = re.compile(
    r"(?:(?:sudo|time|nohup|env|command|exec)\s+|timeout\s+\S+\s+|[A-Za-z_]\w*=\S*\s+)+"
)
_TEST = re.compile(
    r"(?:\S*/)?(?:python\d?(?:\.\d+)?\s+-m\s+)?(?:pytest|py\.test|tox|nox|unittest|jest"
    r"|vitest|ctest|phpunit|rspec)\b"
    r"|(?:npm|pnpm|yarn|bun|cargo|go|dotnet|mvn|gradle|\./gradlew|make|swift|mix)\s+"
    r"(?:run\s+)?(?:test|check)\b"
    r"|(?:npx|uvx|(?:uv|poetry|hatch|pdm)\s+run)\s+(?:\S+\s+)*?(?:pytest|jest|vitest|tox)\b"
    r"|\S*python\S*\s+\S*(?:manage\.py\s+test|runtests\.py)\b"
)
_INSTALL = re.compile(
    r"(?:\S*/)?(?:python\d?(?:\.\d+)?\s+-m\s+)?(?:uv\s+)?pip\d?(?:\.\d+)?\s+"
    r"(?:install|download|uninstall)\b"
    r"|(?:npm|pnpm|yarn|bun|apt|apt-get|dnf|yum|apk|brew|conda|mamba|gem|bundle|poetry"
    r"|pdm|uv|cargo|composer)\s+(?:-\S+\s+)*(?:install|i|ci|add|sync|update|fetch)\b"
    r"|go\s+(?:get|mod\s+download)\b"
)
_GIT = re.compile(r"(?:git|gh|hg|svn)\b")
_EXPLORE = re.compile(
    r"(?:ls|cat|head|tail|find|grep|egrep|fgrep|rg|ag|fd|wc|tree|pwd|stat|file|du|df"
    r"|which|type|sort|uniq|cut|less|more|nl|sed\s+-n|awk|diff|cd|echo|printf|true)\b"
)


def tool_class(name: str | None, command: str | None = None) -> ToolClass:
    """Return the class of a call of this tool; *command* refines a shell call.

    >>> tool_class("Bash", "cd app && python -m pytest -q | tail -5")
    'test'
    >>> tool_class("mcp__tracker__list")
    'other'
    """
    if name is None:
        return "other"
    found = _NAMES.get(name.replace("_", "").replace("-", "").lower(), "other")
    if found == "shell" and command:
        return command_class(command)
    return found


def command_class(command: str) -> ToolClass:
    """Return the class of a shell command: of its slowest part.

    Tests before installs before git; a command is exploring when all of its parts are.
    """
    # What follows a here-document marker is text and no command.
    parts = [_bare(part) for part in _SEPARATOR.split(command.partition("<<")[0])]
    parts = [part for part in parts if part]
    if _any(_TEST, parts):
        return "test"
    if _any(_INSTALL, parts):
        return "install"
    if _any(_GIT, parts):
        return "git"
    if parts and all(_EXPLORE.match(part) for part in parts):
        return "explore"
    return "shell"


def _any(pattern: re.Pattern[str], parts: Sequence[str]) -> bool:
    return any(pattern.match(part) for part in parts)


def _bare(part: str) -> str:
    """Drop what stands before a command: variables, sudo, a time limit."""
    text = part.strip().lstrip("({ ")
    prefix = _PREFIX.match(text)
    return text[prefix.end() :] if prefix else text
