"""The settings of a job: one object, whether they come from a command's options, a file or Python.

`python -m jobs.spec` prints the schema of a job's file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from embedder.identity import Precision
from embedder.images.exif import EXIF_COLUMNS
from embedder.images.formats import IMAGE_EXTENSIONS
from embedder.images.limits import DEFAULT_LIMITS, ImageLimits
from index.tiles import checked_tiles
from jobs.annotation_spec import AnnotationSpec
from jobs.exclusions import checked_patterns
from jobs.fields import (
    FROM_FOLDER,
    Actors,
    Amounts,
    ClassName,
    ColumnTypes,
    Cpus,
    Duration,
    Expression,
    Extensions,
    Gpus,
    Limit,
    Location,
    ModelName,
    Refresh,
    Section,
    Target,
    WordColumns,
)
from jobs.search_spec import SearchSpec
from jobs.values import (
    DEFAULT_MODEL,
    MAX_MISSING,
    MAX_REJECT_RATE,
    NO_LIMIT,
    PER_HOST,
    digest,
)


class Resources(Section):
    """Where the job runs, and with which resources."""

    address: str | None = Field(
        None, description="a Ray cluster: HOST:PORT or auto; by default Ray is started here if it is worthwhile"
    )
    actors: Actors | None = Field(None, description="embedding actors: a number, or MIN:MAX")
    num_gpus: Gpus | None = Field(None, description="GPUs for each actor: a whole number, or a fraction of one")
    cpus_per_actor: Cpus | None = Field(
        None, description="CPUs that Ray reserves for each actor, one by default; the others decode"
    )
    accelerator_type: str | None = Field(None, description="kind of GPU, as Ray names it: A100, H200, …")
    actor_resources: Amounts = Field(
        default_factory=dict, description='custom resources of the cluster for each actor: {"npu": 1}'
    )
    wait_for_nodes: Duration | None = Field(
        None, description="how long to wait for nodes that an autoscaler has yet to add: 10m; by default not at all"
    )
    device: str | None = Field(
        None, description="where the model runs: cuda, cpu, …; by default on a GPU if there is one"
    )
    precision: Precision = Field(
        "auto",
        description="precision of the model: fp32, bf16, or int8 on CPUs; auto picks the fastest that agrees with fp32",
    )
    batch_size: int = Field(64, ge=1, description="images per forward pass")
    block_size: int = Field(256, ge=1, description="images written at once: a crash loses at most these")
    on: Literal["local", "ray"] | None = Field(
        None, description="where to run: local, in the job's own process, or ray; by default on Ray if it is worthwhile"
    )

    @property
    def ray_only(self) -> list[str]:
        """The fields that are set and that only Ray supports."""
        names = ("address", "actors", "num_gpus", "cpus_per_actor", "accelerator_type", "actor_resources")
        return [name for name in names if getattr(self, name) not in (None, {})]

    @field_validator("wait_for_nodes")
    @classmethod
    def _require_address(cls, seconds: int | None, info: ValidationInfo) -> int | None:
        if seconds is not None and info.data.get("address") is None:
            raise ValueError("is for an autoscaling Ray cluster: expected its address as well")
        return seconds

    @field_validator("on")
    @classmethod
    def _require_ray(cls, on: str | None, info: ValidationInfo) -> str | None:
        if on == "local" and (ray_only := cls.model_construct(**info.data).ray_only):
            raise ValueError(f"is local: expected ray, or none of {', '.join(ray_only)}, which only Ray supports")
        return on


class IndexBudget(Section):
    """Requirements for the index. Fields that are left out keep their values from the live version."""

    target_recall: float | None = Field(
        None, gt=0, le=1, description="minimum recall@10 for a version to go live; initially 0.99"
    )
    max_memory: Limit | None = Field(
        None, description="memory available for searching: 600MB, 2GiB, …; none for no limit"
    )
    latency_ms: float | None = Field(
        None, gt=0, description="prefer an exact scan up to this many milliseconds; initially 5"
    )
    factory: str | None = Field(
        None,
        description="a faiss factory string such as HNSW32,SQ8, or auto for the automatic choice. It must support "
        "inner product and skipping rows: Flat, SQ, IVF and HNSW with these, with PCA or OPQ before and Refine after",
    )
    segment_rows: int | None = Field(None, ge=1, description="maximum images in a segment; initially a million")
    queries: Annotated[str, Field(min_length=1), FROM_FOLDER] | None = Field(
        None, description="a file of texts, one per line, for measuring searches by words"
    )
    words: WordColumns | None = Field(
        None,
        min_length=1,
        description="columns of text whose words are indexed: caption,uri, where uri has the names of files and "
        "folders; all (initially), or none",
    )

    def changes(self, texts: Sequence[str]) -> dict[str, Any]:
        """What changes in the settings of an index, with the digest of the `texts` in place of their file."""
        changes = self.model_dump(exclude_none=True, exclude={"queries"})
        cleared = {"max_memory": NO_LIMIT, "factory": "auto", "words": ("all",)}
        changes |= {name: None for name, value in cleared.items() if changes.get(name) == value}
        if self.words == ("none",):
            changes["words"] = ()
        return changes | ({"queries": digest(texts)} if texts else {})


class Retention(Section):
    """What a successful job keeps when it removes old index versions, like `likeness prune`."""

    keep: int = Field(3, ge=1, description="good index versions to keep, including the live one")


class Notify(Section):
    """Notifications of a job's outcome. One that fails is logged, and never fails the job."""

    on_success: Target | None = None
    on_failure: Target | None = None


