"""The commands `embed` and `reembed`. `app` registers them."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from embedder.identity import Precision
from jobs.cli.options import (
    AddressOption,
    CollectionArgument,
    EmbedderOption,
    FormatOption,
    OnOption,
    QueriesOption,
    console,
    errors,
    job_spec,
)
from jobs.errors import UsageError
from jobs.values import DEFAULT_MODEL

if TYPE_CHECKING:
    from jobs.embedding.report import Report

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="A CLIP-family model: hub id or folder. `demo` is the small one that comes with Likeness. By default the "
        f"collection's own model, or for a new collection {DEFAULT_MODEL}."
    ),
]
OtherModelOption = Annotated[
    str | None,
    typer.Option(help="Hub id or folder; by default the live index's. Another model embeds everything again."),
]
RevisionOption = Annotated[str | None, typer.Option(help="The model's branch, tag or commit on the hub.")]
DeviceOption = Annotated[str | None, typer.Option(help="cuda, cpu, …; by default a GPU if there is one.")]
PrecisionOption = Annotated[
    Precision,
    typer.Option(help="Precision of the model; auto picks the fastest that agrees with fp32."),
]
NumGpusOption = Annotated[
    float | None, typer.Option(min=0, help="GPUs for each actor: a whole number, or a fraction of one.")
]
ActorsOption = Annotated[str | None, typer.Option(help="Embedding actors: a number, or LEAST:MOST.")]
CpusOption = Annotated[
    float | None, typer.Option(help="CPUs that Ray reserves for each actor, one by default; the others decode.")
]
WaitOption = Annotated[
    str | None,
    typer.Option(help="How long to wait for nodes that an autoscaler has yet to add: 10m. By default, not at all."),
]
ActorResourcesOption = Annotated[
    str | None, typer.Option(help='Custom resources of the cluster for each actor, as JSON: {"npu": 1}.')
]
AcceleratorOption = Annotated[str | None, typer.Option(help="Kind of GPU, as Ray names it: A100, H200, …")]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Images per forward pass.")]
BlockSizeOption = Annotated[int, typer.Option(min=1, help="Images written at once: a crash loses at most these.")]
ExtensionsOption = Annotated[str | None, typer.Option(help="File extensions to include: jpg,png, or images,videos.")]
UriColumnOption = Annotated[str | None, typer.Option(help="A list's column of paths or URLs; by default uri or url.")]
KeepOption = Annotated[
    str | None,
    typer.Option(help='Embed only images that match this filter: {"width": {"$gte": 640}}. By default, all.'),
]
TilesOption = Annotated[
    str | None,
    typer.Option(metavar="CxR", help="Also embed this many parts of each picture, to find small things in it: 2x2."),
]
ExifOption = Annotated[
    bool | None,
    typer.Option(
        "--exif/--no-exif",
        help="Store the time, camera and place of each picture: exif_taken, exif_camera, exif_latitude, "
        "exif_longitude. By default, as in the source's last run; off for a new source.",
    ),
]
DraftOption = Annotated[bool, typer.Option(help="Decode large JPEGs at reduced scale, many times faster.")]
RejectRateOption = Annotated[
    float, typer.Option(min=0, max=1, help="Fail if more than this share of the images is rejected.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show the output of Ray and its workers.")]
MissingOption = Annotated[
    Literal["keep", "delete"], typer.Option(help="What to do with images that are gone from the source.")
]
MaxMissingOption = Annotated[
    float, typer.Option(min=0, max=1, help="Stop if more than this share of the source's images is gone.")
]


def embed(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A folder or bucket prefix of images, a list, Parquet or tars.")],
    collection: CollectionArgument,
    model: ModelOption = None,
    revision: RevisionOption = None,
    embedder: EmbedderOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = "auto",
    num_gpus: NumGpusOption = None,
    actors: ActorsOption = None,
    cpus_per_actor: CpusOption = None,
    accelerator_type: AcceleratorOption = None,
    actor_resources: ActorResourcesOption = None,
    batch_size: BatchSizeOption = 64,
    block_size: BlockSizeOption = 256,
    max_reject_rate: RejectRateOption = 0.05,
    extensions: ExtensionsOption = None,
    uri_column: UriColumnOption = None,
    keep: KeepOption = None,
    tiles: TilesOption = None,
    exif: ExifOption = None,
    draft: DraftOption = True,
    index: Annotated[bool, typer.Option(help="Build the index at the end.")] = True,
    queries: QueriesOption = None,
    on: OnOption = None,
    address: AddressOption = None,
    wait_for_nodes: WaitOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Embed images into a collection and index it. Run it again to continue after a crash, or to add new images.

    Example: `likeness embed photos/ my-collection --model demo`
    """
    from jobs.update import Update

    # Rows of another source with the same ids are replaced, with a warning.
    spec = job_spec(context, missing="keep", max_missing=1)
    show_embedded(Update(spec=spec, console=console, command="embed", index=index, verbose=verbose).run())
    if index:
        print(next_commands(collection))


