"""A trace in, a table out: python examples/replay.py [TRACE...]

The same as ``kvalet replay --backend simulated``, from a program: a day of agents in
virtual time, with a policy for every column.
"""

import sys
from pathlib import Path

from rich.console import Console

import kvalet
from kvalet.runtime.replay import EngineOptions, Replay, RunOptions, print_report
from kvalet.runtime.traces import read_traces

BUNDLED = Path(__file__).parent / "traces" / "coding-agents.jsonl"


def main() -> None:
    """Replay the traces named on the command line, or the bundled one."""
    trace = read_traces([Path(name) for name in sys.argv[1:]] or [BUNDLED])
    names = ("drop", "keep", "park", "hold:1")
    replay = Replay(
        trace,
        RunOptions(
            engine=EngineOptions(backend="simulated", slots=2),
            policies=[kvalet.parse_policy(name) for name in names],
        ),
    )
    kvalet.run_in_virtual_time(replay.run())
    print_report(replay.report, Console())


if __name__ == "__main__":
    main()
