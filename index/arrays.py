"""Array types, and functions that read arrays of several parts: of segments, of shards, or of files."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]
"""Positions of rows; -1 where there is no row."""
Parts = npt.NDArray[np.int64]
"""The parts of pictures that matched: 0 for the whole picture, n for its n-th tile."""
Ids = npt.NDArray[np.object_]
Slots = npt.NDArray[np.intp]
"""Indices into another array."""

A = TypeVar("A", bound=npt.NDArray[Any])

_DECIMALS = 6  # float32 holds no more, and duplicates have to score the same


def rounded(scores: Scores) -> npt.NDArray[np.float64]:
    """Scores as reported."""
    return np.round(scores.astype(np.float64), _DECIMALS)  # type: ignore[return-value]  # numpy's stub says float16


def least_score(score: float) -> float:
    """The least score that is reported as this one."""
    return score - 0.5 * float(10**-_DECIMALS)


def by_part(positions: Positions, starts: npt.NDArray[np.int64]) -> Iterator[tuple[int, Slots, Positions]]:
    """Groups positions by part; part n begins at `starts[n]`. Yields the number of each part that has some of them,
    their indices in `positions`, and the positions within the part.
    """
    numbers = np.searchsorted(starts, positions, side="right") - 1
    for number in np.flatnonzero(np.bincount(numbers)).tolist():  # for few, faster than `np.unique`
        slots = np.flatnonzero(numbers == number)
        yield number, slots, positions[slots] - starts[number]


def read_parts(out: A, positions: Positions, starts: npt.NDArray[np.int64], read: Callable[[int, Positions], Any]) -> A:
    """`out`, filled with what `read` returns for each part and the positions within it; see `by_part`."""
    for number, slots, local in by_part(positions, starts):
        out[slots] = read(number, local)
    return out
