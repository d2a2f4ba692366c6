"""How a new version updates the live one: which segments it keeps, with more tombstones, and which it rewrites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from index.arrays import Positions
from index.build.merge_policy import Size, to_merge
from index.build.segment import RowSource
from index.collection.live_rows import LiveRows
from index.collection.records import FLAT, IndexSettings, RunManifest, SegmentRecord
from index.collection.rows import conform, unify
from index.segments.exact import MIN_TRAINING_ROWS, max_exact_rows
from index.segments.segment import Segment
from index.storage import Storage


@dataclass(frozen=True, kw_only=True)
class SegmentChange:
    """`kept` segments stay, with `tombstones` on their dead rows, by name. The rows of each of `sources` become a new
    segment, which is searched exactly if it has at most `max_exact_rows` rows. The vectors of a row have so many
    `floats`.
    """

    kept: list[SegmentRecord]
    tombstones: Mapping[str, Positions]
    sources: list[RowSource]
    floats: int
    max_exact_rows: int

    @property
    def max_memory(self) -> int:
        """Upper bound of the memory of all segments in bytes: as if the new ones were searched exactly."""
        exact = sum(len(source) for source in self.sources) * self.floats * 4
        return sum(record.memory for record in self.kept) + exact

    @property
    def live(self) -> int:
        """Upper bound of the live rows after the change: some new ones may be rejects."""
        return sum(record.live for record in self.kept) + sum(len(source) for source in self.sources)


def change_of(
    changed: LiveRows,
    touched: pa.Array[Any],
    records: Sequence[SegmentRecord],
    segments: Sequence[Segment],
    settings: IndexSettings,
) -> SegmentChange:
    """The change by newer runs, of `touched` ids. If memory runs short, small segments become one with an index."""
    dim = segments[0].dim
    for segment in segments:
        gone = segment.positions(touched)
        segment.add_tombstones(gone[gone >= 0])

    def merging(numbers: Sequence[int], along: bool, max_exact_rows: int) -> SegmentChange:
        """Merges the segments of these numbers into one, with the changed rows if they go `along`."""
        together: list[RowSource] = [segments[number] for number in numbers if segments[number].live_count]
        apart: list[RowSource] = [changed] if along else [*changed.split(settings.segment_rows)]
        if along and together:
            together, apart = [*together, changed], []
        pairs = enumerate(zip(records, segments, strict=True))
        staying = [pair for number, pair in pairs if number not in numbers and pair[1].live_count]
        return SegmentChange(
            kept=[record.model_copy(update={"live": segment.live_count}) for record, segment in staying],
            tombstones={record.name: segment.dead_positions() for record, segment in staying},
            sources=[*([Concatenated(together)] if together else []), *apart],
            floats=dim * (1 + segments[0].tiles_per_row),
            max_exact_rows=max_exact_rows,
        )

    sizes = [Size(ntotal=segment.ntotal, live=segment.live_count) for segment in segments]
    change = merging(*to_merge(sizes, len(changed), settings.segment_rows), max_exact_rows(settings, dim))
    if settings.max_memory is None or change.max_memory <= settings.max_memory:
        return change
    small = [number for number, record in enumerate(records) if record.factory == FLAT]
    along = len(changed) + sum(segments[number].live_count for number in small) <= settings.segment_rows
    return merging(small, along, MIN_TRAINING_ROWS)


@dataclass(frozen=True)
class Concatenated:
    """The rows of several sources, with the columns of all."""

    sources: Sequence[RowSource]

    def __len__(self) -> int:
        return sum(len(source) for source in self.sources)

    @cached_property
    def schema(self) -> pa.Schema:
        return unify([source.schema for source in self.sources])

    def embedded(self) -> Iterator[pa.RecordBatch]:
        for source in self.sources:
            for batch in source.embedded():
                yield from conform(pa.Table.from_batches([batch]), self.schema).combine_chunks().to_batches()


def touched_ids(storage: Storage, runs: Sequence[RunManifest], changed: LiveRows) -> pa.Array[Any]:
    """All ids of some runs: those of their newest rows, `changed`, and those of their deletes."""
    deleted = LiveRows.of_files(storage, [run.deletes for run in runs if run.deletes])
    parts = [rows.read(["image_id"]) for rows in (deleted, changed)]
    return pa.concat_tables(parts).column("image_id").combine_chunks()
