"""Finds groups of near-duplicates in a whole collection."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from index.arrays import Positions, Scores, Slots, Vectors, rounded
from index.search import Searcher
from index.search_options import checked_min_score
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex
from index.segments.vector_file import BLOCK_ROWS

_ROWS = 1_024  # compared with as many
_DEPTHS = (16, 128, 1_024)  # neighbours to look at; the next depth if all of them are alike
Pairs = tuple[Positions, Positions, Scores]
_EQUAL = 1e-6  # maximum difference between values of vectors that are equal but for rounding


@dataclass(frozen=True, kw_only=True)
class DuplicateGroup:
    """Images linked by pairs that are alike. `scores` are the cosines of each with its nearest in the group."""

    ids: tuple[str, ...]
    scores: tuple[float, ...]


def near_duplicates(
    searcher: Searcher, min_score: float = 0.98, *, progress: Callable[[int, int], None] | None = None
) -> list[DuplicateGroup]:
    """Groups of images that are linked by pairs with a cosine of `min_score` or more, largest first.

    Each image is looked up in the index, so an approximate index may miss a pair, though only if it misses it twice. If
    many images are alike, all are found by exact search. `progress` gets the number of images looked up, and of all.
    """
    min_score = checked_min_score(min_score)
    segments = searcher.segments
    linked = LinkedRows(segments)
    seen = 0
    for positions, vectors in segments.live_blocks():
        seen += len(positions)
        for one, other, scores in _pairs(segments, positions, vectors, min_score, linked.complete, _DEPTHS):
            linked.add(one, other, scores)
        if progress:
            progress(seen, searcher.ntotal)
    groups = linked.groups()
    rows = np.concatenate([np.zeros(0, np.int64), *groups])
    ids_and_scores = iter(zip(segments.ids(rows), rounded(linked.nearest[rows]).tolist(), strict=True))
    columns = [zip(*sorted(itertools.islice(ids_and_scores, len(group))), strict=True) for group in groups]
    duplicates = [DuplicateGroup(ids=ids, scores=scores) for ids, scores in columns]
    return sorted(duplicates, key=lambda group: (-len(group.ids), group.ids))


def nearest_pairs(segments: SegmentedIndex, positions: Positions, min_score: float, k: int) -> Iterator[Pairs]:
    """Pairs of these rows of which one is among the `k` nearest of the other, with a cosine of `min_score` or more."""
    eligible = segments.eligible_at(positions)
    for start in range(0, len(positions), BLOCK_ROWS):
        block = positions[start : start + BLOCK_ROWS]
        hits = segments.search(segments.vectors(block), min(k + 1, len(positions)), eligible)
        found = Alike.among(hits, block, min_score)
        yield block[found.rows], found.near, found.scores


class Alike(NamedTuple):
    """Pairs of a query and a row that is `near` it: `rows` are the numbers of the queries, ascending. `may_have_more`,
    a mask, has the queries of which all hits are alike.
    """

    rows: Slots
    near: Positions
    scores: Scores
    may_have_more: npt.NDArray[np.bool_]

    @classmethod
    def among(cls, hits: Hits, own: Positions, min_score: float) -> Self:
        """The hits with a score of `min_score` or more, except each query's `own` position."""
        good: npt.NDArray[np.bool_] = (rounded(hits.scores) >= min_score) & (hits.positions >= 0)
        rows, columns = np.nonzero(good & (hits.positions != own[:, np.newaxis]))
        return cls(rows, hits.positions[rows, columns], hits.scores[rows, columns], np.any(good[:, -1:], axis=1))


