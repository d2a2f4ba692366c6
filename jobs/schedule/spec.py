"""A job in a file, in YAML, for `likeness reembed --spec` and `likeness schedule`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from jobs.embedding.request import EmbedOptions
from jobs.errors import SpecError, UsageError
from jobs.update import ReembedSettings
from jobs.values import (
    IMAGE_EXTENSIONS,
    checked_amount,
    checked_resources,
    model_named,
    parse_actors,
    parse_extensions,
    parse_size,
)


def _size(value: object) -> object:
    """`2GiB` as bytes. Whole numbers are bytes already."""
    try:
        return parse_size("it", value) if isinstance(value, str) else value
    except UsageError as error:
        raise ValueError(str(error)) from error


def _actors(value: object) -> object:
    """`4` or `2:8` as (least, most)."""
    try:
        return parse_actors(str(value)) if isinstance(value, int | str) else value
    except UsageError as error:
        raise ValueError(str(error).removeprefix("--actors is ")) from error


def _extensions(value: tuple[str, ...]) -> tuple[str, ...]:
    """`[JPG, .png]` as the command reads `JPG,.png`."""
    try:
        return parse_extensions(",".join(value))
    except UsageError as error:
        raise ValueError(str(error).removeprefix("--extensions is ")) from error


def _gpus(value: float) -> float:
    return checked_amount(value, "GPUs")


Size = Annotated[
    int,
    BeforeValidator(_size),
    Field(gt=0),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["2GiB", "600MB", 500000000]}),
]
Actors = Annotated[
    tuple[int, int],
    BeforeValidator(_actors),
    WithJsonSchema({"type": ["integer", "string"], "examples": [4, "2:8"]}),
]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Resources(_Section):
    """Where the job runs, and on how much."""

    address: str | None = Field(None, description="a Ray cluster's address; none: one is started on this machine")
    actors: Actors | None = Field(None, description="embedding actors: a number, or LEAST:MOST")
    num_gpus: Annotated[float, Field(ge=0), AfterValidator(_gpus)] | None = Field(
        None, description="GPUs for each actor: a whole number, or a share of one"
    )
    accelerator_type: str | None = Field(None, description="kind of GPU, as Ray names it")
    actor_resources: Annotated[dict[str, Annotated[float, Field(gt=0)]], AfterValidator(checked_resources)] = Field(
        default_factory=dict, description="what each actor takes of a cluster's own resources, such as {npu: 1}"
    )
    device: str | None = Field(None, description="cuda, cpu, …; none: a GPU where there is one")
    batch_size: int = Field(64, ge=1, description="images in a forward pass")
    block_size: int = Field(256, ge=1, description="images written together: what a crash can cost")


class IndexBudget(_Section):
    """What is wanted of the index. What is left out stays as it is for the live version."""

    target_recall: float | None = Field(None, gt=0, le=1, description="recall@10 below which no version goes live")
    max_memory: Size | None = Field(None, description="what searching may keep in memory")
    latency_ms: float | None = Field(None, gt=0, description="an exact scan is preferred up to so many milliseconds")
    factory: str | None = Field(None, description="a faiss factory string, instead of the choice")
    segment_rows: int | None = Field(None, ge=1, description="the most images in a segment")


class Retention(_Section):
    """What is removed at the end of a run that went well, as `likeness prune` does it."""

    keep: int = Field(3, ge=1, description="index versions that stay, the live one counted")


class Target(_Section):
    """Who is told of a run: exactly one of the two."""

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


class JobSpec(_Section):
    """One job: bring a collection up to date with its source. Relative paths start at the file's own folder."""

    source: str = Field(min_length=1, description="a folder or bucket prefix of images, a list, Parquet or tars")
    collection: str = Field(min_length=1, description="a folder or bucket prefix")
    model: str | None = Field(None, description="hub id or ./folder, or demo; none: that of the live index")
    revision: str | None = Field(None, description="the model's branch, tag or commit on the hub")
    resources: Resources = Resources()
    index: IndexBudget = IndexBudget()
    retention: Retention = Retention()
    extensions: Annotated[tuple[str, ...], AfterValidator(_extensions)] = Field(
        IMAGE_EXTENSIONS, min_length=1, description="file extensions to take"
    )
    missing: Literal["keep", "delete"] = Field("delete", description="what becomes of images that are gone")
    max_missing: float = Field(
        0.2, ge=0, le=1, description="the share that may be gone before the job stops: an unmounted disk lists as empty"
    )
    max_reject_rate: float = Field(0.05, ge=0, le=1, description="share of the images that may be rejected")
    verify_hash: bool = Field(False, description="read the bytes of every image, whatever its size and time say")
    draft: bool = Field(True, description="decode large JPEGs at reduced scale, many times faster")
    notify: Notify = Notify()
    metrics_file: str | None = Field(
        None, pattern=r"\.prom$", description="written after each run for node_exporter's textfile collector"
    )

    def settings(self) -> ReembedSettings:
        """The settings for `jobs.update`."""
        resources = self.resources
        return ReembedSettings(
            source=self.source,
            collection=self.collection,
            model=self.model,
            revision=self.revision,
            device=resources.device,
            batch_size=resources.batch_size,
            options=EmbedOptions(
                block_size=resources.block_size, max_reject_rate=self.max_reject_rate, draft=self.draft
            ),
            extensions=self.extensions,
            actors=resources.actors,
            num_gpus=resources.num_gpus,
            accelerator_type=resources.accelerator_type,
            actor_resources=resources.actor_resources,
            address=resources.address,
            index=self.index.model_dump(exclude_none=True),
            missing=self.missing,
            max_missing=self.max_missing,
            verify_hash=self.verify_hash,
        )


