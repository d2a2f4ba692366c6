"""How a new version updates the live one: which segments it keeps, with more tombstones, and which it rewrites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from index.arrays import Positions
from index.build.merge_policy import Size, choose_merge
from index.build.segment import RowSource
from index.collection.live_rows import LiveRows
from index.collection.records import FLAT, IndexSettings, RunManifest, SegmentRecord
from index.collection.rows import conform, unify
from index.segments.exact import MIN_TRAINING_ROWS, max_exact_rows
from index.segments.segment import Segment
from index.storage import Storage


@dataclass(frozen=True, kw_only=True)
class SegmentChange:
    """`retained` segments stay, with `tombstones` on their dead rows, by name. The rows of each of `sources` become a
    new segment, which is searched exactly if it has at most `max_exact_rows` rows. `floats` is the number of values in
    the vectors of a row.
    """

    retained: list[SegmentRecord]
    tombstones: Mapping[str, Positions]
    sources: list[RowSource]
    floats: int
    max_exact_rows: int

    @property
    def max_memory(self) -> int:
        """Upper bound of the memory of all segments in bytes: as if the new ones were searched exactly."""
        exact = sum(len(source) for source in self.sources) * self.floats * 4
        return sum(record.memory for record in self.retained) + exact

    @property
    def live(self) -> int:
        """Upper bound of the live rows after the change: some new ones may be rejects."""
        return sum(record.live for record in self.retained) + sum(len(source) for source in self.sources)


def plan_change(
    changed: LiveRows,
    touched: pa.Array[Any],
    records: Sequence[SegmentRecord],
    segments: Sequence[Segment],
    settings: IndexSettings,
) -> SegmentChange:
    """The change by newer runs, of `touched` ids. If memory is short, small segments become one with an index."""
    dim = segments[0].dim
    for segment in segments:
        gone = segment.positions(touched)
        segment.add_tombstones(gone[gone >= 0])

    def merge(numbers: Sequence[int], with_changed: bool, max_exact_rows: int) -> SegmentChange:
        """Merges the segments of these numbers into one, and the changed rows too if they fit."""
        merged: list[RowSource] = [segments[number] for number in numbers if segments[number].live_count]
        separate: list[RowSource] = [changed] if with_changed else [*changed.split(settings.segment_rows)]
        if with_changed and merged:
            merged, separate = [*merged, changed], []
        pairs = enumerate(zip(records, segments, strict=True))
        retained = [pair for number, pair in pairs if number not in numbers and pair[1].live_count]
        return SegmentChange(
            retained=[record.model_copy(update={"live": segment.live_count}) for record, segment in retained],
            tombstones={record.name: segment.dead_positions() for record, segment in retained},
            sources=[*([Concatenated(merged)] if merged else []), *separate],
            floats=dim * (1 + segments[0].tiles_per_row),
            max_exact_rows=max_exact_rows,
        )

    sizes = [Size(ntotal=segment.ntotal, live=segment.live_count) for segment in segments]
    change = merge(*choose_merge(sizes, len(changed), settings.segment_rows), max_exact_rows(settings, dim))
    if settings.max_memory is None or change.max_memory <= settings.max_memory:
        return change
    small = [number for number, record in enumerate(records) if record.factory == FLAT]
    rows = len(changed) + sum(segments[number].live_count for number in small)
    return merge(small, rows <= settings.segment_rows, MIN_TRAINING_ROWS)


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
    """All ids in some runs: those of their newest rows, `changed`, and those that they delete."""
    deleted = LiveRows.of_files(storage, [run.deletes for run in runs if run.deletes])
    parts = [rows.read(["image_id"]) for rows in (deleted, changed)]
    return pa.concat_tables(parts).column("image_id").combine_chunks()
