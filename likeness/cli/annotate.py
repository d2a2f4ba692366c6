"""The commands `annotate` and `columns`. `app` registers them."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from likeness.cli.job_options import DeviceOption, RejectRateOption
from likeness.cli.options import (
    AddressOption,
    CollectionArgument,
    EmbedderOption,
    FormatOption,
    OnOption,
    console,
    open_collection,
    show,
)
from jobs.errors import UsageError
from jobs.values import MAX_REJECT_RATE, counted

if TYPE_CHECKING:
    from index.collection import Collection
    from jobs.spec import AnnotationSpec

_LABEL = 'A text such as "a dog"; may be repeated. Each image gets the nearest label.'
_NONE_BELOW = "An image gets none of the labels if the best one scores below this quantile of random image-text pairs."
_QUALITY = "Sharpness, brightness, contrast, entropy, colourfulness, near-uniform."
_CAPTIONER = "An image-to-text model: hub id or folder; with vllm, its name on the server."
_PROMPT = "The start of every caption; for a chat model, the question."
_ENGINE = "What runs the captioner: this job, or a vLLM server."
_BLOCK_SIZE = (
    "Images written at once: a crash loses at most these. Labels, and predictors that need embeddings, ignore it."
)


def annotate(
    context: typer.Context,
    collection: CollectionArgument,
    name: Annotated[str, typer.Option(help="The column's name, and the prefix of further columns: NAME_score.")],
    label: Annotated[list[str] | None, typer.Option(help=_LABEL)] = None,
    labels: Annotated[Path | None, typer.Option(help="A file with one label per line.")] = None,
    template: Annotated[str, typer.Option(help="The text for each label; {} stands for the label.")] = "a photo of {}",
    none_below: Annotated[float, typer.Option(min=0, max=1, help=_NONE_BELOW)] = 0.5,
    quality: Annotated[bool, typer.Option("--quality", help=_QUALITY)] = False,
    classifier: Annotated[str | None, typer.Option(help="An image-classification model: hub id or folder.")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Classes to keep for each image.")] = 5,
    captioner: Annotated[str | None, typer.Option(help=_CAPTIONER)] = None,
    prompt: Annotated[str | None, typer.Option(help=_PROMPT)] = None,
    engine: Annotated[Literal["transformers", "vllm"], typer.Option(help=_ENGINE)] = "transformers",
    url: Annotated[str | None, typer.Option(help="URL of the vLLM server, such as http://localhost:8000/v1.")] = None,
    predictor: Annotated[str | None, typer.Option(help="Your own class: module:Class.")] = None,
    max_reject_rate: RejectRateOption = MAX_REJECT_RATE,
    on: OnOption = None,
    address: AddressOption = None,
    block_size: Annotated[int, typer.Option(min=1, help=_BLOCK_SIZE)] = 256,
    device: DeviceOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Add columns to the images of a collection. Run it again to continue after a crash, or for new images.

    Labels use the stored vectors, without reading pictures. The other predictors read the pictures again, like `embed`.
    You can filter by the columns, and every match includes them, like the source's metadata.

    Example: `likeness annotate my-collection --name animal --label "a dog" --label "a cat"`
    """
    from index.collection import writing
    from jobs.annotation.annotate import Annotate
    from jobs.annotation.recipes import recipe_of
    from jobs.spec import Resources

    spec = _annotation_spec(context)
    job = Annotate(
        collection=open_collection(collection),
        console=console,
        resources=Resources(device=device, on=on, address=address, block_size=block_size),
        recipe=partial(recipe_of, embedder=embedder),
        max_reject_rate=max_reject_rate,
    )
    with writing(job.collection, "annotate") as job.collection:
        report = job.run([spec])[name]
    rejected = report.reject_reasons.total()
    console.print(
        f"{name}: {report.embedded:,} of {counted(report.listed, 'image')} annotated, "
        f"{report.already_there:,} were up to date"
        + (f", {rejected:,} have no value: `likeness columns` says why" if rejected else ""),
        highlight=False,
        soft_wrap=True,
    )


def _annotation_spec(context: typer.Context) -> "AnnotationSpec":
    """The annotation that the options describe. UsageError names the first invalid option."""
    from pydantic import ValidationError

    from jobs.indexing.query_texts import read_lines
    from jobs.spec import AnnotationSpec

    options = {name: context.params[name] for name in AnnotationSpec.model_fields if name in context.params}
    path = context.params["labels"]
    options["labels"] = [*(context.params["label"] or []), *(read_lines(path, "--labels") if path else [])]
    try:
        return AnnotationSpec.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "string_pattern_mismatch":
            message = f"expected {AnnotationSpec.model_fields[str(first['loc'][0])].description}"
        option = f"--{str(first['loc'][0]).replace('_', '-')} is {first['input']!r}: " if first["loc"] else ""
        raise UsageError(f"{option}{message}") from error


def columns(
    collection: CollectionArgument,
    drop: Annotated[str | None, typer.Option(help="Remove the annotation with this name.")] = None,
    output: FormatOption = "table",
) -> None:
    """List the columns added by `annotate`, or drop those of one annotation.

    Example: `likeness columns my-collection --drop animal`
    """
    from likeness.cli.tables.collection import columns_table

    opened = open_collection(collection)
    if drop is not None:
        from index.collection import writing
        from jobs.annotation.annotate import drop as drop_columns

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
                "calibration": last_run.calibration,
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
