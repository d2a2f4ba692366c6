"""The commands `schedule`, `watch` and `history`. `app` registers them."""

import logging
import signal
import threading
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from jobs.errors import UsageError
from jobs.values import parse_duration
from likeness.cli.model_options import Fields, with_fields
from likeness.cli.options import (
    EMBEDDING,
    MISSING,
    CollectionArgument,
    FormatOption,
    OptionalCollection,
    OptionalSource,
    SpecOption,
    console,
    job_or_file,
    open_collection,
    parse_option,
    show,
)

_REJECT_RATE = Fields("jobs.spec", "JobSpec", "max_reject_rate", default=1.0)  # see `Update`


def schedule(
    spec: Annotated[Path, typer.Argument(help="The job, in YAML: see deploy/job.yaml.")],
    cron: Annotated[str, typer.Option(help="When to run, as in a crontab: minute, hour, day, month, weekday.")],
    timezone: Annotated[str | None, typer.Option(help="Such as Europe/Berlin; by default this machine's.")] = None,
    jitter: Annotated[int, typer.Option(min=0, help="Random delay of up to this many seconds.")] = 0,
) -> None:
    """Run a job on a schedule on this machine, each run in a separate process. `likeness history` shows the results.

    Runs do not overlap, and one run makes up for all that were missed while the machine slept. Ctrl-C or SIGTERM stops
    the current run and exits; a second one exits at once. The next run continues with the rest.

    Example: `likeness schedule deploy/job.yaml --cron "0 3 * * *" --timezone Europe/Berlin --jitter 300`
    """
    from jobs.schedule.job_process import ScheduledJob
    from jobs.schedule.scheduler import parse_cron, run_schedule

    next_time = parse_cron(cron, timezone)
    job = ScheduledJob(spec, console.file)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("jobs").setLevel(logging.INFO)
    stop = threading.Event()

    def end(*_: object) -> None:
        if stop.is_set():
            job.kill()
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    run_schedule(job, next_time, stop, jitter_s=jitter)


@with_fields(*EMBEDDING, MISSING, _REJECT_RATE)
def watch(
    context: typer.Context,
    source: OptionalSource = None,
    collection: OptionalCollection = None,
    spec: SpecOption = None,
    every: Annotated[
        str | None,
        typer.Option(
            help="How often to list the source: 30s, 5m. By default every 30 s; for a folder, on changes and every "
            "10 minutes."
        ),
    ] = None,
    **options: Any,
) -> None:
    """Keep a collection up to date with a source: new pictures are searchable seconds after they are saved.

    Whenever something changes, it does what `reembed` would do, with the model kept in memory. It embeds a file once it
    has not changed for a second. While another job writes, and after errors, it waits and retries. Ctrl-C or SIGTERM
    ends it with exit code 130; when restarted, it continues with the rest.

    With --spec, it also brings the file's annotations up to date and runs its saved searches. It reads the file again
    whenever that changes.

    Examples: `likeness watch photos/ my-collection`, `likeness watch --spec job.yaml --every 1m`
    """
    from jobs.schedule.spec_file import SpecFile
    from jobs.schedule.watch import watch as watch_source
    from jobs.spec import JobSpec
    from jobs.update import Update

    def print_line(line: str) -> None:
        console.print(f"{datetime.now():%H:%M:%S} {line}", markup=False, highlight=False, soft_wrap=True)

    seconds = None if every is None else parse_option("--every", every, parse_duration)
    if seconds == 0:
        raise UsageError("--every is 0: expected a duration such as 30s or 5m")

    def read() -> JobSpec:
        job = job_or_file(context, {"every"})
        if not job.resources.ray_only and job.resources.on is None:  # rounds are small
            job = job.model_copy(update={"resources": job.resources.model_copy(update={"on": "local"})})
        return job

    file = SpecFile(spec, read) if spec else None
    update = Update(spec=file.spec if file else read(), console=console, command="watch")
    watch_source(update, print_line, seconds, file)


def history(
    collection: CollectionArgument,
    last: Annotated[int, typer.Option(min=1, help="How many to show.")] = 10,
    log: Annotated[str | None, typer.Option(help="Instead, print the output of the job with this id.")] = None,
    output: FormatOption = "table",
) -> None:
    """Show the results of a collection's latest jobs, oldest first.

    Example: `likeness history my-collection --last 5`
    """
    from jobs.schedule.history import history_facts, last_entries, read_output
    from likeness.cli.tables.job import history_table

    opened = open_collection(collection)
    if log is not None:
        try:
            print(read_output(opened.storage, log), end="", file=console.file)
        except FileNotFoundError as error:
            raise UsageError(
                f"--log is {log!r}: expected the id of a job of `likeness schedule`, as `likeness history` lists them"
            ) from error
        return
    jobs = history_facts(opened, last_entries(opened, last))
    empty = Text("the history is empty: `likeness reembed --spec FILE` and `likeness schedule` write to it")
    show(output, jobs, lambda: history_table(jobs) if jobs else empty)
