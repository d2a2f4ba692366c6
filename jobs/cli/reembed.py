"""The command `reembed`. `app` registers it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

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
    OutputFormat,
    RejectRateOption,
    RevisionOption,
    console,
)
from jobs.errors import UsageError
from jobs.values import model_named, parse_actors, parse_extensions, parse_resources

if TYPE_CHECKING:
    from jobs.embedding.update_report import ReembedReport, Stopwatch


class Missing(StrEnum):
    keep = "keep"
    delete = "delete"


def reembed(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(help="The source of the collection's images.")] = None,
    collection: Annotated[str | None, typer.Argument(help="The collection: a folder or bucket prefix.")] = None,
    spec: Annotated[Path | None, typer.Option(help="Take all options from a file such as deploy/job.yaml.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Hub id or folder; by default the live index's. Another one embeds everything.")
    ] = None,
    revision: RevisionOption = None,
    missing: Annotated[Missing, typer.Option(help="What to do with images that are gone from the source.")] = (
        Missing.delete
    ),
    max_missing: Annotated[
        float, typer.Option(min=0, max=1, help="Stop when more than this share of the source's images is gone.")
    ] = 0.2,
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
    output: FormatOption = OutputFormat.table,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what Ray and its workers print.")] = False,
) -> None:
    """Bring a collection and its index up to date with a source, or move them to another model.

    Exits with 0 when all is up to date, 1 when the outcome is not good enough to publish, 2 for a mistake or a source
    that cannot be listed, 3 when too many images are gone, 75 while another job writes. Run it again at any time.

    With --spec, old index versions are removed at the end, and notifications are sent as the file says. --max-missing
    then overrides the file for this run.

    Examples: `likeness reembed photos/ my-collection`, `likeness reembed --spec deploy/job.yaml`
    """
    from jobs.embedding.request import EmbedOptions
    from jobs.update import ReembedSettings
    from jobs.update import reembed as bring_up_to_date

    # Programs read stdout, so with JSON all messages go to stderr.
    shown = console if output is OutputFormat.table else Console(stderr=True)
    if report is not None and not report.absolute().parent.is_dir():
        raise UsageError(f"--report is {report}: there is no folder {report.absolute().parent}")
    if spec is not None:
        given = _given_beside_spec(context)
        changes = {"max_missing": max_missing} if "max_missing" in given else {}
        with _reporting(report) as clock:
            outcome = _run_spec(spec, changes, dry_run=dry_run, verbose=verbose, shown=shown, clock=clock)
        _show(outcome, report, output)
        return
    if source is None or collection is None:
        raise UsageError("expected SOURCE and COLLECTION, or --spec FILE")
    settings = ReembedSettings(
        source=source,
        collection=collection,
        model=None if model is None else model_named(model),
        revision=revision,
        device=device,
        batch_size=batch_size,
        options=EmbedOptions(block_size=block_size, max_reject_rate=max_reject_rate, draft=draft),
        extensions=parse_extensions(extensions),
        actors=parse_actors(actors),
        num_gpus=num_gpus,
        accelerator_type=accelerator_type,
        actor_resources=parse_resources(actor_resources),
        address=address,
        verbose=verbose,
        missing="delete" if missing is Missing.delete else "keep",
        max_missing=max_missing,
        verify_hash=verify_hash,
        dry_run=dry_run,
    )
    with _reporting(report) as clock:
        outcome = bring_up_to_date(settings, shown, clock)
    _show(outcome, report, output)


@contextmanager
def _reporting(report: Path | None) -> Iterator["Stopwatch"]:
    """Write a report even if the job ends with an error: otherwise an earlier job's report would seem to be its own."""
    from jobs.embedding.update_report import Stopwatch
    from jobs.schedule.history import outcome_of

    clock = Stopwatch()
    try:
        yield clock
    except BaseException as error:
        if report is not None:
            with suppress(OSError):  # the job's own error matters more
                report.write_text(clock.to_json(*outcome_of(error)) + "\n", "utf-8")
        raise


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


def _run_spec(
    path: Path, changes: dict[str, float], *, dry_run: bool, verbose: bool, shown: Console, clock: "Stopwatch"
) -> "ReembedReport":
    from jobs.schedule.run_job import run_job
    from jobs.schedule.spec import read_spec
    from jobs.update import reembed as bring_up_to_date

    job = read_spec(path).model_copy(update=changes)
    if dry_run:
        return bring_up_to_date(replace(job.settings(), dry_run=True, verbose=verbose), shown, clock)
    return run_job(job, shown, verbose=verbose, clock=clock)


def _show(outcome: "ReembedReport", report: Path | None, output: OutputFormat) -> None:
    from jobs.embedding.update_report import closing_lines, reembed_table

    if report is not None:
        report.write_text(outcome.to_json() + "\n", "utf-8")
    if output is OutputFormat.json:
        print(outcome.to_json())
        return
    console.print(reembed_table(outcome))
    for line in closing_lines(outcome):
        console.print(line, soft_wrap=True)
