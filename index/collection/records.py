"""The JSON files of a collection, each with a checksum of its own content, so that an altered one is refused."""

import hashlib
import json
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from index.queries import QueryKind
from index.tiles import Box, tile_boxes

FLAT = "Flat"
"""The factory of a segment that is searched exactly."""


_MAX_AGEING = 2.0


class OtherFormatError(ValueError):
    """The record is intact, but another release wrote it."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """Indented JSON with a `checksum` of everything else."""
        content = self.model_dump(mode="json")
        return (json.dumps({**content, "checksum": _checksum(content)}, indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. ValueError if it is not JSON, not this record, or altered; OtherFormatError if
        another release wrote it.
        """
        content = json.loads(data)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError("its content does not match its checksum")
        if (field := cls.model_fields.get("format")) and content.get("format") != field.default:
            raise OtherFormatError(
                f"has format {content.get('format')}, this release of Likeness reads {field.default}"
            )
        # Fields added by a later release must not prevent this one from reading.
        return cls.model_validate(content, extra="ignore")


UNKNOWN_MODEL = "(unknown)"
"""Stands for a model's id if vectors were imported without the name of their model."""

UNKNOWN_MODEL_MESSAGE = (
    "the vectors were imported without the name of their model, so pictures and words cannot be compared with "
    "them. Search by the ids of images or by vectors, or import them into a new collection with --model"
)


