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


class OtherFormatError(ValueError):
    """What was read is whole, and another release wrote it."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """Indented JSON with a `checksum` of everything else."""
        content = self.model_dump(mode="json")
        return (json.dumps({**content, "checksum": _checksum(content)}, indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. ValueError when it is not JSON, not this record, or altered;
        OtherFormatError when another release wrote it.
        """
        content = json.loads(data)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError("its content does not agree with its own checksum")
        if (field := cls.model_fields.get("format")) and content.get("format") != field.default:
            raise OtherFormatError(
                f"has format {content.get('format')}, this release of Likeness reads {field.default}"
            )
        # Fields added by a later release must not prevent this one from reading.
        return cls.model_validate(content, extra="ignore")


UNKNOWN_MODEL = "(unknown)"
"""In place of a model's id: the vectors were imported, and nobody said what made them."""


class ModelRecord(Record):
    """The model of some vectors. `fingerprint` covers weights, configuration and preprocessing; of an unknown model it
    stands for the source that the vectors were imported from. `tiles` is the grid of parts that pictures have vectors
    of as well; None: of whole pictures alone.
    """

    id: str
    revision: str | None
    fingerprint: str
    dim: int
    tiles: str | None = None

    def agrees_with(self, other: "ModelRecord") -> bool:
        """Whether rows of both may lie in one index, no matter where the copies of the model are."""
        return (self.fingerprint, self.tiles) == (other.fingerprint, other.tiles)

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The parts of a picture that have vectors of their own."""
        return tile_boxes(self.tiles)

    @property
    def is_unknown(self) -> bool:
        return self.id == UNKNOWN_MODEL

    @property
    def unknown_model_message(self) -> str:
        """Why an unknown model embeds nothing."""
        return (
            "the vectors were imported without the name of their model, so pictures and words cannot be compared with "
            "them. Search by the ids of images or by vectors, or import them into a new collection with --model"
        )

    def __str__(self) -> str:
        if self.is_unknown:
            return f"an unknown model (of {self.dim} dimensions, imported without its name)"
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
    """`started.json`: a run that has begun. Run ids sort by the time of their start.

    In a run of an annotation `model` is its predictor, and `calibration` what was measured once for all of its runs.
    `keep` is the expression, as canonical JSON, that its images were filtered with; None: all were embedded.
    `exif`: its rows have what their EXIF says.
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
    """`manifest.json` of a run. `deletes`: images that left the source. `finished_at` and `counts` are for people."""

    finished_at: datetime
    files: list[RowFile]
    deletes: RowFile | None = None
    counts: dict[str, int] = {}


class Current(Record):
    """`CURRENT`: the live version; None where versions were built and none has gone live yet."""

    version: str | None


class IndexSettings(Record):
    """The settings of an index; updates keep them. `target_recall` is of recall@10, and no version below it goes live.

    An exact scan is preferred if it takes at most `latency_ms`. `max_memory` is in bytes for all segments. `factory`
    overrides the choice with a faiss factory string. `queries` is the digest of the texts that recall is measured with;
    None: of captions that were chosen for the collection.
    """

    target_recall: float = Field(0.99, gt=0, le=1)
    latency_ms: float = Field(5.0, gt=0)
    max_memory: int | None = Field(None, gt=0)
    factory: str | None = None
    segment_rows: int = Field(1_000_000, ge=1)
    queries: str | None = None

    def target_of(self, kind: QueryKind) -> float:
        """The recall@10 that queries of a kind must reach. Texts may miss twice as many as images: to all images they
        are nearly equally far, so that the missed ones are hardly worse than the returned ones.
        """
        return max(0.0, 2 * self.target_recall - 1) if kind == "text" else self.target_recall


class Option(Record):
    """A kind of index that was considered: estimated bytes of all segments, and `why` it was chosen or not."""

    name: str
    memory: int
    chosen: bool
    why: str


class SegmentRecord(Record):
    """An immutable segment, and its `files` in its folder. `live` counts the rows without tombstones.

    `factory` is "Flat" or a faiss factory string, `parameters` are the tuned ones. `memory` is the bytes that searching
    keeps hot: the vectors of a flat segment, else only the approximate index. `columns` is a file of the version: the
    annotations of the segment's rows. `tile_parameters` are those of the approximate index of its pictures' tiles.
    """

    name: str
    ntotal: int
    live: int
    factory: str
    parameters: dict[str, float]
    tile_parameters: dict[str, float] = {}
    memory: int
    files: dict[str, FileRecord]
    columns: FileRecord | None = None


class ScoreDistribution(Record):
    """A share `levels[i]`, ascending, of random pairs of a query of some kind and an image scores below
    `random[kind][i]`, and of images with their nearest other one below `nearest[i]`. Kinds without queries have none.
    """

    levels: list[float]
    random: dict[QueryKind, list[float]]
    nearest: list[float]


class KindRecord(Record):
    """How one kind of query is answered: recall@10 over `queries` held-out ones, by searches that look `width` times as
    far as those of images.
    """

    queries: int
    recall: float
    width: float


class VersionManifest(Record):
    """`manifest.json` of an index version. `base` is the version that it updates; None: it was built from all rows.

    `files` are in the version's own folder. `ntotal` counts live rows. `recall` maps k to recall@k over `queries`
    held-out images (for k = 100 over a hundred of them), `kinds` has the other kinds of query too. `latency_ms` maps
    percentiles to milliseconds, over fifty queries searched one by one; `queries_per_second` is measured on a batch.
    `annotations` are the runs of each, by name; `annotates` is the version whose images these are, if only annotations
    have changed since.
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
    scores: ScoreDistribution
    seconds: float
    annotations: dict[str, list[str]] = {}
    annotates: str | None = None

    def without_columns(self) -> "VersionManifest":
        """The same version, of which no annotations are read."""
        segments = [segment.model_copy(update={"columns": None}) for segment in self.segments]
        return self.model_copy(update={"segments": segments, "annotations": {}})

    @property
    def edition(self) -> str:
        """Its number and when it was made: a collection that takes the place of another has the same numbers."""
        return f"{self.version} of {self.created_at.isoformat()}"

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def kind(self) -> str:
        return ", ".join(sorted({segment.factory for segment in self.segments}))

    @property
    def below_target(self) -> bool:
        """Whether recall@10 of a kind of query is too low: such a version does not go live by itself."""
        return bool(self.recall_below_target)

    @property
    def recall_below_target(self) -> dict[QueryKind, float]:
        """The recall@10 of the kinds of query that do not reach their target."""
        reached = {kind: each.recall for kind, each in self.kinds.items()}
        return {kind: recall for kind, recall in reached.items() if recall < self.settings.target_of(kind)}

    @property
    def missed_message(self) -> str:
        """What the kinds of query reach that do not reach their target."""
        return "; ".join(
            f"recall@10 {recall:.6g}{'' if kind == 'image' else f' for queries of kind {kind}'}, expected "
            f"{self.settings.target_of(kind):g} or more"
            for kind, recall in self.recall_below_target.items()
        )

    def width_of(self, kind: QueryKind | None) -> float:
        """How many times as far as for an image a search looks. Of an unknown kind, as far as any."""
        known = self.kinds.get(kind) if kind else None
        return known.width if known else max((each.width for each in self.kinds.values()), default=1.0)

    @property
    def memory(self) -> int:
        return sum(segment.memory for segment in self.segments)


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
