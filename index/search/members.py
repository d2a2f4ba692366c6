"""Images of a set, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from index.arrays import Parts, Positions, Slots, rounded
from index.search_options import QueryLimits
from index.segments.hits import Hits


@dataclass(frozen=True, eq=False)
class Members:
    """Images of a set: `(n,)` positions, ascending, and with a query the scores and parts that were compared, and what
    they are ordered by if that is the score.
    """

    positions: Positions
    keys: npt.NDArray[np.float64] | None = None
    scores: npt.NDArray[np.float64] | None = None
    parts: Parts | None = None

    @classmethod
    def of(cls, hits: Hits, limits: QueryLimits) -> Members:
        """Those whose score is within the limits, of a search with one query."""
        scores, positions, parts = rounded(hits.scores[0]), hits.positions[0], hits.parts[0]
        good = np.flatnonzero((positions >= 0) & limits.within(scores))
        slots = good[np.argsort(positions[good], kind="stable")]
        return cls(positions[slots], scores[slots], scores[slots], parts[slots])

    def at(self, slots: Slots | npt.NDArray[np.bool_]) -> Members:
        columns: dict[str, Any] = {name: None if each is None else each[slots] for name, each in vars(self).items()}
        return Members(**columns)

    def without(self, positions: Positions) -> Members:
        return self.at(~np.isin(self.positions, positions)) if len(positions) else self

    def followed_by(self, others: Members) -> Members:
        """These, and behind them those of the others that are not among them. All have scores."""
        if not len(self):
            return others
        others = others.without(self.positions)
        behind = np.nextafter(np.min(self.keys), -np.inf)  # type: ignore[arg-type]
        others = replace(others, keys=np.minimum(others.keys, behind))  # type: ignore[arg-type]
        joined = {name: np.concatenate([each, vars(others)[name]]) for name, each in vars(self).items()}
        return Members(**joined).at(np.argsort(joined["positions"], kind="stable"))

    def __len__(self) -> int:
        return len(self.positions)


NOTHING: Final = Members(np.empty(0, np.int64), np.empty(0), np.empty(0), np.empty(0, np.int64))
