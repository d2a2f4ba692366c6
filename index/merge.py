"""Which segments to merge, so that their number stays low and each row is rewritten only now and then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MERGE_FACTOR = 8
_SMALLEST = 1_000  # rows; segments below it count as of one size
_MOST_DEAD = 1 / 3  # share of a segment's rows under tombstones


@dataclass(frozen=True, kw_only=True)
class Size:
    """Rows of a segment, and those of them that count."""

    ntotal: int
    live: int


def to_merge(sizes: Sequence[Size], limit: int) -> list[int]:
    """Which of the segments to replace by one; none when nothing needs to be done.

    The logarithmic merge of log-structured indexes (Lucene's LogMergePolicy): once `MERGE_FACTOR` segments are of one
    level, a power of that factor apart in size, they become one of the next. A segment that is mostly tombstones
    is written anew. The new segment has at most `limit` rows.
    """
    chosen = {number for number, size in enumerate(sizes) if size.ntotal - size.live > _MOST_DEAD * size.ntotal}
    levels = [_level(size.live) for size in sizes]
    for level in set(levels):
        upto = {number for number, its in enumerate(levels) if its <= level}
        if levels.count(level) >= MERGE_FACTOR and sum(sizes[number].live for number in upto) <= limit:
            chosen |= upto  # the smaller ones come along for next to nothing
    return sorted(chosen) if sum(sizes[number].live for number in chosen) <= limit else []


def _level(rows: int) -> int:
    return int(math.log(max(rows, _SMALLEST) / _SMALLEST, MERGE_FACTOR))