class JobSpec(Section):
    """One job: bring a collection up to date with its source. In a file, paths are relative to the file's folder."""

    source: Location = Field(description="a folder or bucket prefix of images, a list, Parquet or tars")
    collection: Location = Field(description="a folder or bucket prefix")
    model: ModelName | None = Field(
        None,
        description="a CLIP-family model: hub id or ./folder, or demo, the small one that comes with Likeness; by "
        f"default the collection's own, or for a new collection {DEFAULT_MODEL}. Another model embeds everything again",
    )
    revision: str | None = Field(None, description="the model's branch, tag or commit on the hub")
    embedder: ClassName | None = Field(
        None, description="your own class instead of a model, module:Class; this runs its code"
    )
    tiles: Annotated[str, AfterValidator(checked_tiles)] | None = Field(
        None,
        description="parts of each picture to embed as well, to find small things in it: 2x2; by default as in the "
        "collection",
    )
    resources: Resources = Resources()
    index: IndexBudget = IndexBudget()
    retention: Retention = Retention()
    extensions: Extensions = Field(
        IMAGE_EXTENSIONS, min_length=1, description="file extensions to include: jpg,png, or images,videos"
    )
    uri_column: str | None = Field(
        None,
        min_length=1,
        description="a list's column of paths or URLs, or Parquet's column of pictures; by default uri or url, or the "
        "pictures",
    )
    id_column: str | None = Field(None, min_length=1, description="a list's column of ids; by default id")
    column_types: ColumnTypes = Field(
        default_factory=dict,
        description="types of a list's columns: text, integer, number, boolean, date or time; by default found by the "
        "values, and text unless that keeps each value as it is written",
    )
    exclude: Annotated[tuple[str, ...], AfterValidator(checked_patterns)] = Field(
        (), description="files and folders to leave out, as in a .gitignore: *.gif, raw/, /2023/*.png"
    )
    keep: Expression | None = Field(
        None, description='embed only images that match this filter: {"width": {"$gte": 640}}; by default all'
    )
    exif: bool | None = Field(
        None,
        description=f"store the time, camera and place of each picture: {', '.join(EXIF_COLUMNS)}; by default as in "
        "the source's last run, off for a new source",
    )
    missing: Literal["keep", "delete"] = Field(
        "delete", description="what to do with images that are gone from the source"
    )
    max_missing: float = Field(
        MAX_MISSING,
        ge=0,
        le=1,
        description="stop if more than this share of the images is gone: a disk that is not mounted looks empty",
    )
    max_reject_rate: float = Field(
        MAX_REJECT_RATE, ge=0, le=1, description="fail if more than this share of the images is rejected"
    )
    annotations: tuple[AnnotationSpec, ...] = Field((), description="columns to bring up to date after the images")
    searches: tuple[SearchSpec, ...] = Field(
        (), description="saved searches, which test each new image once: see docs/saved-searches.md"
    )
    refresh: Refresh = Field(
        "7d", validate_default=True, description="how often to look at each web address again: 7d, 12h or never"
    )
    gone_after: int = Field(
        3, ge=1, description="visits without a picture (404, 410) after which a web address counts as gone"
    )
    per_host: int = Field(PER_HOST, ge=1, description="maximum requests to a web server at a time, of each process")
    verify_hash: bool = Field(
        False,
        description="compare all images by their bytes, not by size and time, which a file may keep when it changes",
    )
    draft: bool = Field(True, description="decode large JPEGs at reduced scale, many times faster")
    max_pixels: int = Field(
        DEFAULT_LIMITS.max_pixels,
        ge=1,
        description="reject pictures of more pixels; decoding takes some 4 bytes for each",
    )
    notify: Notify = Notify()
    metrics_file: Annotated[str, Field(pattern=r"\.prom$"), FROM_FOLDER] | None = Field(
        None, description="written after each job for node_exporter's textfile collector"
    )

    @property
    def limits(self) -> ImageLimits:
        return DEFAULT_LIMITS.with_pixels(self.max_pixels)

    @field_validator("exclude", mode="before")
    @classmethod
    def _as_several(cls, patterns: object) -> object:
        return (patterns,) if isinstance(patterns, str) else patterns

    @field_validator("embedder")
    @classmethod
    def _exclude_model(cls, embedder: str | None, info: ValidationInfo) -> str | None:
        excess = [name for name in ("model", "revision") if info.data.get(name) is not None]
        if embedder is not None and excess:
            raise ValueError(f"replaces the model: expected no {' and no '.join(excess)}")
        return embedder

    @field_validator("annotations")
    @classmethod
    def _check_columns(cls, annotations: tuple[AnnotationSpec, ...]) -> tuple[AnnotationSpec, ...]:
        for one, other in permutations((each.name for each in annotations), 2):
            if one == other or one.startswith(f"{other}_"):
                raise ValueError(f"{one} and {other} would have the same columns: expected other names")
        return annotations

    @field_validator("searches")
    @classmethod
    def _check_names(cls, searches: tuple[SearchSpec, ...]) -> tuple[SearchSpec, ...]:
        names = Counter(each.name for each in searches)
        if names and names.most_common(1)[0][1] > 1:
            raise ValueError(f"has {names.most_common(1)[0][0]!r} twice: expected another name for each search")
        return searches


if __name__ == "__main__":
    print(json.dumps(JobSpec.model_json_schema(), indent=2))
