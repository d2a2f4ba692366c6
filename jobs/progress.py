"""A bar that shows how far a job is."""

from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console


class RateBar:
    """A bar with what is done, its rate and the time left. Prints a line now and then where there is no terminal."""

    def __init__(self, console: Console, doing: str, total: int, rate: str) -> None:
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn(doing),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[rate]}"),
            rich.progress.TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(doing, total=total, rate=rate)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def show(self, completed: int, rate: str) -> None:
        self._bar.update(self._task, completed=completed, rate=rate)