class LinkedRows:
    """Rows of an index joined by pairs (a union-find with path halving). `complete` ones need no further lookup."""

    def __init__(self, segments: SegmentedIndex) -> None:
        count = segments.ntotal
        self.nearest = np.full(count, -np.inf, np.float32)
        self.complete = np.zeros(count, bool)
        self._parents = np.arange(count)

    def add(self, one: Positions, other: Positions, scores: Scores) -> None:
        np.maximum.at(self.nearest, one, scores)
        np.maximum.at(self.nearest, other, scores)
        for start in range(0, len(one), _ROWS):
            a, b = one[start : start + _ROWS], other[start : start + _ROWS]
            apart = self._parents[a] != self._parents[b]  # skips most pairs of a large group
            for pair in zip(a[apart].tolist(), b[apart].tolist(), strict=True):
                low, high = sorted(map(self._root, pair))
                self._parents[high] = low

    def groups(self) -> list[Positions]:
        """The positions of each group of two or more."""
        linked = np.flatnonzero(np.isfinite(self.nearest))
        roots = np.array([self._root(position) for position in linked.tolist()], np.int64)
        order = np.argsort(roots, kind="stable")
        cuts = np.flatnonzero(np.diff(roots[order])) + 1
        return [part for part in np.split(linked[order], cuts) if len(part)]

    def _root(self, position: int) -> int:
        parents = self._parents
        while parents[position] != position:
            parents[position] = parents[parents[position]]
            position = int(parents[position])
        return position


def _pairs(
    segments: SegmentedIndex,
    positions: Positions,
    vectors: Vectors,
    min_score: float,
    complete: npt.NDArray[np.bool_],
    depths: Sequence[int],
) -> Iterator[Pairs]:
    """The pairs of these rows with any other row. A row is looked up again, deeper, while all its results are alike."""
    depth, *deeper = depths
    size = max(1, BLOCK_ROWS * _DEPTHS[0] // depth)  # as many results at any depth, because they take memory
    for start in range(0, len(positions), size):
        incomplete = np.flatnonzero(~complete[positions[start : start + size]]) + start
        block, queries = positions[incomplete], vectors[incomplete]
        rows, near, scores, more = Alike.among(segments.search(queries, depth), block, min_score)
        yield block[rows], near, scores
        if deeper:
            yield from _pairs(segments, block[more], queries[more], min_score, complete, deeper)
            continue
        for position, vector in zip(block[more].tolist(), queries[more], strict=True):
            if not complete[position]:
                yield from _pairs_around(segments, position, vector, min_score, complete)


def _pairs_around(
    segments: SegmentedIndex, position: int, vector: Vectors, min_score: float, complete: npt.NDArray[np.bool_]
) -> Iterator[Pairs]:
    """All pairs of a row, by exact search, and enough pairs of the rows close to it to link them to all of theirs.

    Those are within half the permitted angle, so what is alike to them is within one and a half angles of the row.
    """
    angle = float(np.arccos(min_score))
    around = segments.within(vector, float(np.cos(min(1.5 * angle, np.pi))) - 1e-6)
    scores, near = around.scores[0], around.positions[0]
    scores, near = scores[near != position], near[near != position]
    alike = rounded(scores) >= min_score
    yield np.full(alike.sum(), position), near[alike], scores[alike]
    complete[position] = True
    close = near[alike & (scores >= np.cos(angle / 2)) & ~complete[near]]
    # The same vector has the same neighbours.
    complete[_same(segments, vector, close)] = True
    close = close[~complete[close]]
    for start in range(0, len(close), _ROWS):
        block = close[start : start + _ROWS]
        vectors = segments.vectors(block)
        for first in range(0, len(near), _ROWS):
            others = near[first : first + _ROWS]
            products = vectors @ segments.vectors(others).T
            products[block[:, np.newaxis] == others] = -np.inf
            nearest, best = products.max(axis=1), products.max(axis=0)
            rows, columns = rounded(nearest) >= min_score, rounded(best) >= min_score
            yield block[rows], others[products.argmax(axis=1)[rows]], nearest[rows]
            yield block[products.argmax(axis=0)[columns]], others[columns], best[columns]
    complete[close] = True


def _same(segments: SegmentedIndex, vector: Vectors, positions: Positions) -> Positions:
    """Those of the positions whose vectors equal this one."""
    parts = np.split(positions, range(_ROWS, len(positions), _ROWS))
    return np.concatenate([part[np.abs(segments.vectors(part) - vector).max(axis=1) <= _EQUAL] for part in parts])
