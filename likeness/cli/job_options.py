"""The options of jobs: each is a field of `JobSpec` or of its resources, declared once for all commands."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from embedder.identity import Precision
from likeness.cli.options import AddressOption, EmbedderOption, OnOption, QueriesOption, without_none
from jobs.errors import UsageError
from jobs.values import DEFAULT_MODEL, GONE_AFTER, MAX_REJECT_RATE, PER_HOST, REFRESH

if TYPE_CHECKING:
    from jobs.spec import JobSpec

Command = TypeVar("Command", bound=Callable[..., None])

RevisionOption = Annotated[str | None, typer.Option(help="The model's branch, tag or commit on the hub.")]
DeviceOption = Annotated[str | None, typer.Option(help="cuda, cpu, …; by default a GPU if there is one.")]
UriColumnOption = Annotated[str | None, typer.Option(help="A list's column of paths or URLs; by default uri or url.")]
RejectRateOption = Annotated[
    float, typer.Option(min=0, max=1, help="Fail if more than this share of the images is rejected.")
]
_MODEL = (
    "A CLIP-family model: hub id or folder. `demo` is the small one that comes with Likeness. By default the "
    f"collection's own model, or for a new collection {DEFAULT_MODEL}."
)
_PRECISION = "Precision of the model; auto picks the fastest that agrees with fp32."
_EXTENSIONS = "File extensions to include: jpg,png, or images,videos."
_EXCLUDE = "Files and folders to leave out, as in a .gitignore: *.gif, raw/, /2023/*.png. May be repeated."
_REFRESH = "How often to look at each web address of a list again: 7d, 12h, or never."
_GONE_AFTER = "Visits without a picture (404, 410) after which a web address counts as gone."
_PER_HOST = "Maximum requests to a web server at a time, of each process."
_KEEP = 'Embed only images that match this filter: {"width": {"$gte": 640}}. By default, all.'
_URIS = "A list's column of paths or URLs, or Parquet's column of pictures; by default uri or url, or the pictures."
_TYPES = (
    "Types of a list's columns: text, integer, number, boolean, date or time. By default found by the values, and text "
    "unless that keeps each value as it is written."
)
_TILES = "Also embed this many parts of each picture, to find small things in it: 2x2."
_DRAFT = "Decode large JPEGs at reduced scale, many times faster."
_MAX_PIXELS = "Reject pictures of more pixels, by default 150 million; decoding takes some 4 bytes for each."
_GPUS = "GPUs for each actor: a whole number, or a fraction of one."
_CPUS = "CPUs that Ray reserves for each actor, one by default; the others decode."
_AMOUNTS = 'Custom resources of the cluster for each actor, as JSON: {"npu": 1}.'
_WAIT = "How long to wait for nodes that an autoscaler has yet to add: 10m. By default, not at all."
_BLOCK = "Images written at once: a crash loses at most these."
_EXIF = (
    "Store the time, camera and place of each picture: exif_taken, exif_camera, exif_latitude, exif_longitude. By "
    "default, as in the source's last run; off for a new source."
)


_IN_PLAIN_WORDS = {"string_too_short": "is empty", "string_unicode": "is not UTF-8"}


def embedding_options(
    model: Annotated[str | None, typer.Option(help=_MODEL)] = None,
    revision: RevisionOption = None,
    embedder: EmbedderOption = None,
    device: DeviceOption = None,
    precision: Annotated[Precision, typer.Option(help=_PRECISION)] = "auto",
    extensions: Annotated[str | None, typer.Option(help=_EXTENSIONS)] = None,
    uri_column: Annotated[str | None, typer.Option(help=_URIS)] = None,
    id_column: Annotated[str | None, typer.Option(help="A list's column of ids; by default id.")] = None,
    column_types: Annotated[str | None, typer.Option(metavar="COLUMN=TYPE,…", help=_TYPES)] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="GLOB", help=_EXCLUDE)] = None,
    keep: Annotated[str | None, typer.Option(help=_KEEP)] = None,
    refresh: Annotated[str, typer.Option(help=_REFRESH)] = REFRESH,
    gone_after: Annotated[int, typer.Option(min=1, help=_GONE_AFTER)] = GONE_AFTER,
    per_host: Annotated[int, typer.Option(min=1, help=_PER_HOST)] = PER_HOST,
    tiles: Annotated[str | None, typer.Option(metavar="CxR", help=_TILES)] = None,
    draft: Annotated[bool, typer.Option(help=_DRAFT)] = True,
    max_pixels: Annotated[int | None, typer.Option(min=1, help=_MAX_PIXELS)] = None,
) -> None:
    """What is embedded, and with which model."""


def cluster_options(
    num_gpus: Annotated[float | None, typer.Option(min=0, help=_GPUS)] = None,
    actors: Annotated[str | None, typer.Option(help="Embedding actors: a number, or MIN:MAX.")] = None,
    cpus_per_actor: Annotated[float | None, typer.Option(help=_CPUS)] = None,
    accelerator_type: Annotated[str | None, typer.Option(help="Kind of GPU, as Ray names it: A100, H200, …")] = None,
    actor_resources: Annotated[str | None, typer.Option(help=_AMOUNTS)] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 64,
    block_size: Annotated[int, typer.Option(min=1, help=_BLOCK)] = 256,
    max_reject_rate: RejectRateOption = MAX_REJECT_RATE,
    exif: Annotated[bool | None, typer.Option("--exif/--no-exif", help=_EXIF)] = None,
    queries: QueriesOption = None,
    on: OnOption = None,
    address: AddressOption = None,
    wait_for_nodes: Annotated[str | None, typer.Option(help=_WAIT)] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the output of Ray and its workers.")] = False,
) -> None:
    """How a job runs, and what it prints."""


def with_options_of(*shared: Callable[..., None]) -> Callable[[Command], Command]:
    """Adds these options to a command's own; the command gets them as `**options`, and from its context."""

    def extend(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        more = [each for options in shared for each in inspect.signature(options).parameters.values()]
        more = [each for each in more if each.name not in signature.parameters]
        vars(command)["__signature__"] = signature.replace(parameters=[*own, *more])
        return command

    return extend


def job_spec(context: typer.Context, **more: Any) -> "JobSpec":
    """The job that a command's options describe; `more` are further fields. UsageError names the first invalid one."""
    from pydantic import ValidationError

    from jobs.spec import JobSpec, Resources

    options = without_none(**{**context.params, **more})
    resources = {name: value for name, value in options.items() if name in Resources.model_fields}
    fields = {name: options[name] for name in JobSpec.model_fields if name in options and name != "index"}
    if "queries" in options:
        fields["index"] = {"queries": options["queries"]}
    try:
        return JobSpec.model_validate({**fields, "resources": resources})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][-1])
        shown = name.upper() if name in ("source", "collection") else f"--{name.replace('_', '-')}"
        wrong = _IN_PLAIN_WORDS.get(first["type"]) or first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{shown} {wrong}") from error