class ModelRecord(Record):
    """The model of some vectors. `fingerprint` covers weights, configuration and preprocessing; for an unknown model it
    identifies the source that the vectors were imported from. `tiles` is the grid of parts that have vectors too; None:
    only whole pictures have vectors.
    """

    id: str
    revision: str | None
    fingerprint: str
    dim: int
    tiles: str | None = None

    def agrees_with(self, other: "ModelRecord") -> bool:
        """Whether rows of both may be in one index, no matter where the copies of the model are."""
        return (self.fingerprint, self.tiles) == (other.fingerprint, other.tiles)

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The parts of a picture that have vectors of their own."""
        return tile_boxes(self.tiles)

    @property
    def is_unknown(self) -> bool:
        return self.id == UNKNOWN_MODEL

    def __str__(self) -> str:
        if self.is_unknown:
            return f"an unknown model ({self.dim} dimensions, imported without a model's name)"
        tiles = f", tiles {self.tiles}" if self.tiles else ""
        return f"{self.id}{f'@{self.revision}' if self.revision else ''} (fingerprint {self.fingerprint[:12]}{tiles})"


class FileRecord(Record):
    size: int
    sha256: str


class RowFile(Record):
    """A Parquet file of a run. `path` is relative to the collection, `size` in bytes."""

    path: str
    rows: int
    size: int
    sha256: str


class RunStart(Record):
    """`started.json`: a run that has begun. Run ids sort by start time.

    In a run of an annotation, `model` is the predictor, and `calibration` was measured once for all of its runs. `keep`
    is the filter for images, as canonical JSON; None: all were embedded. `exif`: its rows have columns from EXIF.
    """

    format: Literal[1] = 1
    run_id: str
    source: str
    model: ModelRecord
    started_at: datetime
    calibration: dict[str, float] = {}
    keep: str | None = None
    exif: bool = False


class RunManifest(RunStart):
    """`manifest.json` of a run. `deletes`: images that left the source. `finished_at` and `counts` are informative."""

    finished_at: datetime
    files: list[RowFile]
    deletes: RowFile | None = None
    counts: dict[str, int] = {}


class Current(Record):
    """`CURRENT`: the live version; None if none has gone live yet."""

    version: str | None


class IndexSettings(Record):
    """The settings of an index; updates keep them. No version whose recall@10 is below `target_recall` goes live.

    An exact scan is preferred if it takes at most `latency_ms`. `max_memory` is in bytes for all segments. `factory`, a
    faiss factory string, overrides the choice. `queries` is the digest of the texts that recall is measured with; None:
    captions chosen for the collection.
    """

    target_recall: float = Field(0.99, gt=0, le=1)
    latency_ms: float = Field(5.0, gt=0)
    max_memory: int | None = Field(None, gt=0)
    factory: str | None = None
    segment_rows: int = Field(1_000_000, ge=1)
    queries: str | None = None

    def target_of(self, kind: QueryKind) -> float:
        """The recall@10 that queries of a kind must reach. Texts may miss twice as many as images: all images are
        nearly equally far from a text, so the missed ones are hardly better than those returned instead.
        """
        return max(0.0, 2 * self.target_recall - 1) if kind == "text" else self.target_recall


class Option(Record):
    """A kind of index that was considered: its estimated `memory` in bytes, and `why` it was chosen or not."""

    name: str
    memory: int
    chosen: bool
    why: str


class SegmentRecord(Record):
    """An immutable segment, and the `files` in its folder. `live` counts the rows without tombstones.

    `factory` is "Flat" or a faiss factory string, `trained` the number of rows that its quantizers were trained for (0
    if these are too few); `parameters` are tuned, as are `tile_parameters`, those of the tiles' approximate index.
    `memory` counts the bytes that searches keep hot: the vectors of a flat segment, otherwise only the approximate
    index. `columns`, a file of the version, has the annotations of the segment's rows.
    """

    name: str
    ntotal: int
    live: int
    factory: str
    trained: int = 0
    parameters: dict[str, float]
    tile_parameters: dict[str, float] = {}
    memory: int
    files: dict[str, FileRecord]
    columns: FileRecord | None = None


class ScoreDistribution(Record):
    """Quantiles of scores at the ascending `levels`: a share `levels[i]` of random pairs of a query of a kind and an
    image scores below `random[kind][i]`, and of images and their nearest neighbours below `nearest[i]`. Kinds without
    queries are missing.
    """

    levels: list[float]
    random: dict[QueryKind, list[float]]
    nearest: list[float]


class KindRecord(Record):
    """Results for one kind of query: recall@10 over `queries` held-out ones, by searches `width` times as wide as those
    with an image.
    """

    queries: int
    recall: float
    width: float


class VersionManifest(Record):
    """`manifest.json` of an index version. `base` is the version that it updates; None: it was built from all rows.

    `files` are in the version's own folder. `ntotal` counts live rows. `recall` maps k to recall@k over `queries`
    held-out images (for k = 100 over a hundred of them), `kinds` has the other kinds of query too. `latency_ms` maps
    percentiles to milliseconds, over fifty queries searched one by one; `queries_per_second` is measured on a batch.
    `cost` is the CPU time of a query ÷ that in the largest segment alone, `built_cost` that of the last build from all
    rows.
    `annotations` maps names to runs; `annotates` is the version with the same images, if only annotations have changed
    since.
    """

    format: Literal[3] = 3
    version: str
    base: str | None
    model: ModelRecord
    created_at: datetime
    runs: list[str]
    settings: IndexSettings
    choice: list[Option]
    segments: list[SegmentRecord]
    files: dict[str, FileRecord]
    ntotal: int
    queries: int
    recall: dict[str, float]
    kinds: dict[QueryKind, KindRecord]
    latency_ms: dict[str, float]
    queries_per_second: float
    cost: float = 1.0
    built_cost: float = 1.0
    scores: ScoreDistribution
    seconds: float
    annotations: dict[str, list[str]] = {}
    annotates: str | None = None

    def without_columns(self) -> "VersionManifest":
        """The same version without annotations."""
        segments = [segment.model_copy(update={"columns": None}) for segment in self.segments]
        return self.model_copy(update={"segments": segments, "annotations": {}})

    @property
    def edition(self) -> str:
        """Number and creation time: if another collection takes this one's place, the numbers are the same."""
        return f"{self.version} of {self.created_at.isoformat()}"

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def kind(self) -> str:
        return ", ".join(sorted({segment.factory for segment in self.segments}))

    @property
    def below_target(self) -> bool:
        """Whether recall@10 is too low for any kind of query: such a version goes live only if promoted."""
        return bool(self.recall_below_target)

    @property
    def recall_below_target(self) -> dict[QueryKind, float]:
        """The recall@10 of the kinds of query that do not reach their target."""
        recalls = {kind: record.recall for kind, record in self.kinds.items()}
        return {kind: recall for kind, recall in recalls.items() if recall < self.settings.target_of(kind)}

    @property
    def missed_message(self) -> str:
        """`recall_below_target` as a message."""
        return "; ".join(
            f"recall@10 {recall:.6g}{'' if kind == 'image' else f' for queries of kind {kind}'}, expected "
            f"{self.settings.target_of(kind):g} or more"
            for kind, recall in self.recall_below_target.items()
        )

    @property
    def ageing(self) -> float:
        """How many times as much as after a build from all rows a query costs; 1 while all rows are scanned exactly."""
        if self.kind == FLAT:
            return 1.0
        return self.cost / max(self.built_cost, -(-self.ntotal // self.settings.segment_rows))

    @property
    def aged(self) -> bool:
        """Whether the next build has to be one from all rows, since a query's cost has doubled."""
        return self.ageing > _MAX_AGEING

    def width_of(self, kind: QueryKind | None) -> float:
        """How many times as wide as with an image a search is. For an unknown kind, the maximum."""
        record = self.kinds.get(kind) if kind else None
        return record.width if record else max((record.width for record in self.kinds.values()), default=1.0)

    @property
    def memory(self) -> int:
        return sum(segment.memory for segment in self.segments)


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
