"""The progress bar of a job."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rich.progress
from rich.console import Console


@contextmanager
def rate_bar(console: Console, description: str, total: int, rate: str) -> Iterator[Callable[[int, str], None]]:
    """A bar with the count, the rate and the time left; without a terminal, only its final state is printed.

    Yields the function that updates the count and the rate.
    """
    bar = rich.progress.Progress(
        rich.progress.TextColumn(description),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task(description, total=total, rate=rate)
    with bar:
        yield lambda completed, rate: bar.update(task, completed=completed, rate=rate)
