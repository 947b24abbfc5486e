"""Writes session files as Claude Code does, record by record."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class ClaudeLog:
    """A session file in the making; time only moves by ``wait``."""

    def __init__(self, session: str = "S1", agent: str | None = None) -> None:
        self.lines: list[str] = []
        self.session = session
        self.agent = agent
        self.side_chain = agent is not None
        self.now_s = 0.0
        self._last_uuid: str | None = None

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    def record(self, type: str, **fields: Any) -> str:
        """Append a record; return its uuid."""
        uuid = f"{self.session}-{self.agent}-{len(self.lines)}"
        time = START + timedelta(seconds=self.now_s)
        record: dict[str, Any] = {
            "type": type,
            "uuid": uuid,
            "parentUuid": self._last_uuid,
            "sessionId": self.session,
            "isSidechain": self.side_chain,
            "timestamp": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "cwd": "/home/someone/secret",
            **({"agentId": self.agent} if self.agent else {}),
            **fields,
        }
        self._last_uuid = str(record["uuid"])
        self.lines.append(json.dumps(record))
        return self._last_uuid

    def user(self, text: str, **fields: Any) -> None:
        """The user, or what speaks as one, says something."""
        self.record("user", message={"role": "user", "content": text}, **fields)

    def assistant(
        self,
        id: str | None = None,
        *,
        text: str | None = None,
        tools: tuple[tuple[str, str, dict[str, Any]], ...] = (),
        tokens: tuple[int, int, int, int] | None = (10, 0, 0, 50),
        model: str = "m",
    ) -> None:
        """Append one record for each block of an API message.

        Tokens are input, written to the cache, read from it, and output.
        """
        blocks: list[dict[str, Any]] = []
        if text is not None:
            blocks.append({"type": "text", "text": text})
        for tool_id, name, given in tools:
            block = {"type": "tool_use", "id": tool_id, "name": name, "input": given}
            blocks.append(block)
        message_id = id or f"msg-{self.session}-{self.agent}-{len(self.lines)}"
        for block in blocks:
            message: dict[str, Any] = {
                "id": message_id,
                "model": model,
                "role": "assistant",
                "content": [block],
            }
            if tokens is not None:
                message["usage"] = {
                    "input_tokens": tokens[0],
                    "cache_creation_input_tokens": tokens[1],
                    "cache_read_input_tokens": tokens[2],
                    "output_tokens": tokens[3],
                }
            self.record("assistant", message=message)

    def result(
        self,
        tool_id: str,
        content: Any = "done",
        *,
        is_error: bool = False,
        report: Any = None,
    ) -> None:
        """A tool returns."""
        block = {
            "type": "tool_result",
            "tool_use_id": tool_id,
            "content": content,
            **({"is_error": True} if is_error else {}),
        }
        fields = {} if report is None else {"toolUseResult": report}
        self.record("user", message={"role": "user", "content": [block]}, **fields)

    def write(self, path: Path) -> Path:
        """Write the file."""
        path.write_text("".join(line + "\n" for line in self.lines))
        return path
