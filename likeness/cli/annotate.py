"""The commands `annotate`, `match` and `select`, which add columns to images. `app` registers them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.errors import UsageError
from jobs.values import counted
from likeness.cli.model_options import Fields, model_of, with_fields
from likeness.cli.options import (
    MODEL,
    CollectionArgument,
    console,
    error_console,
    job_spec,
    model_loader,
    open_collection,
)

if TYPE_CHECKING:
    from index.collection import Collection

_JOB, _RESOURCES = (("jobs.spec", name) for name in ("JobSpec", "Resources"))
_ANNOTATION = ("jobs.annotation_spec", "AnnotationSpec")
_LABEL = (
    'A text such as "a dog"; may be repeated. Each image, or with --clusters each cluster, gets the nearest. '
    "With --head, the name of one of its outputs, in their order."
)
_MATCH_FLAGS = {"k": "-k"}
_SELECTION = ("jobs.curation.spec", "SelectSpec")
_SELECTION_FLAGS = {"n": "-n", "continue_": "--continue"}


@with_fields(
    Fields(*_ANNOTATION, but="labels match k"),
    Fields(*_JOB, "max_reject_rate"),
    *MODEL,
    Fields(*_RESOURCES, "on address block_size device"),
)
def annotate(
    collection: CollectionArgument,
    label: Annotated[list[str] | None, typer.Option(help=_LABEL)] = None,
    labels: Annotated[Path | None, typer.Option(help="A file with one label per line.")] = None,
    **options: Any,
) -> None:
    """Add columns to the images of a collection. Run it again to continue after a crash, or for new images.

    Labels, examples, heads, clusters, uniqueness and outliers use the stored vectors. The others read the pictures
    again, like `embed`. You can filter by the columns, and every match includes them, like the source's metadata.

    Example: `likeness annotate my-collection --name animal --label "a dog" --label "a cat"`
    """
    from jobs.indexing.query_texts import read_lines

    texts = [*(label or []), *(read_lines(labels, "--labels") if labels else [])]
    _annotate(collection, {**options, "labels": texts}, {"labels": "--label"})


@with_fields(
    Fields(*_ANNOTATION, "name", default=None),
    Fields(*_ANNOTATION, "k", flags=_MATCH_FLAGS),
    Fields(*_JOB, "max_reject_rate max_missing"),
    *MODEL,
    Fields(*_RESOURCES, "on address"),
)
def match(
    context: typer.Context,
    collection: Annotated[
        str, typer.Argument(help="The collection whose images are matched, or a source as of embed.")
    ],
    other: Annotated[str, typer.Argument(help="The collection to search, which has an index; may be the same one.")],
    to: Annotated[Path | None, typer.Option(help="Also write the pairs to this Parquet file.")] = None,
    **options: Any,
) -> None:
    """Find the nearest of each image in another collection: what you have already, or what leaked into a training set.

    This adds columns to the images of COLLECTION, like `annotate`, without reading pictures. Run it again to continue
    after a crash, for new images, or when OTHER has changed. A folder, list or bucket of pictures is first embedded,
    with the model of OTHER, into a collection beside the file --to; there NAME is match by default.

    Examples: `likeness match my-collection other-collection --name seen --to pairs.parquet`,
    `likeness match photos/ my-collection --to pairs.parquet`
    """
    from index.errors import NotACollectionError

    if to is not None and (to.suffix != ".parquet" or to.is_dir() or any(map(Path.is_file, to.parents))):
        raise UsageError(f"--to is {str(to)!r}: expected the path of a file that ends in .parquet, in a folder")
    searched, source = open_collection(other), None
    try:
        open_collection(collection)
    except NotACollectionError:
        source, collection = collection, _embed_source(context, searched, to)
    if not (name := options["name"] or (source and "match")):
        raise UsageError(f"--name is missing: expected a name for the columns that {collection} gets, such as seen")
    on = options["on"] or ("ray" if options["address"] else None)
    _annotate(collection, {**options, "name": name, "match": other, "on": on}, _MATCH_FLAGS, publish=source is None)
    if to is not None:
        from jobs.annotation.predictors.match import write_pairs

        count = write_pairs(open_collection(collection), name, searched, to, source)
        console.print(f"{counted(count, 'pair')}: {to}", soft_wrap=True, markup=False, highlight=False)


def _embed_source(context: typer.Context, other: "Collection", to: Path | None) -> str:
    """The collection beside the file `to`, with the images of a source, embedded with the model of the `other` one."""
    from embedder.models.own_embedder import OwnModel
    from index.storage.bucket_address import without_secrets
    from jobs.annotation.predictors.match import matched_version
    from jobs.embedding.model_source import ModelCache
    from jobs.errors import SourceError
    from jobs.sources.files import open_source, require_source_exists
    from jobs.update import Update
    from likeness.cli.embed import show_embedded

    source, cache = context.params["collection"], ModelCache()
    shown = without_secrets(source)
    try:
        require_source_exists(source)
    except SourceError as error:
        raise UsageError(f"{error}: expected a collection, or a source of pictures as of `likeness embed`") from error
    if to is None:
        raise UsageError(f"{shown} is not a collection: expected one, or for a source of pictures --to PAIRS.parquet")
    if (storage := open_source(source)).is_local and to.resolve().is_relative_to(Path(storage.root).resolve()):
        raise UsageError(
            f"--to is {str(to)!r}, in the source, where the pairs would count as a list: name another folder"
        )
    model = matched_version(other).model
    moved = context.params["model"]
    own = isinstance(cache.find_recorded(model, context.params["embedder"], moved), OwnModel)
    named = {"model": None if own else moved or model.id, "embedder": model.id if own else None}
    revision = None if moved else model.revision
    made = to.with_suffix(".collection")
    spec = job_spec(context, source=source, collection=str(made), revision=revision, **named)
    console.print(f"embedding {shown} into {made}", soft_wrap=True, markup=False, highlight=False)
    show_embedded(Update(spec=spec, console=console, index=False, model_cache=cache).run())
    return spec.collection


def _annotate(collection: str, options: dict[str, Any], flags: dict[str, str], *, publish: bool = True) -> None:
    """Bring the annotation that the options describe up to date, and the index too unless it is not to `publish` it."""
    from index.collection import writing
    from jobs.annotation.annotate import Annotate
    from jobs.annotation_spec import AnnotationSpec
    from jobs.spec import Resources

    spec, resources = model_of(AnnotationSpec, options, flags), model_of(Resources, options)
    job = Annotate(
        collection=open_collection(collection),
        console=console,
        resources=resources,
        load=model_loader(options, device=resources.device),
        max_reject_rate=options["max_reject_rate"],
    )
    with writing(job.collection, "annotate") as job.collection:
        report = job.run(spec) if publish else job.write_columns(spec)
    rejected = report.reject_reasons.total()
    console.print(
        f"{spec.name}: {report.embedded:,} of {counted(report.listed, 'image')} annotated, "
        f"{report.already_there:,} were up to date"
        + (f", {rejected:,} have no value: `likeness columns` says why" if rejected else ""),
        highlight=False,
        soft_wrap=True,
    )


@with_fields(Fields(*_SELECTION, flags=_SELECTION_FLAGS))
def select(collection: CollectionArgument, **options: Any) -> None:
    """Choose images that represent a collection, or one of each group of near-equal images, and write the choice as
    columns.

    With -n, NAME is the rank of a pick, NAME_nearest that of an image's nearest pick, and NAME_score its cosine with
    that. With --prune, NAME says whether an image is kept, and NAME_duplicate_of which one is kept instead.

    Examples: `likeness select my-collection -n 1000 --name pick --balance label`,
    `likeness select my-collection --prune 0.95 --name keep`,
    `likeness search my-collection --filter '{"pick": {"$gt": 0}}' --sort pick`
    """
    from index.collection import writing
    from jobs.curation.select import Select
    from jobs.curation.spec import SelectSpec

    spec = model_of(SelectSpec, options, _SELECTION_FLAGS)
    opened = open_collection(collection)
    with writing(opened, "select") as leased, error_console.status("opening the index") as status:
        made = Select(
            collection=leased,
            spec=spec,
            console=console,
            progress=lambda done, total: status.update(f"{done:,} of {total:,} done"),
        ).run()
    if spec.prune is not None:
        line = f"{made.chosen:,} of {made.images:,} images kept, {made.images - made.chosen:,} pruned"
    else:
        line = f"{made.chosen:,} of {made.images:,} images picked, {made.new:,} of them now"
        line += f"; each image has a pick with a cosine of {made.coverage:.3f} or more"
    console.print(f"{spec.name}: {line}", highlight=False, soft_wrap=True)
