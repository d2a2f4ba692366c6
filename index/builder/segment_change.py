"""How a new version updates the live one: which segments it keeps, with more tombstones, and which it rewrites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from index.arrays import Positions
from index.builder.merge_policy import Size, choose_growth, choose_merge
from index.builder.segment import Inherited, RowSource
from index.collection.live_rows import LiveRows
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import SegmentRecord
from index.segments.segment import Segment

NewSegment: TypeAlias = tuple[Sequence[RowSource], Inherited | None]
"""The rows of a segment that is to be built, and what it inherits."""


@dataclass(frozen=True, kw_only=True)
class SegmentChange:
    """`retained` segments stay, with `tombstones` on their dead rows, by name, and `new` ones are built from rows, some
    after those of another segment, or with its approximate index.
    """

    retained: list[SegmentRecord]
    tombstones: Mapping[str, Positions]
    new: Sequence[NewSegment]


def mark_gone(segments: Sequence[Segment], touched: pa.Array[Any]) -> None:
    """Put tombstones on the rows of these ids."""
    for segment in segments:
        gone = segment.positions(touched)
        segment.add_tombstones(gone[gone >= 0])


def plan_change(
    changed: LiveRows,
    records: Sequence[SegmentRecord],
    segments: Sequence[Segment],
    settings: IndexSettings,
    *,
    approximate: bool,
) -> SegmentChange:
    """The change by `changed` rows, after `mark_gone`. `approximate`: all rows together would get such an index."""
    pairs = list(zip(records, segments, strict=True))
    sizes = [Size(segment.ntotal, segment.live_count, record.trained) for record, segment in pairs]
    policy = choose_growth if approximate else choose_merge
    numbers, with_new, host = policy(sizes, len(changed), settings.segment_rows)
    extends = host is not None and host in numbers and not sizes[host].worn
    merged: list[RowSource] = [
        segments[number] for number in numbers if sizes[number].live and not (extends and number == host)
    ]
    if with_new:
        merged.append(changed)
    inherited = None if host is None else Inherited(segment=segments[host], record=records[host], extends=extends)
    new: list[NewSegment] = [(merged, inherited)] if merged else []
    if not with_new:
        new += [([part], None) for part in changed.split(settings.segment_rows)]
    retained = [pair for number, pair in enumerate(pairs) if number not in numbers and sizes[number].live]
    return SegmentChange(
        retained=[record.model_copy(update={"live": segment.live_count}) for record, segment in retained],
        tombstones={record.name: segment.dead_positions() for record, segment in retained},
        new=new,
    )


def touched_ids(changed: LiveRows) -> pa.Array[Any]:
    """All ids in some runs: those of their newest rows, `changed`, and those that they delete."""
    ids = "SELECT image_id FROM (FROM deleted UNION ALL SELECT seq, image_id FROM live_rows) ORDER BY seq"
    return changed.catalog.table(ids)["image_id"].combine_chunks()
