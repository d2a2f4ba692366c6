"""The JSON files of a collection, each with a checksum of its own content, so that an altered one is refused."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypedDict  # pydantic refuses `typing.TypedDict` before Python 3.12

from index.collection.bounds import (
    Count,
    Digest,
    Dim,
    Name,
    Parameters,
    RowFilePath,
    RunId,
    Seconds,
    SegmentName,
    Share,
    Tiles,
    Time,
    VersionName,
    Width,
    keys,
    parse_json,
)
from index.collection.layout import ANN, IDS, QUERIES, ROWS, TILE_ANN, TILE_VECTORS, TOMBSTONES, VECTORS, WORDS
from index.queries import QueryKind
from index.tiles import Box, tile_boxes

FLAT = "Flat"
"""The factory of a segment that is searched exactly."""

_ROWS_PER_BYTE = 4
"""Maximum rows of a row file in relation to its size: each row has an id of its own."""


_MAX_AGEING = 2.0


class OtherFormatError(ValueError):
    """The record is intact, but another release wrote it."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_bytes(self) -> bytes:
        """Indented JSON with a `checksum` of everything else."""
        content = self.model_dump(mode="json")
        return (json.dumps({**content, "checksum": _checksum(content)}, indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. ValueError if it is not JSON, not this record, altered, or has a value out of its
        bounds; OtherFormatError if another release wrote it.
        """
        content = parse_json(data)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError("its content does not match its checksum")
        if (field := cls.model_fields.get("format")) and content.get("format") != field.default:
            raise OtherFormatError(
                f"has format {content.get('format')}, this release of Likeness reads {field.default}"
            )
        # Fields added by a later release must not prevent this one from reading.
        try:
            return cls.model_validate(content, extra="ignore")
        except ValidationError as error:
            raise ValueError(_first_problem(error)) from error


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

    id: Name
    revision: Name | None
    fingerprint: Name
    dim: Dim
    tiles: Tiles | None = None

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
    """A file's `size` in bytes, and the hex digest of its content."""

    size: Count
    sha256: Digest


class RowFile(FileRecord):
    """A Parquet file of a run. `path` is relative to the collection."""

    path: RowFilePath
    rows: Count

    @model_validator(mode="after")
    def _holds_its_rows(self) -> Self:
        if self.rows > _ROWS_PER_BYTE * self.size:
            raise ValueError(f"{self.path} has {self.rows:,} rows in {self.size:,} bytes: expected fewer")
        return self


class RunSettings(Record):
    """What the rows of a run were made with, besides its model; rows that were made otherwise are written again.

    `keep` is the filter for images, as canonical JSON; None: all were embedded. `exif` is the version of the columns
    from EXIF that they have; 0: none.
    """

    keep: str | None = None
    exif: Count = 0

    def differing(self, other: "RunSettings") -> list[str]:
        """The names of the settings in which both differ."""
        return [name for name in RunSettings.model_fields if getattr(self, name) != getattr(other, name)]


class RunStart(RunSettings):
    """`started.json`: a run that has begun. Run ids sort by start time.

    In a run of an annotation, `model` is the predictor.
    """

    format: Literal[4] = 4
    run_id: RunId
    source: str
    model: ModelRecord
    started_at: Time


class Learned(Record):
    """What a predictor learned once from a collection: a vector, `dim` float32 numbers, for each of some names."""

    format: Literal[1] = 1
    names: tuple[Name, ...]
    vectors: Base64Bytes

    @model_validator(mode="after")
    def _has_a_vector_for_each_name(self) -> Self:
        if not self.names or not self.vectors or len(self.vectors) % (4 * len(self.names)):
            raise ValueError(f"has {len(self.vectors):,} bytes for {len(self.names):,} names")
        return self

    @classmethod
    def of(cls, names: Sequence[str], vectors: npt.NDArray[np.float32]) -> Self:
        return cls(names=tuple(names), vectors=b64encode(vectors.astype("<f4").tobytes()))

    @property
    def array(self) -> npt.NDArray[np.float32]:
        """`(n, dim)` float32."""
        return np.frombuffer(self.vectors, "<f4").reshape(len(self.names), -1).astype(np.float32)


class Delivered(Record):
    """`delivered.json`: of each saved search, the run up to which its matches have been delivered."""

    format: Literal[1] = 1
    runs: dict[Name, RunId] = {}


class RunCounts(TypedDict, total=False):
    """How many images were listed, already had a row, and were deleted; and how many rows have each outcome. A run that
    was not made from a source has no counts.
    """

    listed: int
    already_there: int
    deleted: int
    embedded: int
    filtered: int
    rejected: int


class RunManifest(RunStart):
    """`manifest.json` of a run. `files` lists its row files (see `FileList`), of which there may be millions; `facts`
    has all columns of their rows but vectors, and the ids of images that left the source. `finished_at` and `counts`
    are informative.
    """

    finished_at: Time
    files: RowFile
    facts: list[RowFile]
    counts: RunCounts = {}


class Current(Record):
    """`CURRENT`: the live version; None if none has gone live yet."""

    version: VersionName | None


class IndexSettings(Record):
    """The settings of an index; updates keep them. No version whose recall@10 is below `target_recall` goes live.

    An exact scan is preferred if it takes at most `latency_ms`. `max_memory` is in bytes for all segments. `factory`, a
    faiss factory string, overrides the choice. `queries` is the digest of the texts that recall is measured with; None:
    captions chosen for the collection. `words` are the columns of text whose words are indexed; None: all of them.
    """

    target_recall: float = Field(0.99, gt=0, le=1)
    latency_ms: float = Field(5.0, gt=0, le=1e6)
    max_memory: int | None = Field(None, gt=0)
    factory: Name | None = None
    segment_rows: int = Field(1_000_000, ge=1)
    queries: str | None = None
    words: tuple[Name, ...] | None = None

    def target_of(self, kind: QueryKind) -> float:
        """The recall@10 that queries of a kind must reach. Texts may miss twice as many as images: all images are
        nearly equally far from a text, so the missed ones are hardly better than those returned instead.
        """
        return max(0.0, 2 * self.target_recall - 1) if kind == "text" else self.target_recall


class Option(Record):
    """A kind of index that was considered: its estimated `memory` in bytes, and `why` it was chosen or not."""

    name: Name
    memory: Count
    chosen: bool
    why: Name


class SegmentRecord(Record):
    """An immutable segment, and the `files` in its folder. `live` counts the rows without tombstones.

    `factory` is "Flat" or a faiss factory string, `trained` the number of rows that its quantizers were trained for (0
    if these are too few); `parameters` are tuned, as are `tile_parameters`, those of the tiles' approximate index.
    `memory` counts the bytes that searches keep hot: the vectors of a flat segment, otherwise only the approximate
    index. `columns` and `words`, files of the version, have the annotations of the segment's rows, and their words.
    """

    name: SegmentName
    ntotal: Count
    live: Count
    factory: Name
    trained: Count = 0
    parameters: Parameters
    tile_parameters: Parameters = {}
    memory: Count
    files: Annotated[
        # Those that are read always are required, because only listed files are checked.
        dict[str, FileRecord],
        keys(VECTORS, ROWS, IDS, WORDS, ANN, TILE_VECTORS, TILE_ANN, required=(VECTORS, ROWS, IDS)),
    ]
    columns: FileRecord | None = None
    words: FileRecord | None = None


class ScoreDistribution(Record):
    """Quantiles of scores at the ascending `levels`: a share `levels[i]` of random pairs of a query of a kind and an
    image scores below `random[kind][i]`, and of images and their nearest neighbours below `nearest[i]`. Kinds without
    queries are missing.
    """

    levels: list[float] = Field(max_length=1000)
    random: dict[QueryKind, list[float]]
    nearest: list[float]

    @model_validator(mode="after")
    def _has_a_score_for_each_level(self) -> Self:
        if any(len(scores) not in (0, len(self.levels)) for scores in (*self.random.values(), self.nearest)):
            raise ValueError(f"expected {len(self.levels)} scores of each kind, one for each level")
        return self


class KindRecord(Record):
    """Results for one kind of query: recall@10 over `queries` held-out ones, by searches `width` times as wide as those
    with an image.
    """

    queries: Count
    recall: Share
    width: Width


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

    format: Literal[4] = 4
    version: VersionName
    base: VersionName | None
    model: ModelRecord
    created_at: Time
    runs: list[RunId]
    settings: IndexSettings
    choice: list[Option]
    segments: list[SegmentRecord] = Field(min_length=1)
    files: Annotated[dict[str, FileRecord], keys(TOMBSTONES, QUERIES)]
    ntotal: Count
    queries: Count
    recall: Annotated[dict[str, Share], keys("1", "10", "100", required=("10",))]
    kinds: dict[QueryKind, KindRecord]
    latency_ms: Annotated[dict[str, Seconds], keys("p50", "p99")]
    queries_per_second: Seconds
    cost: Seconds = 1.0
    built_cost: Seconds = 1.0
    scores: ScoreDistribution
    seconds: Seconds
    annotations: dict[Name, list[RunId]] = {}
    annotates: VersionName | None = None

    @model_validator(mode="after")
    def _counts_its_segments(self) -> Self:
        names = [segment.name for segment in self.segments]
        if len(set(names)) < len(names) or any(segment.live > segment.ntotal for segment in self.segments):
            raise ValueError("a segment occurs twice, or has more live rows than rows")
        if self.ntotal != sum(segment.live for segment in self.segments):
            raise ValueError(f"ntotal is {self.ntotal:,}, which is not the sum of the segments' live rows")
        return self

    def without_columns(self) -> "VersionManifest":
        """The same version without annotations."""
        segments = [segment.model_copy(update={"columns": None, "words": None}) for segment in self.segments]
        return self.model_copy(update={"segments": segments, "annotations": {}})

    @property
    def edition(self) -> str:
        """Number and creation time: if another collection takes this one's place, the numbers are the same."""
        return f"{self.version} of {self.created_at.isoformat()}"

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def rows(self) -> int:
        """The number of rows in the segments, with tombstones or without."""
        return sum(segment.ntotal for segment in self.segments)

    @property
    def kind(self) -> str:
        return ", ".join(sorted({segment.factory for segment in self.segments}))

    @property
    def below_target(self) -> bool:
        """Whether recall@10 is too low for any kind of query: such a version goes live only if promoted."""
        return bool(self.missed_message)

    @property
    def missed_message(self) -> str:
        """The recall@10 of the kinds of query that do not reach their target, as a message."""
        return "; ".join(
            f"recall@10 {record.recall:.6g}{'' if kind == 'image' else f' for queries of kind {kind}'}, expected "
            f"{self.settings.target_of(kind):g} or more"
            for kind, record in self.kinds.items()
            if record.recall < self.settings.target_of(kind)
        )

    @property
    def ageing(self) -> float:
        """How many times as much as after a build from all rows a query costs; 1 while all rows are scanned exactly."""
        return 1.0 if self.kind == FLAT else self.cost / max(self.built_cost, self._full_segments)

    @property
    def aged(self) -> bool:
        """Whether the next build has to be one from all rows, since a query's cost has doubled. One segment of newer
        rows is no reason: where vectors are so few or short that it costs as much as all others, it would be back soon.
        """
        return self.ageing > _MAX_AGEING and len(self.segments) > self._full_segments + 1

    @property
    def _full_segments(self) -> int:
        """The number of segments after a build from all rows."""
        return -(-self.ntotal // self.settings.segment_rows)

    def width_of(self, kind: QueryKind | None) -> float:
        """How many times as wide as with an image a search is. For an unknown kind, the maximum."""
        record = self.kinds.get(kind) if kind else None
        return record.width if record else max((record.width for record in self.kinds.values()), default=1.0)

    @property
    def memory(self) -> int:
        return sum(segment.memory for segment in self.segments)


def _first_problem(error: ValidationError) -> str:
    """Field, problem and value, on one line."""
    first = error.errors()[0]
    field = ".".join(str(part)[:40] for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{field}: {message}, got {str(first['input'])[:60]!r}" if field else message


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
