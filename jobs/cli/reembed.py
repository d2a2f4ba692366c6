"""The command `reembed`. `app` registers it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from jobs.cli.job_tables import closing_lines, reembed_table
from jobs.cli.options import (
    AcceleratorOption,
    ActorResourcesOption,
    ActorsOption,
    AddressOption,
    BatchSizeOption,
    BlockSizeOption,
    DeviceOption,
    DraftOption,
    ExtensionsOption,
    FormatOption,
    NumGpusOption,
    RejectRateOption,
    RevisionOption,
    VerboseOption,
    console,
    errors,
    job_spec,
)
from jobs.embedding.report import Report
from jobs.errors import UsageError
from jobs.schedule.history import outcome_of
from jobs.schedule.spec_file import read_spec

MissingOption = Annotated[
    Literal["keep", "delete"], typer.Option(help="What to do with images that are gone from the source.")
]
MaxMissingOption = Annotated[
    float, typer.Option(min=0, max=1, help="Stop when more than this share of the source's images is gone.")
]


def reembed(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(help="The source of the collection's images.")] = None,
    collection: Annotated[str | None, typer.Argument(help="The collection: a folder or bucket prefix.")] = None,
    spec: Annotated[Path | None, typer.Option(help="Take all options from a file such as deploy/job.yaml.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Hub id or folder; by default the live index's. Another one embeds everything.")
    ] = None,
    revision: RevisionOption = None,
    missing: MissingOption = "delete",
    max_missing: MaxMissingOption = 0.2,
    verify_hash: Annotated[bool, typer.Option("--verify-hash", help="Compare every image by its bytes.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the outcome to this file as JSON.")] = None,
    device: DeviceOption = None,
    num_gpus: NumGpusOption = None,
    actors: ActorsOption = None,
    accelerator_type: AcceleratorOption = None,
    actor_resources: ActorResourcesOption = None,
    batch_size: BatchSizeOption = 64,
    block_size: BlockSizeOption = 256,
    max_reject_rate: RejectRateOption = 0.05,
    extensions: ExtensionsOption = None,
    draft: DraftOption = True,
    address: AddressOption = None,
    output: FormatOption = "table",
    verbose: VerboseOption = False,
) -> None:
    """Bring a collection and its index up to date with a source, or move them to another model.

    Exits with 0 when all is up to date, 1 when the outcome is not good enough to publish, 2 for a mistake or a source
    that cannot be listed, 3 when too many images are gone, 75 while another job writes. Run it again at any time.

    With --spec, old index versions are removed at the end, and notifications are sent as the file says. --max-missing
    then overrides the file for this run.

    Examples: `likeness reembed photos/ my-collection`, `likeness reembed --spec deploy/job.yaml`
    """
    from jobs.schedule.run_job import run_job
    from jobs.update import Update

    if report is not None and not report.absolute().parent.is_dir():
        raise UsageError(f"--report is {report}: there is no folder {report.absolute().parent}")
    given = _given_beside_spec(context) if spec else set()
    if spec is None and (source is None or collection is None):
        raise UsageError("expected SOURCE and COLLECTION, or --spec FILE")
    with _reporting(report, output) as outcome:
        job = read_spec(spec) if spec else job_spec(context)
        if "max_missing" in given:
            job = job.model_copy(update={"max_missing": max_missing})
        # Programs read stdout, so with JSON all messages go to stderr.
        shown = console if output == "table" else errors
        update = Update(spec=job, console=shown, report=outcome, dry_run=dry_run, verbose=verbose)
        if spec is None or dry_run:
            update.run()
        else:
            run_job(update)


@contextmanager
def _reporting(path: Path | None, output: str) -> Iterator[Report]:
    """Write and show the report. A job that fails has one too: otherwise an earlier job's would seem to be its own."""
    report = Report()
    try:
        yield report
    except BaseException as error:
        if path is not None:
            with suppress(OSError):  # the job's own error matters more
                path.write_text(report.failure_json(*outcome_of(error)) + "\n", "utf-8")
        raise
    if path is not None:
        path.write_text(report.to_json() + "\n", "utf-8")
    if output == "json":
        print(report.to_json())
        return
    console.print(reembed_table(report))
    for line in closing_lines(report):
        console.print(line, soft_wrap=True)


def _given_beside_spec(context: typer.Context) -> set[str]:
    """The options that were given. UsageError for one that belongs in the file."""
    beside = {"spec", "max_missing", "dry_run", "report", "output", "verbose"}
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    if wrong := sorted(given - beside):
        names = ", ".join(
            f"--{name.replace('_', '-')}" if name not in ("source", "collection") else name for name in wrong
        )
        raise UsageError(f"{names} beside --spec: expected it in the file, which describes the whole job")
    return given