class _Loader(yaml.SafeLoader):
    """Whole numbers as in YAML 1.2, and no dates: to YAML 1.1 an unquoted 2:8 is 128, 010 is 8, and 08 an error."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))


_INT, _DATE = "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_INT, _DATE)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_constructor(_INT, _Loader.construct_yaml_int)


def read_spec(path: Path) -> JobSpec:
    """The job in a file. SpecError names the file, and each line and field with what was expected there."""
    try:
        with path.open(encoding="utf-8") as file:  # given a string, errors show the line, and with it a secret
            loader = _Loader(file)
            node = loader.get_single_node()
            content = loader.construct_document(node) if node else None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read ({error}): expected a job in YAML; deploy/job.yaml is one") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: `!!int eight`
        raise SpecError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        spec = JobSpec.model_validate(content)
    except ValidationError as error:
        raise SpecError("; ".join(_problem(path, node, each) for each in error.errors())) from error
    return _located(spec, path.absolute().parent)


def _problem(path: Path, node: yaml.Node | None, error: Any) -> str:
    """One line of what is wrong: `job.yaml, line 3, index.target_recall: …`."""
    location: Sequence[str | int] = error["loc"]
    line = node.start_mark.line + 1 if node else 1
    for name in location:
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next((pair for pair in node.value if pair[0].value == name), None)
        if found is None:
            break
        node, line = found[1], found[0].start_mark.line + 1
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        message = "is missing"
    elif error["type"] == "extra_forbidden":
        message = "is no field of a job: deploy/job.schema.json lists them"
    elif error["type"] != "value_error" and location and location[0] != "notify":  # whose addresses are secret
        message = f"{message}, got {error['input']!r}"
    field = ".".join(map(str, location))
    return f"{path}, line {line}{f', {field}' if field else ''}: {message}"


def _located(spec: JobSpec, folder: Path) -> JobSpec:
    """The same job with absolute paths, wherever it is run from."""

    def absolute(value: str) -> str:
        return value if "://" in value else str(folder / Path(value).expanduser())

    changes = {"source": absolute(spec.source), "collection": absolute(spec.collection)}
    if spec.metrics_file:
        changes["metrics_file"] = absolute(spec.metrics_file)
    if spec.model:
        is_path = spec.model.startswith((".", "/", "~"))
        changes["model"] = absolute(spec.model) if is_path else model_named(spec.model)
    return spec.model_copy(update=changes)


if __name__ == "__main__":
    print(json.dumps(JobSpec.model_json_schema(), indent=2))
