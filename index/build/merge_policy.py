"""Which segments to merge, so that their number stays low and each row is rewritten only now and then."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

MERGE_FACTOR = 4
_MIN_LEVEL_ROWS = 1_000  # smaller segments are all of the lowest level
_MAX_DEAD = 1 / 3  # share of a segment's rows under tombstones


class Size(NamedTuple):
    """All rows of a segment, and how many of them are live."""

    ntotal: int
    live: int


def choose_merge(sizes: Sequence[Size], new: int, limit: int) -> tuple[list[int], bool]:
    """Which segments to merge into one, and whether the `new` rows join them.

    Lucene's LogMergePolicy: levels are a factor of `MERGE_FACTOR` apart in size, and so many segments of one level
    become one of the next. A segment with many tombstones is rewritten. If the candidates exceed `limit` rows, only the
    smallest are merged; a segment with more than `limit / 2` live rows is never merged for its size.
    """
    # The new rows count as one more segment, and join the merge if they fit.
    chosen = _choose([*sizes, Size(ntotal=new, live=new)] if new else sizes, limit)
    merged = [number for number in chosen if number < len(sizes)]
    rows = new + sum(sizes[number].live for number in merged)
    return merged, bool(new and chosen and rows <= limit)


def _choose(sizes: Sequence[Size], limit: int) -> list[int]:
    chosen = {number for number, size in enumerate(sizes) if size.ntotal - size.live > _MAX_DEAD * size.ntotal}
    levels = {number: _level(size.live) for number, size in enumerate(sizes) if 2 * size.live <= limit}
    for level, count in Counter(levels.values()).items():
        if count >= MERGE_FACTOR:
            chosen |= {number for number in levels if levels[number] <= level}  # smaller ones cost next to nothing
    ascending = sorted(chosen, key=lambda number: sizes[number].live)
    rows = itertools.accumulate(sizes[number].live for number in ascending)
    return sorted(number for number, total in zip(ascending, rows, strict=True) if total <= limit)


def _level(rows: int) -> int:
    return int(math.log(max(rows, _MIN_LEVEL_ROWS) / _MIN_LEVEL_ROWS, MERGE_FACTOR))
