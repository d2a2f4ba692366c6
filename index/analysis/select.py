"""Selects images that represent others: diverse, typical, balanced over groups, or a mix of these.

Diversity is k-centre greedy (Gonzalez, 1985; Sener and Savarese, 2018): next comes the image that is farthest from all
picks. As distances to picks only become smaller, the best of the few candidates with the largest gains is the best of
all images while its gain is not below that of any other image when the candidates were chosen. So all vectors are
compared with picks not once for each pick, but about a dozen times in all, with the picks made since the last time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from index.analysis.clusters import nearest_of, spherical_kmeans
from index.arrays import Positions, Scores, Slots, Vectors
from index.segments.segmented_index import SegmentedIndex

Ints = npt.NDArray[np.int64]

_ROWS: Final = 4_096  # vectors in memory, besides the candidates and the new picks
_CANDIDATES: Final = 4_096
_UNKNOWN: Final = -2.0  # below every cosine
_CENTRES, _SAMPLE_OF_CENTRE = 1_024, 64


class Selection:
    """Picks among the rows at `positions`, `(n,)`, ascending.

    `ranks`, `(n,)`, count the picks from 1, and are 0 for others; `nearest` has the rank of each row's nearest pick (0:
    unknown) and `scores`, float32, the cosine with it. Those of an earlier selection may be given; what is unknown in
    them is computed. Only rows of `allowed`, a mask, become picks.
    """

    def __init__(
        self,
        segments: SegmentedIndex,
        positions: Positions,
        allowed: npt.NDArray[np.bool_],
        ranks: Ints | None = None,
        nearest: Ints | None = None,
        scores: Scores | None = None,
    ) -> None:
        count = len(positions)
        self._segments, self._positions, self._allowed = segments, positions, allowed
        self.ranks = np.zeros(count, np.int64) if ranks is None else ranks
        self.nearest = np.zeros(count, np.int64) if nearest is None else nearest
        self.scores = np.full(count, _UNKNOWN, np.float32) if scores is None else scores
        unknown = np.flatnonzero(~np.isin(self.nearest, self.ranks[self.ranks > 0]))
        self.nearest[unknown], self.scores[unknown] = 0, _UNKNOWN
        self._compare(np.flatnonzero(self.ranks), unknown)

    def extend(
        self,
        count: int,
        *,
        diverse: float = 1.0,
        values: Scores | None = None,
        groups: Ints | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Pick until there are `count` picks, or no more rows are allowed.

        The gain of a row is its value, `(n,)` float32, minus `diverse` times its cosine with the nearest pick. The
        `groups`, `(n,)` from 0, get the same number of picks, as far as they have so many rows. `progress` gets the
        number of picks so far, and of all.
        """
        values = np.zeros(len(self._positions), np.float32) if values is None else values
        groups = np.zeros(len(self._positions), np.int64) if groups is None else groups
        left = self._quotas(groups, count)
        while (missing := count - int(np.count_nonzero(self.ranks))) > 0:
            open_ = np.flatnonzero(self._allowed & (self.ranks == 0) & (left[groups] > 0))
            if not len(open_):
                break
            if self.ranks.any() or values.any():
                picks = self._round(open_, missing, diverse, values, groups, left)
            else:
                picks = self._most_central(open_)
                left[groups[picks]] -= 1
            self.ranks[picks] = self.ranks.max(initial=0) + 1 + np.arange(len(picks))
            self._compare(picks, np.arange(len(self._positions)))
            if progress:
                progress(count - missing + len(picks), count)

    @property
    def coverage(self) -> float:
        """The lowest cosine of a row that may be picked with its nearest pick."""
        return float(self.scores[self._allowed].min(initial=1.0))

    def _round(self, open_: Slots, missing: int, diverse: float, values: Scores, groups: Ints, left: Ints) -> Slots:
        """The next picks, which the greedy choice among all open rows would make, until others may be better."""
        gains, bound = values[open_] - np.float32(diverse) * self.scores[open_], -np.inf
        if len(open_) > _CANDIDATES:
            best = np.argpartition(-gains, _CANDIDATES)[: _CANDIDATES + 1]
            bound, open_ = float(gains[best[-1]]), open_[np.sort(best[:-1])]
        vectors, scores, values = self._vectors(open_), self.scores[open_], values[open_]
        picks = list[int]()
        while len(picks) < missing:
            gains = values - np.float32(diverse) * scores
            best_one = int(gains.argmax())
            if gains[best_one] < bound or gains[best_one] == -np.inf:
                break
            picks.append(int(open_[best_one]))
            group = groups[picks[-1]]
            left[group] -= 1
            values[best_one] = -np.inf
            if not left[group]:
                values[groups[open_] == group] = -np.inf
            np.maximum(scores, vectors @ vectors[best_one], out=scores)
            good = np.flatnonzero((gains >= bound) & (values > -np.inf))
            if len(good) < len(open_) // 2:  # the others cannot be picked before the next round
                open_, vectors, scores, values = open_[good], vectors[good], scores[good], values[good]
            if not len(open_):
                break
        return np.array(picks, np.int64)

    def _most_central(self, open_: Slots) -> Slots:
        """The row that is nearest to the mean."""
        blocks = [open_[start : start + _ROWS] for start in range(0, len(open_), _ROWS)]
        mean = sum(self._vectors(block).sum(axis=0, dtype=np.float64) for block in blocks)
        scores = np.concatenate([self._vectors(block) @ np.asarray(mean, np.float32) for block in blocks])
        return open_[[int(scores.argmax())]]

    def _compare(self, picks: Slots, rows: Slots) -> None:
        """Update the nearest pick of these rows."""
        if not len(picks):
            return
        vectors = self._vectors(picks)
        for start in range(0, len(rows), _ROWS):
            block = rows[start : start + _ROWS]
            scores, best = nearest_of(self._vectors(block), vectors)
            nearer = scores > self.scores[block]
            self.scores[block[nearer]] = scores[nearer]
            self.nearest[block[nearer]] = self.ranks[picks[best[nearer]]]
        self.scores[picks], self.nearest[picks] = 1.0, self.ranks[picks]

    def _vectors(self, slots: Slots) -> Vectors:
        return self._segments.vectors(self._positions[slots])

    def _quotas(self, groups: Ints, count: int) -> Ints:
        """How many more picks each group may have: as many as any other, but for those with fewer rows."""
        picked = np.bincount(groups[self.ranks > 0], minlength=groups.max(initial=0) + 1)
        rows = picked + np.bincount(groups[self._allowed & (self.ranks == 0)], minlength=len(picked))
        quotas, order = np.zeros_like(rows), np.argsort(rows, kind="stable")
        for number, group in enumerate(order.tolist()):
            quotas[group] = min(rows[group], -(-count // (len(order) - number)))
            count -= int(quotas[group])
        return np.maximum(quotas - picked, 0)


def typicality(segments: SegmentedIndex, positions: Positions) -> Scores:
    """The cosine of each row with the nearest cluster centre, `(n,)`: high in the midst of many others.

    Spherical k-means of a sample; the same vectors have the same centres.
    """
    count = max(1, min(_CENTRES, len(positions) // _SAMPLE_OF_CENTRE))
    size = min(len(positions), count * _SAMPLE_OF_CENTRE)
    sample = np.sort(np.random.default_rng(0).choice(len(positions), size, replace=False))
    centres = spherical_kmeans(segments.vectors(positions[sample]), count)
    blocks = (positions[start : start + _ROWS] for start in range(0, len(positions), _ROWS))
    return np.concatenate([nearest_of(segments.vectors(block), centres)[0] for block in blocks])
