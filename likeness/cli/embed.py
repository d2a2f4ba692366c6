"""The commands `embed` and `reembed`. `app` registers them."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.errors import UsageError
from likeness.cli.model_options import with_fields
from likeness.cli.options import (
    CLUSTER,
    COMPARING,
    EMBEDDING,
    MISSING,
    CollectionArgument,
    FormatOption,
    OptionalCollection,
    OptionalSource,
    SpecOption,
    VerboseOption,
    console,
    error_console,
    job_or_file,
    job_spec,
)

if TYPE_CHECKING:
    from jobs.embedding.report import Report

SourceArgument = Annotated[str, typer.Argument(help="A folder or bucket prefix of images, a list, Parquet or tars.")]


@with_fields(*EMBEDDING, *CLUSTER)
def embed(
    context: typer.Context,
    source: SourceArgument,
    collection: CollectionArgument,
    index: Annotated[bool, typer.Option(help="Build the index at the end.")] = True,
    output: FormatOption = "table",
    verbose: VerboseOption = False,
    **options: Any,
) -> None:
    """Embed images into a collection and index it. Run it again to continue after a crash, or to add new images.

    Example: `likeness embed photos/ my-collection --model demo`
    """
    from jobs.update import Update

    # Rows of another source with the same ids are replaced, with a warning.
    spec = job_spec(context, missing="keep", max_missing=1)
    progress = console if output == "table" else error_console  # programs read JSON from stdout
    update = Update(spec=spec, console=progress, command="embed", index=index, verbose=verbose)
    report = update.run()
    if output == "json":
        print(report.to_json(), file=console.file)
        return
    show_embedded(report)
    if index:
        print(next_commands(collection, options["embedder"]), file=console.file)


def show_embedded(report: "Report") -> None:
    """The closing table of `embed`, and a line about the index."""
    from likeness.cli.tables.job import closing_lines, embed_table, left_out_rows
    from likeness.cli.tables.text_table import TextTable

    for embedding in report.embedding:
        console.print(embed_table(embedding))
    if report.left_out:
        console.print(TextTable((), left_out_rows(report.left_out), right={1}))
    for line in closing_lines(report):
        console.print(line, soft_wrap=True)


def next_commands(collection: str, embedder: str | None = None) -> str:
    """The commands to try next with a collection that has just been made, with the user's own class, if any."""
    from index.storage.bucket_address import without_secrets

    name = shlex.quote(without_secrets(collection))
    own = f" --embedder {shlex.quote(embedder)}" if embedder else ""
    return (
        f"Search it with `likeness search {name} PICTURE{own}`, or serve it with `likeness serve {name} --local{own}`"
    )


@with_fields(*EMBEDDING, *CLUSTER, MISSING, COMPARING)
def reembed(
    context: typer.Context,
    source: OptionalSource = None,
    collection: OptionalCollection = None,
    spec: SpecOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the outcome to this file as JSON.")] = None,
    output: FormatOption = "table",
    verbose: VerboseOption = False,
    **options: Any,
) -> None:
    """Bring a collection and its index up to date with a source, or move them to another model.

    Exits with 0 if everything is up to date, 1 if the outcome is not good enough to publish, 2 for a usage error or an
    unreadable source, 3 if too many images are gone, 75 while another job writes. With --spec, it also removes old
    index versions and sends notifications as the file says; --max-missing overrides the file.

    Examples: `likeness reembed photos/ my-collection`, `likeness reembed --spec deploy/job.yaml`
    """
    from jobs.schedule.run_job import run_job
    from jobs.update import Update

    with _reporting(report, output) as outcome:
        job = job_or_file(context, {"dry_run", "report", "output", "verbose"})
        progress = console if output == "table" else error_console  # programs read JSON from stdout
        update = Update(spec=job, console=progress, report=outcome, dry_run=dry_run, verbose=verbose)
        if spec is None or dry_run:
            update.run()
        else:
            run_job(update)


@contextmanager
def _reporting(path: Path | None, output: str) -> "Iterator[Report]":
    """Write and show the report, also of a job that fails: the file may still hold that of an earlier job."""
    from jobs.embedding.report import Report
    from jobs.schedule.history import outcome_of
    from likeness.cli.tables.job import closing_lines, reembed_table

    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"--report is {path}: there is no folder {path.absolute().parent}")
    if path is not None and path.is_dir():
        raise UsageError(f"--report is {path}, a folder: expected the path of a file")
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
        print(report.to_json(), file=console.file)
    else:
        console.print(reembed_table(report))
        for line in closing_lines(report):
            console.print(line, soft_wrap=True)
    if report.failure:
        raise UsageError(report.failure)
