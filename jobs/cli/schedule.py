"""The commands `schedule` and `history`. `app` registers them."""

import logging
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from jobs.cli.options import CollectionArgument, FormatOption, open_collection, show
from jobs.errors import UsageError


def schedule(
    spec: Annotated[Path, typer.Argument(help="The job, in YAML: see deploy/job.yaml.")],
    cron: Annotated[str, typer.Option(help="When, as in crontab: minute, hour, day, month, weekday.")],
    timezone: Annotated[str | None, typer.Option(help="Such as Europe/Berlin; by default this machine's.")] = None,
    jitter: Annotated[int, typer.Option(min=0, help="Start up to so many seconds later, at random.")] = 0,
) -> None:
    """Run a job on a schedule on this machine, each run in a separate process. `likeness history` shows the results.

    Runs do not overlap, and one run makes up for all that were missed while the machine slept. Ctrl-C or SIGTERM stops
    the current run and then ends; a second one ends it at once. The next run continues with the rest.

    Example: `likeness schedule deploy/job.yaml --cron "0 3 * * *" --timezone Europe/Berlin --jitter 300`
    """
    from jobs.schedule.cron import cron_times
    from jobs.schedule.scheduler import ScheduledJob, run_schedule

    times = cron_times(cron, timezone, datetime.now(UTC))
    job = ScheduledJob(spec, sys.stdout)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("jobs").setLevel(logging.INFO)
    stop = threading.Event()

    def end(*_: object) -> None:
        if stop.is_set():
            job.kill()
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    run_schedule(job, times, stop, jitter_s=jitter)


def history(
    collection: CollectionArgument,
    last: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    log: Annotated[str | None, typer.Option(help="Print what the job of this id printed instead.")] = None,
    output: FormatOption = "table",
) -> None:
    """Show what became of the last jobs of a collection, oldest first.

    Example: `likeness history my-collection --last 5`
    """
    from jobs.cli.tables.job import history_table
    from jobs.schedule.history import facts, last_entries, read_output

    opened = open_collection(collection)
    if log is not None:
        try:
            print(read_output(opened.storage, log), end="")
        except FileNotFoundError as error:
            raise UsageError(
                f"--log is {log!r}: expected the id of a job of `likeness schedule`, as `likeness history` lists them"
            ) from error
        return
    jobs = facts(opened, last_entries(opened, last))
    empty = Text("the history is empty: `likeness reembed --spec FILE` and `likeness schedule` write to it")
    show(output, jobs, lambda: history_table(jobs) if jobs else empty)
