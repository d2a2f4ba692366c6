"""Which sets of runs to merge, so that there are few, and each row is written again only now and then. Segments that
are scanned exactly are merged by the same rule.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

FACTOR: Final = 4
MAX_SIZE: Final = 1_000_000
"""Of a set. A set or a run of more than half of it is not merged."""

_SMALLEST: Final = 1_000  # smaller sets are all of the lowest level


def choose(sizes: Sequence[int], max_size: int = MAX_SIZE, always: Iterable[int] = ()) -> list[int]:
    """The numbers of the sets that become one; none, if there is nothing to merge. A run is a set of its own. The sets
    of the numbers `always` are candidates too, whatever their level.

    Lucene's LogMergePolicy: levels are a factor of `FACTOR` apart in size, and so many sets of one level become one of
    the next, with all smaller ones, which cost next to nothing. So after each night there are less than `FACTOR` of a
    level, but for one, and at most `2 * total / max_size` that are too large. If the sets exceed `max_size` together,
    only the smallest are merged.
    """
    levels = {number: _level(size) for number, size in enumerate(sizes) if 2 * size <= max_size}
    full = max((level for level, count in Counter(levels.values()).items() if count >= FACTOR), default=-1)
    merged = {number for number, level in levels.items() if level <= full}.union(always)
    chosen = sorted(merged, key=lambda number: (sizes[number], number))
    totals = itertools.accumulate(sizes[number] for number in chosen)
    return sorted(number for number, total in zip(chosen, totals, strict=True) if total <= max_size)


def _level(size: int) -> int:
    return int(math.log(max(size, _SMALLEST) / _SMALLEST, FACTOR))
