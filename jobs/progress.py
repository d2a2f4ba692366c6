"""A bar that shows how far a job is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rich.progress
from rich.console import Console


@contextmanager
def rate_bar(console: Console, doing: str, total: int, rate: str) -> Iterator[Callable[[int, str], None]]:
    """A bar with what is done, its rate and the time left; where there is no terminal, a line now and then.

    Yields the function that shows how many are completed, and the rate.
    """
    bar = rich.progress.Progress(
        rich.progress.TextColumn(doing),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task(doing, total=total, rate=rate)
    with bar:
        yield lambda completed, rate: bar.update(task, completed=completed, rate=rate)
