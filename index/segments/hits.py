"""What a search finds, for all of its queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Parts, Positions, Scores, Slots


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The rows near each query, `(n, k)` arrays, best first; -inf and -1 where there are fewer. `parts` matched: 0 is
    the whole picture, n its n-th tile.
    """

    scores: Scores
    positions: Positions
    parts: Parts

    @classmethod
    def whole(cls, scores: Scores, positions: Positions) -> Hits:
        """Hits of whole pictures."""
        return cls(scores, positions, np.zeros(positions.shape, np.int64))

    @classmethod
    def joined(cls, several: Sequence[Hits]) -> Hits:
        """All hits of each query, one after another."""
        columns = zip(*(hits._columns for hits in several), strict=True)
        return cls(*(np.concatenate(column, axis=1) for column in columns))

    @property
    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.scores, self.positions, self.parts

    def of(self, queries: Slots) -> Hits:
        """The hits of some queries, by their numbers."""
        return Hits(*(column[queries] for column in self._columns))

    def put(self, queries: Slots, hits: Hits) -> None:
        """Replace the hits of some queries, by their numbers."""
        for column, other in zip(self._columns, hits._columns, strict=True):
            column[queries] = other

    def take(self, slots: Slots) -> Hits:
        """The hits at these places, `(n, m)`, of each query."""
        rows = np.arange(len(slots))[:, np.newaxis]  # `take_along_axis` takes longer than all the rest for one query
        return Hits(*(column[rows, slots] for column in self._columns))

    def best(self, k: int) -> Hits:
        """The k best of each query. Ties stay in order."""
        return self.take(np.argsort(-self.scores, axis=1, kind="stable")[:, :k])

    def mean_scores(self) -> npt.NDArray[np.float64]:
        """The mean score of each query's hits, `(n,)`; NaN if there are none."""
        found = self.positions >= 0
        totals, counts = np.where(found, self.scores, 0).sum(axis=1, dtype=np.float64), found.sum(axis=1)
        return np.where(counts, totals / np.maximum(counts, 1), np.nan)

    def distinct(self, k: int) -> Hits:
        """The k best of each query. A position that is repeated keeps its best score, the first of equals."""
        ranked = self.best(self.scores.shape[1])
        by_position = np.argsort(ranked.positions, axis=1, kind="stable")
        again = np.diff(np.take_along_axis(ranked.positions, by_position, axis=1), axis=1) == 0
        repeated = np.zeros(ranked.positions.shape, bool)
        np.put_along_axis(repeated, by_position[:, 1:], again, axis=1)
        scores, positions = np.where(repeated, -np.inf, ranked.scores), np.where(repeated, -1, ranked.positions)
        return Hits(scores, positions, ranked.parts).best(k)

    def shifted(self, start: int) -> Hits:
        """Those in a part that begins at `start`, at their positions in the whole."""
        if not start:
            return self
        positions = np.where(self.positions >= 0, self.positions + start, -1)
        return Hits(self.scores, positions, self.parts)

    def of_tiles(self, per_row: int) -> Hits:
        """Hits of tiles, `per_row` for each picture, as those of parts of pictures."""
        rows, numbers = np.divmod(self.positions, per_row)  # -1, for none, stays -1
        return Hits(self.scores, rows, numbers + 1)
