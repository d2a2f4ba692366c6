"""Which sets of runs to merge, so that there are few, and each row is written again only now and then."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

FACTOR: Final = 4
MAX_SIZE: Final = 1_000_000
"""Of a set. A set or a run of more than half of it is not merged."""

_SMALLEST: Final = 1_000  # smaller sets are all of the lowest level


def choose(sizes: Sequence[int], max_size: int = MAX_SIZE) -> list[int]:
    """The numbers of the sets that become one; none, if there is nothing to merge. A run is a set of its own.

    Lucene's LogMergePolicy, as for segments: levels are a factor of `FACTOR` apart in size, and so many sets of one
    level become one of the next, with all smaller ones, which cost next to nothing. So after each night there are less
    than `FACTOR` of a level, but for one, and at most `2 * total / max_size` that are too large. If the sets exceed
    `max_size` together, only the smallest are merged.
    """
    levels = {number: _level(size) for number, size in enumerate(sizes) if 2 * size <= max_size}
    full = [level for level, count in Counter(levels.values()).items() if count >= FACTOR]
    if not full:
        return []
    chosen = sorted((n for n, level in levels.items() if level <= max(full)), key=lambda n: sizes[n])
    totals = itertools.accumulate(sizes[number] for number in chosen)
    return sorted(number for number, total in zip(chosen, totals, strict=True) if total <= max_size)


def _level(size: int) -> int:
    return int(math.log(max(size, _SMALLEST) / _SMALLEST, FACTOR))
