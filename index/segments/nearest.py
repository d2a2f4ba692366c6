"""The nearest vectors of several indexes. The candidates of approximate ones are merged before they are ranked by exact
vectors, so that a query reads no more of those, from disk if memory is short, than in a single index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.arrays import Positions, Vectors
from index.segments.eligible import Eligible
from index.segments.hits import Hits
from index.segments.vector_index import MIN_DEPTH, TUNED_K, VectorIndex

_WIDENING = 4  # with a smaller factor, two near misses in a row would look like results that no longer change
_CROWD_DEPTH = 16.0  # times as many candidates, twice
_CROWDED = 1_024  # queries at a time, because so many candidates take memory
_PROBED = 2  # vectors; if none has to come from disk, few of the others have to


@dataclass(frozen=True, eq=False)
class Part:
    """An index whose positions begin at `start`, and its rows that a search may return; None: the live ones."""

    index: VectorIndex
    eligible: Eligible | None = None
    start: int = 0

    def scan(self, queries: Vectors, k: int) -> Hits:
        return self.index.scan(queries, k, self.eligible).shifted(self.start)

    def within(self, query: Vectors, min_score: float) -> Hits:
        return self.index.within(query, min_score, self.eligible).shifted(self.start)

    def local(self, positions: Positions) -> Positions:
        """Positions in the index; -1 for those in others."""
        inside = (positions >= self.start) & (positions < self.start + self.index.ntotal)
        return np.where(inside, positions - self.start, -1)


def nearest(parts: Sequence[Part], queries: Vectors, k: int, *, width: float = 1.0) -> Hits:
    """The k nearest in all parts together, by their exact scores.

    `queries` is `(n, dim)` float32, unit norm. Approximate searches are `width` times as wide as tuned.
    """
    approximate = [part for part in parts if len(queries) and not part.index.scans(k, part.eligible)]
    best = _Search(approximate, k, width).nearest(queries) if approximate else None
    for part in (part for part in parts if part not in approximate):
        hits = part.scan(queries, k)
        if best is None:
            best = hits
        # Mostly not so for few newer rows, and merging takes as long as searching them.
        elif (hits.scores[:, 0] > best.scores[:, -1]).any():
            best = Hits.joined([best, hits]).best(k)
    assert best is not None  # a version has a segment
    return best


@dataclass(frozen=True, eq=False)
class _Search:
    """A search for the k nearest in parts with approximate indexes."""

    parts: Sequence[Part]
    k: int
    width: float

    def nearest(self, queries: Vectors) -> Hits:
        hits, wider = self._ranked(self.parts, queries, 1.0), 1.0
        narrow = [part for part in self.parts if part.eligible is not None]
        changing = np.arange(len(queries))
        # Repeated until at most 1% of a query's results change.
        while len(changing) and (narrow := [part for part in narrow if self._breadth(part, wider) < part.index.widest]):
            wider *= _WIDENING
            old, new = hits.of(changing), self._ranked(narrow, queries[changing], wider)
            # Earlier results stay if they are better: compressed vectors may rank them lower than new ones.
            new = Hits.joined([old, new]).distinct(self.k)
            hits.put(changing, new)
            gained = np.count_nonzero(old.scores < new.scores[:, -1:], axis=1)
            changing = changing[gained > self.k // 100]
        short = np.flatnonzero(hits.positions[:, -1] < 0)  # too few eligible rows
        if len(short):
            hits.put(short, Hits.joined([part.scan(queries[short], self.k) for part in self.parts]).best(self.k))
        return hits

    @property
    def _depth(self) -> int:
        """For how many neighbours there are candidates: their number, a multiple of k, is too low for a smaller k."""
        return max(self.k, MIN_DEPTH)

    def _breadth(self, part: Part, wider: float) -> float:
        return self.width * wider * part.index.breadth(self._depth, part.eligible)

    def _ranked(self, parts: Sequence[Part], queries: Vectors, wider: float) -> Hits:
        """The k best of a search that is `wider`."""
        deeper = max(part.index.deeper(self.width) for part in parts)
        hits = self._best(parts, queries, wider, deeper)
        crowded = np.flatnonzero(hits.scores[:, TUNED_K - 1] >= min(part.index.crowd for part in parts))
        if len(crowded) and deeper <= 1:
            # Compression cannot tell so many near-equal rows apart: rank far more of them exactly.
            for some in np.split(crowded, range(_CROWDED, len(crowded), _CROWDED)):
                hits.put(some, self._best(parts, queries[some], wider, _CROWD_DEPTH))
        return hits if self.k >= TUNED_K else hits.best(self.k)

    def _best(self, parts: Sequence[Part], queries: Vectors, wider: float, deeper: float) -> Hits:
        """The k best candidates, and at least `TUNED_K`, by exact scores."""
        found = [self._candidates(part, queries, wider, deeper) for part in parts]
        k = max(self.k, TUNED_K)
        if len(parts) == 1:
            [part], [hits] = parts, found
            _request_if_on_disk(parts, [hits.positions])
            return Hits.whole(part.index.scores(queries, hits.positions), hits.positions).best(k).shifted(part.start)
        positions = self._best_positions(parts, found)
        local = [part.local(positions) for part in parts]
        _request_if_on_disk(parts, local)
        scores = [part.index.scores(queries, each) for part, each in zip(parts, local, strict=True)]
        return Hits.whole(np.maximum.reduce(scores), positions).best(k)

    def _candidates(self, part: Part, queries: Vectors, wider: float, deeper: float) -> Hits:
        breadth = self._breadth(part, wider)
        hits = part.index.candidates(queries, self._depth, part.eligible, breadth, deeper)
        if part.eligible is None and len(short := np.flatnonzero(hits.positions[:, self.k - 1] < 0)):
            # The probed lists had too few rows, as in a segment of few rows with the lists of a large one.
            scanned = part.index.scan(queries[short], self.k, None)
            hits.scores[short, : self.k], hits.positions[short, : self.k] = scanned.scores, scanned.positions
        return hits

    def _best_positions(self, parts: Sequence[Part], found: Sequence[Hits]) -> Positions:
        """The positions of the best candidates: as many as the deepest search of a part has, and more for queries that
        need a wider search. Approximate scores of different indexes can be compared: all of them estimate the cosine.
        """
        hits = Hits.joined([hits.shifted(part.start) for part, hits in zip(parts, found, strict=True)])
        deepest = max(hits.scores.shape[1] for hits in found)
        count = min(int(deepest * max(1.0, self.width)), hits.scores.shape[1])
        return hits.take(np.argpartition(-hits.scores, count - 1, axis=1)[:, :count]).positions


def _request_if_on_disk(parts: Sequence[Part], local: Sequence[Positions]) -> None:
    """Have the system read the vectors at these positions in each part, all at once, if the first ones are not in
    memory.
    """
    probed = -(-_PROBED // len(parts))
    if any(part.index.reads_disk(rows[0][rows[0] >= 0][:probed]) for part, rows in zip(parts, local, strict=True)):
        for part, rows in zip(parts, local, strict=True):
            part.index.request(rows[rows >= 0])
