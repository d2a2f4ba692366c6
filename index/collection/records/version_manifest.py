"""`manifest.json` of an index version: its segments, and what was measured of it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from index.collection.layout import ANN, IDS, QUERIES, ROWS, TILE_ANN, TILE_VECTORS, TOMBSTONES, VECTORS, WORDS
from index.collection.records.bounds import (
    Count,
    Name,
    Parameters,
    RunId,
    Seconds,
    SegmentName,
    Share,
    Time,
    VersionName,
    Width,
    keys,
)
from index.collection.records.index_settings import IndexSettings
from index.collection.records.model_record import ModelRecord
from index.collection.records.record import FileRecord, Record
from index.queries import QueryKind

FLAT = "Flat"
"""The factory of a segment that is searched exactly."""

_MAX_AGEING = 2.0


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
    tile_parameters: Parameters = Field(default_factory=dict)
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
    annotations: dict[Name, list[RunId]] = Field(default_factory=dict)
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