def show_embedded(report: "Report") -> None:
    """The closing table of `embed`, and a line about the index."""
    from jobs.cli.tables.job import closing_lines, embed_table

    for embedding in report.embedding:
        console.print(embed_table(embedding))
    for line in closing_lines(report):
        console.print(line, soft_wrap=True)


def next_commands(collection: str) -> str:
    """What one does with a collection that has just been made."""
    from index.storage.bucket import without_secrets

    name = shlex.quote(without_secrets(collection))
    return f"Search it with `likeness search {name} PICTURE`, or serve it with `likeness serve {name} --local`"


def reembed(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(help="The source of the collection's images.")] = None,
    collection: Annotated[str | None, typer.Argument(help="The collection: a folder or bucket prefix.")] = None,
    spec: Annotated[Path | None, typer.Option(help="Read all options from a file such as deploy/job.yaml.")] = None,
    model: OtherModelOption = None,
    revision: RevisionOption = None,
    embedder: EmbedderOption = None,
    missing: MissingOption = "delete",
    max_missing: MaxMissingOption = 0.2,
    verify_hash: Annotated[bool, typer.Option("--verify-hash", help="Compare all images by their bytes.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the outcome to this file as JSON.")] = None,
    device: DeviceOption = None,
    precision: PrecisionOption = "auto",
    num_gpus: NumGpusOption = None,
    actors: ActorsOption = None,
    cpus_per_actor: CpusOption = None,
    accelerator_type: AcceleratorOption = None,
    actor_resources: ActorResourcesOption = None,
    batch_size: BatchSizeOption = 64,
    block_size: BlockSizeOption = 256,
    max_reject_rate: RejectRateOption = 0.05,
    extensions: ExtensionsOption = None,
    uri_column: UriColumnOption = None,
    keep: KeepOption = None,
    tiles: TilesOption = None,
    exif: ExifOption = None,
    draft: DraftOption = True,
    queries: QueriesOption = None,
    on: OnOption = None,
    address: AddressOption = None,
    wait_for_nodes: WaitOption = None,
    output: FormatOption = "table",
    verbose: VerboseOption = False,
) -> None:
    """Bring a collection and its index up to date with a source, or move them to another model.

    Exits with 0 if everything is up to date, 1 if the outcome is not good enough to publish, 2 for a usage error or an
    unreadable source, 3 if too many images are gone, 75 while another job writes. With --spec, it also removes old
    index versions and sends notifications as the file says; --max-missing overrides the file.

    Examples: `likeness reembed photos/ my-collection`, `likeness reembed --spec deploy/job.yaml`
    """
    from jobs.schedule.run_job import run_job
    from jobs.schedule.spec_file import read_spec
    from jobs.update import Update

    if spec is None and (source is None or collection is None):
        raise UsageError("expected SOURCE and COLLECTION, or --spec FILE")
    with _reporting(report, output) as outcome:
        job = read_spec(spec) if spec else job_spec(context)
        if spec and "max_missing" in _given_beside_spec(context):
            job = job.model_copy(update={"max_missing": max_missing})
        shown = console if output == "table" else errors  # programs read stdout, and JSON is there
        update = Update(spec=job, console=shown, report=outcome, dry_run=dry_run, verbose=verbose)
        if spec is None or dry_run:
            update.run()
        else:
            run_job(update)


@contextmanager
def _reporting(path: Path | None, output: str) -> "Iterator[Report]":
    """Write and show the report. A job that fails has one too: otherwise an earlier job's would seem to be its own."""
    from jobs.cli.tables.job import closing_lines, reembed_table
    from jobs.embedding.report import Report
    from jobs.schedule.history import outcome_of

    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"--report is {path}: there is no folder {path.absolute().parent}")
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
        shown = (name if name in ("source", "collection") else f"--{name.replace('_', '-')}" for name in wrong)
        raise UsageError(f"{', '.join(shown)} beside --spec: expected it in the file, which describes the whole job")
    return given
