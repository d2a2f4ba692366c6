"""Points on a plane for a map of a collection, on which an image is near its nearest neighbours."""

import numpy as np
import numpy.typing as npt

from index.analysis.neighbourhoods import Neighbourhoods
from index.errors import QueryError
from index.segments.segmented_index import SegmentedIndex

Points = npt.NDArray[np.float32]

_ROUNDS = 300
_REPELLED = 5  # random others that a point is moved away from, for each neighbour that it is moved to
_MAX_STEP = 4.0
_SPREAD = 10.0  # of the points at first, on the longer axis


def principal_plane(segments: SegmentedIndex) -> Points:
    """The live rows on their first two principal components, `(n, 2)`; vectors are read block by block, twice."""
    if segments.live_count == 0:
        raise QueryError("got no vectors: expected one or more")
    total, products = np.zeros(()), np.zeros(())
    for _, vectors in segments.live_blocks():
        total, products = total + vectors.sum(axis=0, dtype=np.float64), products + vectors.T @ vectors
    mean = total / segments.live_count
    plane = np.linalg.eigh(products / segments.live_count - np.outer(mean, mean))[1][:, :-3:-1]
    # The sign of an axis is arbitrary: make it the same for the same vectors on every machine.
    plane = plane * np.sign(plane[np.abs(plane).argmax(axis=0), [0, 1]])
    return np.concatenate([(vectors - mean) @ plane for _, vectors in segments.live_blocks()]).astype(np.float32)


def neighbour_plane(segments: SegmentedIndex, found: Neighbourhoods) -> Points:
    """The images of `found` on a plane, `(n, 2)`, in its order: neighbours near each other, others apart.

    From the principal plane on, each round moves every point towards one of its neighbours, and away from random
    others, by the forces of UMAP (McInnes, Healy and Melville, 2018) with a = b = 1. Distances between groups mean
    little. The same images have the same points.
    """
    points = principal_plane(segments)
    points *= _SPREAD / np.maximum(np.abs(points).max(), 1e-12)
    random, count, k = np.random.default_rng(0), *found.neighbours.shape
    if count == 1:
        return points
    for step in np.linspace(1, 0, _ROUNDS, endpoint=False, dtype=np.float32):
        near = found.neighbours[:, random.integers(k)]
        near = np.where(near < 0, np.arange(count), near)
        away = points - points[near]
        moves = np.clip(-2 * away / (1 + (away**2).sum(axis=1, keepdims=True)), -_MAX_STEP, _MAX_STEP)
        moves -= np.stack([np.bincount(near, moves[:, axis], count) for axis in (0, 1)], axis=1)
        for _ in range(_REPELLED):
            away = points - np.roll(points, int(random.integers(1, count)), axis=0)
            square = (away**2).sum(axis=1, keepdims=True)
            moves += np.clip(2 * away / ((0.001 + square) * (1 + square)), -_MAX_STEP, _MAX_STEP)
        points += step * moves
    return points
