"""What a job is to do: the one settings object, whether it comes from a command's options, from a file or from Python.

`python -m jobs.spec` prints the schema of such a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import permutations
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from embedder.identity import Precision
from embedder.images.formats import IMAGE_EXTENSIONS
from embedder.python_class import CLASS_NAME
from index.tiles import checked_tiles
from jobs.file_extensions import checked_extensions
from jobs.values import (
    MAX_MISSING,
    MAX_REJECT_RATE,
    MIN_AMOUNT,
    checked_amount,
    checked_resources,
    model_named,
    parse_actors,
    parse_duration,
    parse_object,
    parse_size,
)


def _written(parse: Callable[[str], Any]) -> BeforeValidator:
    """Texts and whole numbers are parsed; what Python's callers have parsed already stays."""
    return BeforeValidator(lambda value: parse(str(value)) if isinstance(value, str | int) else value)


Size = Annotated[
    int,
    _written(parse_size),
    Field(gt=0),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["2GiB", "600MB", 500000000]}),
]
Actors = Annotated[
    tuple[int, int], _written(parse_actors), WithJsonSchema({"type": ["integer", "string"], "examples": [4, "2:8"]})
]
Gpus = Annotated[float, Field(ge=0), AfterValidator(lambda amount: checked_amount(amount, "GPUs"))]
Cpus = Annotated[float, Field(gt=0), AfterValidator(lambda amount: checked_amount(amount, "CPUs", least=MIN_AMOUNT))]
Amounts = Annotated[
    dict[str, Any],
    _written(lambda text: parse_object(text, '{"npu": 1}')),
    AfterValidator(checked_resources),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}),
]
Expression = Annotated[
    dict[str, Any],
    _written(lambda text: parse_object(text, '{"width": {"$gte": 640}}')),
    WithJsonSchema({"type": "object", "examples": [{"width": {"$gte": 640}, "format": {"$ne": "gif"}}]}),
]
Duration = Annotated[
    int,
    _written(parse_duration),
    Field(gt=0),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["10m", "90s", 600]}),
]
Extensions = Annotated[tuple[str, ...], _written(lambda text: text.split(",")), AfterValidator(checked_extensions)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Resources(_Section):
    """Where the job runs, and on how much."""

    address: str | None = Field(None, description="a Ray cluster's address; none: one is started here if it pays")
    actors: Actors | None = Field(None, description="embedding actors: a number, or MIN:MAX")
    num_gpus: Gpus | None = Field(None, description="GPUs for each actor: a whole number, or a share of one")
    cpus_per_actor: Cpus | None = Field(
        None, description="CPUs that Ray sets aside for each actor, one by default; the others decode"
    )
    accelerator_type: str | None = Field(None, description="kind of GPU, as Ray names it")
    actor_resources: Amounts = Field(
        default_factory=dict, description="what each actor takes of a cluster's own resources, such as {npu: 1}"
    )
    wait_for_nodes: Duration | None = Field(
        None,
        description="how long to wait for nodes that a growing cluster has yet to add: 10m; none: not at all",
    )
    device: str | None = Field(None, description="cuda, cpu, …; none: a GPU where there is one")
    precision: Precision = Field(
        "auto", description="what a forward pass computes in: auto, fp32, bf16, or on CPUs int8"
    )
    batch_size: int = Field(64, ge=1, description="images in a forward pass")
    block_size: int = Field(256, ge=1, description="images written together: what a crash can cost")
    on: Literal["local", "ray"] | None = Field(
        None, description="local: in the job's own process; ray: on Ray; none: on Ray if that pays"
    )

    @property
    def ray_only(self) -> list[str]:
        """The fields that are set and that only Ray supports."""
        names = ("address", "actors", "num_gpus", "cpus_per_actor", "accelerator_type", "actor_resources")
        return [name for name in names if getattr(self, name) not in (None, {})]

    @field_validator("wait_for_nodes")
    @classmethod
    def _of_a_cluster(cls, seconds: int | None, others: ValidationInfo) -> int | None:
        if seconds is not None and others.data.get("address") is None:
            raise ValueError("is for a Ray cluster that grows: expected its address as well")
        return seconds

    @field_validator("on")
    @classmethod
    def _here(cls, on: str | None, others: ValidationInfo) -> str | None:
        if on == "local" and (ray_only := cls.model_construct(**others.data).ray_only):
            raise ValueError(f"is local: expected ray, or none of {', '.join(ray_only)}, which only Ray supports")
        return on


class IndexBudget(_Section):
    """What is wanted of the index. What is left out stays as it is for the live version."""

    target_recall: float | None = Field(None, gt=0, le=1, description="recall@10 below which no version goes live")
    max_memory: Size | None = Field(None, description="what searching may keep in memory")
    latency_ms: float | None = Field(None, gt=0, description="an exact scan is preferred up to so many milliseconds")
    factory: str | None = Field(None, description="a faiss factory string, instead of the choice")
    segment_rows: int | None = Field(None, ge=1, description="the most images in a segment")
    queries: str | None = Field(
        None, min_length=1, description="a file of texts, one a line, to measure searches by words with"
    )


class Retention(_Section):
    """What is removed at the end of a job that went well, as `likeness prune` does it."""

    keep: int = Field(3, ge=1, description="index versions that stay, the live one counted")


class Target(_Section):
    """Who is told of a job: exactly one of the two."""

    url: str | None = Field(
        None,
        pattern=r"^(https?://|\$\{)",
        description="the report is posted there as JSON; ${NAME} takes an environment variable",
    )
    command: str | None = Field(None, min_length=1, description="run by sh, with the report as JSON on its stdin")

    @model_validator(mode="after")
    def _one(self) -> Target:
        if (self.url is None) == (self.command is None):
            raise ValueError("expected one of url and command")
        return self


class Notify(_Section):
    """Who is told. A notification that fails is logged, and never fails the job."""

    on_success: Target | None = None
    on_failure: Target | None = None


NONE = "none of these"
"""What an image is labelled that none of the labels is near to."""
_SHOWN = ("rank", "score", "percentile", "image", "box", "alike")
"""Columns that a table of matches has anyway."""


class AnnotationSpec(_Section):
    """Columns that a predictor adds to the images: labels, quality, classes, captions, or by a class of one's own."""

    name: str = Field(
        description="of the column; others have it before an underscore",
        json_schema_extra={"pattern": r"^[A-Za-z][A-Za-z0-9_]{0,63}$"},
    )
    labels: tuple[str, ...] = Field((), description="texts; each image gets the one that is nearest to it")
    template: str = Field("a photo of {}", description="the text for each label; {} is the label")
    none_below: float = Field(
        0.5, ge=0, le=1, description="share of random image/text pairs below whose score a label is `none of these`"
    )
    quality: bool = Field(False, description="sharpness, brightness, contrast and other measures of the pixels")
    classifier: str | None = Field(None, description="an image-classification checkpoint: hub id or ./folder")
    top_k: int = Field(5, ge=1, description="classes to keep for each image")
    captioner: str | None = Field(
        None, description="an image-to-text checkpoint: hub id or ./folder; with vllm the name of a served model"
    )
    prompt: str | None = Field(None, description="what captions go on from; of a chat model, what it is asked")
    engine: Literal["transformers", "vllm"] = Field(
        "transformers", description="what runs the captioner: this job, or a server of vLLM"
    )
    url: str | None = Field(
        None, pattern=r"^https?://[^@\s]+$", description="where vLLM serves, such as http://localhost:8000/v1"
    )
    predictor: str | None = Field(
        None, pattern=CLASS_NAME, description="module:Class of a predictor, which Python can import"
    )

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,63}", name):
            raise ValueError("expected letters, digits and _, beginning with a letter, at most 64")
        if name in _SHOWN:
            raise ValueError(f"expected another name than {', '.join(_SHOWN)}, which every match has")
        return name

    @field_validator("labels")
    @classmethod
    def _different(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        labels = tuple(label.strip() for label in labels)
        wrong = [label for label in labels if labels.count(label) > 1 or label in ("", NONE)]
        if wrong:
            raise ValueError(f"expected different labels, none of them empty or {NONE!r}, got {wrong[0]!r}")
        return labels

    @field_validator("template")
    @classmethod
    def _with_label(cls, template: str) -> str:
        if template.count("{}") != 1:
            raise ValueError("expected a text with {} once, where the label goes")
        return template

    @model_validator(mode="after")
    def _one(self) -> AnnotationSpec:
        if sum(map(bool, (self.labels, self.quality, self.classifier, self.captioner, self.predictor))) != 1:
            raise ValueError(
                "expected one of labels (--label or --labels), quality, classifier, captioner and predictor"
            )
        if not self.captioner and (self.prompt or self.url or self.engine == "vllm"):
            raise ValueError("prompt, engine and url are for a captioner: expected one, or none of them")
        if (self.engine == "vllm") != bool(self.url):
            raise ValueError("expected both engine vllm and the url of its server, or neither")
        return self


class JobSpec(_Section):
    """One job: bring a collection up to date with its source. In a file, relative paths start at its own folder."""

    source: str = Field(min_length=1, description="a folder or bucket prefix of images, a list, Parquet or tars")
    collection: str = Field(min_length=1, description="a folder or bucket prefix")
    model: Annotated[str, AfterValidator(model_named)] | None = Field(
        None, description="hub id or ./folder, or demo; none: that of the live index"
    )
    revision: str | None = Field(None, description="the model's branch, tag or commit on the hub")
    embedder: str | None = Field(
        None,
        pattern=CLASS_NAME,
        description="module:Class of an embedder in place of a model, which Python can import",
    )
    tiles: Annotated[str, AfterValidator(checked_tiles)] | None = Field(
        None, description="parts of each picture to embed as well: 2x2; none: as in the collection"
    )
    resources: Resources = Resources()
    index: IndexBudget = IndexBudget()
    retention: Retention = Retention()
    extensions: Extensions = Field(IMAGE_EXTENSIONS, min_length=1, description="file extensions to take")
    uri_column: str | None = Field(None, min_length=1, description="a list's column of paths or URLs; none: uri or url")
    keep: Expression | None = Field(
        None, description="embed only images that this expression holds for, in the language of filters"
    )
    exif: bool | None = Field(
        None,
        description="columns of when, with what and where pictures were taken; none: as the source's last run did",
    )
    missing: Literal["keep", "delete"] = Field("delete", description="what becomes of images that are gone")
    max_missing: float = Field(
        MAX_MISSING,
        ge=0,
        le=1,
        description="the share that may be gone before the job stops: an unmounted disk lists as empty",
    )
    max_reject_rate: float = Field(MAX_REJECT_RATE, ge=0, le=1, description="share of the images that may be rejected")
    annotations: tuple[AnnotationSpec, ...] = Field(
        (), description="columns that are brought up to date after the images"
    )
    verify_hash: bool = Field(False, description="read the bytes of every image, whatever its size and time say")
    draft: bool = Field(True, description="decode large JPEGs at reduced scale, many times faster")
    notify: Notify = Notify()
    metrics_file: str | None = Field(
        None, pattern=r"\.prom$", description="written after each job for node_exporter's textfile collector"
    )

    @field_validator("embedder")
    @classmethod
    def _alone(cls, embedder: str | None, others: ValidationInfo) -> str | None:
        given = [name for name in ("model", "revision") if others.data.get(name) is not None]
        if embedder is not None and given:
            raise ValueError(f"stands in place of a model: expected no {' and no '.join(given)}")
        return embedder

    @field_validator("annotations")
    @classmethod
    def _apart(cls, annotations: tuple[AnnotationSpec, ...]) -> tuple[AnnotationSpec, ...]:
        for one, other in permutations((each.name for each in annotations), 2):
            if one == other or one.startswith(f"{other}_"):
                raise ValueError(f"{one} and {other} would have the same columns: expected other names")
        return annotations


if __name__ == "__main__":
    print(json.dumps(JobSpec.model_json_schema(), indent=2))
