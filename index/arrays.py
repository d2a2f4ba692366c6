"""The arrays that are handed around, and how those of several parts become one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]
"""Of rows; -1 where there is none."""
Parts = npt.NDArray[np.int64]
"""What of a picture was found: 0 for the whole of it, n for its n-th tile."""
Ids = npt.NDArray[np.object_]
Slots = npt.NDArray[np.intp]
"""Indices into another array."""

A = TypeVar("A", bound=npt.NDArray[Any])


def merged(parts: Sequence[tuple[npt.NDArray[Any], ...]], k: int) -> tuple[Any, ...]:
    """The k best columns of several parts, each a tuple of `(n, m)` arrays, scores first. Ties stay in order."""
    arrays = [np.concatenate(array, axis=1) for array in zip(*parts, strict=True)]
    best = np.argsort(-arrays[0], axis=1, kind="stable")[:, :k]
    return tuple(np.take_along_axis(array, best, axis=1) for array in arrays)


def best_of_each(k: int, scores: Scores, positions: Positions, *others: npt.NDArray[Any]) -> tuple[Any, ...]:
    """The k best columns of `(n, m)` arrays, each position once by its best score, the first of equals."""
    scores, positions, *rest = merged([(scores, positions, *others)], scores.shape[1])
    by_position = np.argsort(positions, axis=1, kind="stable")
    again = np.diff(np.take_along_axis(positions, by_position, axis=1), axis=1) == 0
    repeated = np.zeros(positions.shape, bool)
    np.put_along_axis(repeated, by_position[:, 1:], again, axis=1)
    return merged([(np.where(repeated, -np.inf, scores), np.where(repeated, -1, positions), *rest)], k)


def shifted(positions: Positions, start: int) -> Positions:
    """Positions in a part as positions in all, where the part begins at `start`."""
    return np.where(positions < 0, -1, positions + start)


def by_part(positions: Positions, starts: npt.NDArray[np.int64]) -> Iterator[tuple[int, Slots, Positions]]:
    """The number of each part (first positions: `starts`) that holds some, their indices in `positions`, and in it."""
    numbers = np.searchsorted(starts, positions, side="right") - 1
    for number in np.unique(numbers).tolist():
        slots = np.flatnonzero(numbers == number)
        yield number, slots, positions[slots] - starts[number]


def gathered(found: A, positions: Positions, starts: npt.NDArray[np.int64], read: Callable[[int, Positions], Any]) -> A:
    """`found`, filled with what `read` returns for each part and the positions in it; see `by_part`."""
    for number, slots, local in by_part(positions, starts):
        found[slots] = read(number, local)
    return found
