"""Keeps one of each group of near-equal images (SemDeDup; Abbas et al., 2023), which the index finds, not clusters.

An image is kept unless one that is preferred to it is kept and near-equal: the greedy independent set of the graph of
near-equal pairs. So each pruned image has a kept one as near as the cut, which linking pairs into groups would not
ensure, and after a change only what is around it has to be decided again.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from index.analysis.near_duplicates import Alike
from index.arrays import Positions, Scores, Vectors, least_score
from index.search_options import checked_min_score
from index.segments.eligible import Eligible
from index.segments.segmented_index import SegmentedIndex
from index.segments.vector_file import BLOCK_ROWS

_DEPTH: Final = 16  # neighbours of every image; those of an image whose neighbours are all near-equal are searched for
_DEEPER: Final = (128, 1_024)


class Pruning:
    """Which image is kept in place of each row of an index.

    `order` has the positions of the rows to decide about, those preferred first. `keeper`, `(ntotal,)`, is the position
    of the image that is kept for a row, its own if it is kept, and -1 if that is undecided; `scores`, `(ntotal,)`
    float32, are their cosines. Those of an earlier run may be given, but for what has changed since.
    """

    def __init__(
        self,
        segments: SegmentedIndex,
        order: Positions,
        min_score: float,
        keeper: Positions | None = None,
        scores: Scores | None = None,
    ) -> None:
        self._segments, self._order, self._min_score = segments, order, checked_min_score(min_score)
        self._rank = np.full(segments.ntotal, -1, np.int64)
        self._rank[order] = np.arange(len(order))
        some = len(order) < segments.live_count
        self._eligible: Sequence[Eligible] | None = segments.eligible_at(order) if some else None
        self.keeper = np.full(segments.ntotal, -1, np.int64) if keeper is None else keeper
        self.scores = np.ones(segments.ntotal, np.float32) if scores is None else scores

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Decide about all rows that are undecided. `progress` gets how many have been looked up, and of how many."""
        while len(undecided := self._undecided()):
            for start in range(0, len(undecided), BLOCK_ROWS):
                block = undecided[start : start + BLOCK_ROWS]
                self._decide(block[self.keeper[block] < 0])
                if progress:
                    progress(min(start + BLOCK_ROWS, len(undecided)), len(undecided))

    def _decide(self, block: Positions) -> None:
        vectors = self._segments.vectors(block)
        hits = self._segments.search(vectors, _DEPTH, self._eligible)
        rows, near, scores, may_have_more = Alike.among(hits, block, self._min_score)
        bounds = np.searchsorted(rows, np.arange(len(block) + 1))
        self._keep(block[np.diff(bounds) == 0])
        for row in np.flatnonzero(np.diff(bounds)).tolist():
            position, found = int(block[row]), slice(bounds[row], bounds[row + 1])
            if self.keeper[position] >= 0:
                continue
            if may_have_more[row] and not len(self._preferred(position, near[found])):
                self._settle(position, *self._all_near(position, vectors[row]))
            else:
                self._settle(position, near[found], scores[found])

    def _settle(self, position: int, near: Positions, scores: Scores) -> None:
        """Decide about a row with these near-equal ones."""
        preferred = self._preferred(position, near)
        if len(preferred):
            best = preferred[self._rank[near[preferred]].argmin()]
            self.keeper[position], self.scores[position] = near[best], scores[best]
            return
        self._keep(np.array([position]))
        keeper, rank = self.keeper[near], self._rank[position]
        undecided = (keeper < 0) | (self.keeper[keeper] != keeper)
        taken = (undecided | (self._rank[keeper] > rank)) & (self._rank[near] > rank)
        self.keeper[near[taken]], self.scores[near[taken]] = position, scores[taken]

    def _preferred(self, position: int, near: Positions) -> Positions:
        """Which of these rows are kept and preferred, by their indices."""
        return np.flatnonzero((self.keeper[near] == near) & (self._rank[near] < self._rank[position]))

    def _keep(self, positions: Positions) -> None:
        self.keeper[positions], self.scores[positions] = positions, 1.0

    def _all_near(self, position: int, vector: Vectors) -> tuple[Positions, Scores]:
        """All rows that are near-equal to one, and their scores."""
        for depth in _DEEPER:
            hits = self._segments.search(vector[np.newaxis], depth, self._eligible)
            found = Alike.among(hits, np.array([position]), self._min_score)
            if not found.may_have_more[0]:
                return found.near, found.scores
        hits = self._segments.within(vector, least_score(self._min_score), self._eligible)
        found = Alike.among(hits, np.array([position]), self._min_score)
        return found.near, found.scores

    def _undecided(self) -> Positions:
        """The rows to decide about, those preferred first: also those whose keeper is no longer kept."""
        self.keeper[self._rank < 0] = -1
        self.keeper[self.keeper[self.keeper] != self.keeper] = -1
        return self._order[self.keeper[self._order] < 0]
