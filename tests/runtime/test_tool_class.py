"""The kind of work is told from the name of a tool, and from a shell command."""

import pytest

from kvalet.runtime.tool_class import tool_class

COMMANDS = {
    "python -m pytest -x tests": "test",
    "cd /app && timeout 300 .venv/bin/pytest -q 2>&1 | tail -20": "test",
    "npm run test": "test",
    "uv run --group dev pytest": "test",
    "cargo test --all": "test",
    "python manage.py test polls": "test",
    "DEBUG=1 CI=true go test ./...": "test",
    "pip install -e . && pytest": "test",
    "pip install -q requests": "install",
    "/venv/bin/python -m pip install .": "install",
    "sudo apt-get -y install gcc": "install",
    "npm ci": "install",
    "uv sync": "install",
    "git status": "git",
    "cd src && git diff HEAD~1 | head -50": "git",
    "gh pr view 12": "git",
    "ls -la && cat setup.py | head -20": "explore",
    "grep -rn 'def main' . ; wc -l x.py": "explore",
    "find . -name '*.py'": "explore",
    "sed -n 1,20p a.py": "explore",
    "python fix.py": "shell",
    "cat > a.py << 'EOF'\npytest\ngit status\nEOF": "explore",
    "ls && make build": "shell",
    "sed -i s/a/b/ x.py": "shell",
    "": "shell",
}

NAMES = {
    "Read": "read",
    "Edit": "edit",
    "MultiEdit": "edit",
    "Write": "edit",
    "Grep": "search",
    "Glob": "search",
    "WebFetch": "web",
    "WebSearch": "web",
    "Task": "subagent",
    "Agent": "subagent",
    "TodoWrite": "plan",
    "ExitPlanMode": "plan",
    "Bash": "shell",
    "exec_command": "shell",
    "mcp__github__git_status": "other",
    None: "other",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_class_of_its_slowest_part(command: str) -> None:
    """Tests before installs before git; exploring only if every part is."""
    assert tool_class("Bash", command) == COMMANDS[command]


@pytest.mark.parametrize("name", NAMES)
def test_a_tool_has_the_class_of_its_name(name: str | None) -> None:
    """Names of the common agents are known, in any spelling of their words."""
    assert tool_class(name) == NAMES[name]


def test_a_command_matters_to_shells_only() -> None:
    """An argument that happens to be called command changes nothing."""
    assert tool_class("Read", "pytest") == "read"
