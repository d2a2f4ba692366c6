"""Array types, and functions that combine arrays of several parts: of segments, of shards, or of files."""

from collections.abc import Callable, Iterator, Sequence
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


def merged(parts: Sequence[tuple[npt.NDArray[Any], ...]], k: int) -> tuple[Any, ...]:
    """The k best columns of several parts, each a tuple of `(n, m)` arrays, scores first. Ties stay in order."""
    arrays = [np.concatenate(array, axis=1) for array in zip(*parts, strict=True)]
    best = np.argsort(-arrays[0], axis=1, kind="stable")[:, :k]
    rows = np.arange(len(best))[:, np.newaxis]  # `take_along_axis` takes longer than all the rest for one query
    return tuple(array[rows, best] for array in arrays)


def merged_by_position(k: int, scores: Scores, positions: Positions, *others: npt.NDArray[Any]) -> tuple[Any, ...]:
    """The k best columns of `(n, m)` arrays. A position that is repeated keeps its best score, the first of equals."""
    scores, positions, *rest = merged([(scores, positions, *others)], scores.shape[1])
    by_position = np.argsort(positions, axis=1, kind="stable")
    again = np.diff(np.take_along_axis(positions, by_position, axis=1), axis=1) == 0
    repeated = np.zeros(positions.shape, bool)
    np.put_along_axis(repeated, by_position[:, 1:], again, axis=1)
    return merged([(np.where(repeated, -np.inf, scores), np.where(repeated, -1, positions), *rest)], k)


def shifted(positions: Positions, start: int) -> Positions:
    """Positions in a part that begins at `start`, as positions in the whole."""
    return np.add(positions, start, out=np.full_like(positions, -1), where=positions >= 0)


def by_part(positions: Positions, starts: npt.NDArray[np.int64]) -> Iterator[tuple[int, Slots, Positions]]:
    """Groups positions by part; part n begins at `starts[n]`. Yields the number of each part that has some of them,
    their indices in `positions`, and the positions within the part.
    """
    numbers = np.searchsorted(starts, positions, side="right") - 1
    for number in np.unique(numbers).tolist():
        slots = np.flatnonzero(numbers == number)
        yield number, slots, positions[slots] - starts[number]


def read_parts(out: A, positions: Positions, starts: npt.NDArray[np.int64], read: Callable[[int, Positions], Any]) -> A:
    """`out`, filled with what `read` returns for each part and the positions within it; see `by_part`."""
    for number, slots, local in by_part(positions, starts):
        out[slots] = read(number, local)
    return out
