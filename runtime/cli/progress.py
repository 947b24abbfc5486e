"""Progress of long work on standard error: a bar on a terminal, else plain lines."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ...backends.llama import FetchProgress
from ..replay.run import Progress as ReplayProgress

_LINE_EVERY_S = 10.0


def replay_progress() -> "BarProgress | LineProgress":
    """Return what fits standard error."""
    console = Console(stderr=True)
    return BarProgress(console) if console.is_terminal else LineProgress(console)


class BarProgress(ReplayProgress):
    """A bar per policy, and one for the model while it is fetched."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("turns"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._fetch = Progress(
            TextColumn("fetching the default model"),
            BarColumn(),
            DownloadColumn(),
            console=console,
            transient=True,
        )
        self._fetching: TaskID | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._fetch.stop()
        self._bars.stop()

    def say(self, text: str) -> None:
        """Print a sentence above the bars."""
        self._console.print(f"kvalet: {text}", highlight=False)

    def fetched(self, progress: FetchProgress) -> None:
        """Move the bar of the model."""
        if self._fetching is None:
            self._fetching = self._fetch.add_task("", total=progress.total_bytes)
            self._fetch.start()
        self._fetch.update(self._fetching, completed=progress.done_bytes)
        if progress.done_bytes >= progress.total_bytes:
            self._fetch.stop()

    def begin(self, policy: str, turns: int) -> None:
        """Show a new bar."""
        self._fetch.stop()
        self._bars.start()
        self._task = self._bars.add_task(policy, total=turns)

    def advance(self) -> None:
        """Move the bar by a turn."""
        if self._task is not None:
            self._bars.advance(self._task)


class LineProgress(ReplayProgress):
    """A line at the beginning and the end of each policy, and every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._policy = ""
        self._turns = self._done = 0
        self._began_s = self._said_s = 0.0
        self._fetching = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Print a sentence."""
        print_line = self._console.print
        print_line(f"kvalet: {text}", highlight=False, soft_wrap=True)

    def fetched(self, progress: FetchProgress) -> None:
        """Say once that the model is being fetched."""
        if not self._fetching:
            self._fetching = True
            size = progress.total_bytes / 1e6
            self.say(f"fetching the default model ({size:.0f} MB, once)")

    def begin(self, policy: str, turns: int) -> None:
        """Say which policy begins."""
        self._policy, self._turns, self._done = policy, turns, 0
        self._began_s = self._said_s = time.monotonic()
        self.say(f"{policy}: {turns} turns")

    def advance(self) -> None:
        """Say how far it is, if nothing was said for a while."""
        self._done += 1
        now_s = time.monotonic()
        if now_s - self._said_s >= _LINE_EVERY_S:
            self._said_s = now_s
            passed_s = now_s - self._began_s
            self.say(
                f"{self._policy}: {self._done} of {self._turns} turns, {passed_s:.0f} s"
            )

    def end(self) -> None:
        """Say how long it took."""
        passed_s = time.monotonic() - self._began_s
        self.say(f"{self._policy}: {self._done} turns in {passed_s:.1f} s")
