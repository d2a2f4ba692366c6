"""The commands `annotate`, `match` and `columns`. `app` registers them."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.errors import UsageError
from jobs.values import counted
from likeness.cli.model_options import Fields, model_of, with_fields
from likeness.cli.options import CollectionArgument, FormatOption, console, open_collection, show

if TYPE_CHECKING:
    from index.collection import Collection

_JOB, _RESOURCES, _ANNOTATION = (("jobs.spec", name) for name in ("JobSpec", "Resources", "AnnotationSpec"))
_LABEL = (
    'A text such as "a dog"; may be repeated. Each image, or with --clusters each cluster, gets the nearest. '
    "With --head, the name of one of its outputs, in their order."
)


@with_fields(
    Fields(*_ANNOTATION, but="labels match k"),
    Fields(*_JOB, "max_reject_rate embedder"),
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
    Fields(*_ANNOTATION, "name"),
    Fields(*_ANNOTATION, "k", flag="-k"),
    Fields(*_JOB, "max_reject_rate"),
    Fields(*_RESOURCES, "on address"),
)
def match(
    collection: CollectionArgument,
    other: Annotated[str, typer.Argument(help="The collection to search, which has an index; may be the same one.")],
    to: Annotated[Path | None, typer.Option(help="Also write the pairs to this Parquet file.")] = None,
    **options: Any,
) -> None:
    """Find the nearest of each image in another collection: what you have already, or what leaked into a training set.

    This adds columns to the images of COLLECTION, like `annotate`, without reading pictures. Run it again to continue
    after a crash, for new images, or when OTHER has changed.

    Example: `likeness match my-collection other-collection --name seen --to pairs.parquet`
    """
    from index.errors import NotACollectionError

    if to is not None and (to.suffix != ".parquet" or to.is_dir()):
        raise UsageError(f"--to is {str(to)!r}: expected the path of a file that ends in .parquet")
    searched = open_collection(other)
    try:
        open_collection(collection)
    except NotACollectionError as error:
        raise UsageError(
            f"{error}. To match pictures, embed them first: {_embed_command(collection, searched)}"
        ) from error
    on = options["on"] or ("ray" if options["address"] else None)
    _annotate(collection, {**options, "match": other, "on": on}, {"k": "-k"})
    if to is not None:
        from jobs.annotation.predictors.match import write_pairs

        count = write_pairs(open_collection(collection), options["name"], searched, to)
        console.print(f"{counted(count, 'pair')}: {to}", soft_wrap=True, markup=False, highlight=False)


def _embed_command(source: str, other: "Collection") -> str:
    """The command that embeds a source with the model of another collection."""
    from index.versions.servable import collection_model

    model = collection_model(other, other.runs())
    return f"`likeness embed {shlex.quote(source)} NEW-COLLECTION{f' --model {model.id}' if model else ''}`"


def _annotate(collection: str, options: dict[str, Any], flags: dict[str, str]) -> None:
    """Bring the annotation that the options describe up to date."""
    from index.collection import writing
    from jobs.annotation.annotate import Annotate
    from jobs.annotation.recipes import recipe_of
    from jobs.spec import AnnotationSpec, Resources

    spec = model_of(AnnotationSpec, options, flags)
    job = Annotate(
        collection=open_collection(collection),
        console=console,
        resources=model_of(Resources, options),
        recipe=partial(recipe_of, embedder=options.get("embedder")),
        max_reject_rate=options["max_reject_rate"],
    )
    with writing(job.collection, "annotate") as job.collection:
        report = job.run(spec)
    rejected = report.reject_reasons.total()
    console.print(
        f"{spec.name}: {report.embedded:,} of {counted(report.listed, 'image')} annotated, "
        f"{report.already_there:,} were up to date"
        + (f", {rejected:,} have no value: `likeness columns` says why" if rejected else ""),
        highlight=False,
        soft_wrap=True,
    )


def columns(
    collection: CollectionArgument,
    drop: Annotated[str | None, typer.Option(help="Remove the annotation with this name.")] = None,
    output: FormatOption = "table",
) -> None:
    """List the columns added by `annotate`, or drop those of one annotation. `likeness info` lists all columns.

    Example: `likeness columns my-collection --drop animal`
    """
    from likeness.cli.tables.collection import columns_table

    opened = open_collection(collection)
    if drop is not None:
        from index.collection import writing
        from jobs.annotation.publish import drop as drop_columns

        with writing(opened, "columns") as leased:
            drop_columns(leased, drop, console)
    facts = _annotation_facts(opened)
    show(output, facts, lambda: columns_table(facts))


def _annotation_facts(collection: "Collection") -> list[dict[str, Any]]:
    from index.collection.annotations import list_annotations
    from index.versions.servable import collection_model, live_manifest

    annotations = list_annotations(collection)
    if not annotations:
        return []
    version, snapshot = live_manifest(collection), collection.snapshot()
    indexed = version.annotations if version else {}
    model = collection_model(collection, snapshot.committed)
    images = snapshot.live().of_model(model) if model else snapshot.live()
    facts = []
    for annotation in annotations:
        rows, last_run = annotation.rows, annotation.runs[-1]
        [counts] = images.catalog.table(_COUNTS.format(images=images.sql, values=rows.sql)).to_pylist()
        facts.append(
            {
                "name": annotation.name,
                "columns": {name: str(rows.schema.field(name).type) for name in rows.metadata},
                "predictor": last_run.model.id,
                "fingerprint": last_run.model.fingerprint,
                **{name: counts[name] for name in ("images", "rejected")},
                "reasons": {each["reason"]: each["count"] for each in counts["reasons"]},
                "without": counts["without"],
                "indexed": indexed.get(annotation.name) == annotation.run_ids,
            }
        )
    return facts


_COUNTS = """
WITH found AS (
    SELECT v.image_id IS NOT NULL AS found, v.error_reason IS NOT NULL AS rejected, v.error_message AS reason
    FROM {images} AS i
    LEFT JOIN {values} AS v ON v.image_id = i.image_id AND v.content_hash IS NOT DISTINCT FROM i.content_hash
    WHERE i.error_reason IS NULL
), reasons AS (
    SELECT coalesce(reason, 'None') AS reason, count(*) AS count FROM found WHERE rejected
    GROUP BY ALL ORDER BY count DESC, reason LIMIT 3
)
SELECT count(*) FILTER (found AND NOT rejected) AS images, count(*) FILTER (rejected) AS rejected,
       count(*) FILTER (NOT found) AS without,
       coalesce((SELECT list(reasons ORDER BY count DESC, reason) FROM reasons), []) AS reasons
FROM found
"""
