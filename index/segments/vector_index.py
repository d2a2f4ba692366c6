"""Vectors mapped from disk, with the approximate index that finds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import faiss
import numpy as np

from index.arrays import Positions, Scores, Vectors, best_of_each
from index.segments import ann
from index.segments.exact import exact_neighbours
from index.segments.searchable import Eligible
from index.segments.vector_file import VectorFile

TUNED_K = 11
"""The k for which search parameters such as nprobe are tuned: ten neighbours, and the query image itself."""

_LEVEL_K = TUNED_K + 2
"""Up to so many are searched for as narrowly: ten, and the three images that a query was mixed from."""

_FETCHED = 16_384  # vectors at a time
_MANY = 16  # from so many queries on, fetching the rows costs less than testing every row's bit for each query
_WIDER = 4  # with a smaller factor, two near misses in a row would look like an answer that no longer changes
_WIDE = 8  # times as wide, candidates that compression ranks too low are missed as often as lists
_DEEP = 32  # an approximate search ranks about 32 k rows; for no more rows than that, an exact scan costs the same


class VectorIndex:
    """The vectors of a file. Opening copies nothing, processes share the pages, and the files may then be unlinked.

    Scores are always exact, also of what the approximate index `ann_path` finds. Up to `max_exact_rows` vectors are
    scanned exactly even with one. faiss raises its own errors.
    """

    def __init__(
        self,
        path: Path,
        *,
        ann_path: Path | None = None,
        parameters: Mapping[str, float] | None = None,
        max_exact_rows: int = 0,
    ) -> None:
        self._exact_rows = max_exact_rows
        # IO_FLAG_MMAP would silently copy a flat index into memory; this flag maps it.
        self._flat = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        self.ntotal, self.dim = int(self._flat.ntotal), int(self._flat.d)
        self._file = VectorFile(path, self.ntotal, self.dim)
        self._ann: faiss.IndexRefine | None = None
        self._breadth = 0.5
        if ann_path is not None:
            self._ann = faiss.IndexRefine(ann.read_index(ann_path), self._flat)
            # An index that was requested is used even for few rows; only a selection of rows is scanned.
            self._exact_rows = min(max_exact_rows, self.ntotal // 2)
            self.tune(parameters or {})
        self._live_mask = np.ones(self.ntotal, bool)
        self.add_tombstones(np.empty(0, np.int64))

    def add_tombstones(self, positions: Positions) -> None:
        """These rows are no longer found. Not thread-safe with searches."""
        self._live_mask[positions] = False
        everything = Eligible.of(self._live_mask)
        self.live: Eligible | None = None if everything.count == self.ntotal else everything
        self.live_count = everything.count

    def __len__(self) -> int:
        return self.live_count

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters of the approximate search; empty for a flat segment."""
        if self._ann is None:
            return {}
        own = {"rescore": float(self._ann.k_factor), "breadth": self._breadth}
        return ann.parameters(self._ann.base_index) | own

    @property
    def nlist(self) -> int:
        """Number of inverted lists of the approximate index; 0 without one."""
        ivf = faiss.try_extract_index_ivf(self._ann.base_index) if self._ann is not None else None
        return int(ivf.nlist) if ivf else 0

    @property
    def _widest(self) -> float:
        """How many times as far as tuned a search can look."""
        tuned = self.parameters
        if "nprobe" in tuned:
            return self.nlist / tuned["nprobe"]
        return self.ntotal / tuned["efSearch"] if "efSearch" in tuned else 1.0

    def tune(self, parameters: Mapping[str, float]) -> None:
        """Set the parameters of the approximate search, named as in `parameters`. Not thread-safe with searches."""
        if self._ann is not None:
            ann.set_parameters(self._ann.base_index, parameters)
            self._ann.k_factor = parameters.get("rescore", self._ann.k_factor)
            self._breadth = parameters.get("breadth", self._breadth)

    def search(
        self, queries: Vectors, k: int, eligible: Eligible | None = None, *, width: float = 1.0
    ) -> tuple[Scores, Positions]:
        """Cosine and position of the k nearest, each `(n, k)`, best first; -1 where fewer rows are eligible.

        `queries` is `(n, dim)` float32, contiguous, unit norm. `eligible` None: the live rows. An approximate
        search looks `width` times as far as it was tuned to.
        """
        eligible = eligible or self.live
        count = self.ntotal if eligible is None else eligible.count
        scores = np.full((len(queries), k), -np.inf, np.float32)
        positions = np.full((len(queries), k), -1, np.int64)
        found = min(k, count)
        if found == 0 or not len(queries):
            return scores, positions
        if self._ann is None or count <= max(self._exact_rows, _DEEP * k):
            scores[:, :found], positions[:, :found] = self._exact(queries, found, eligible)
            return scores, positions
        # Ten times the neighbours reach about as far out as the same number among a tenth of the rows.
        breadth = width * (max(1.0, k / _LEVEL_K) * self.ntotal / count) ** self._breadth
        deeper = 1.0 if width <= 1 else max(1.0, width / max(1.0, min(_WIDE, self._widest)))
        scores, positions = self._approximate(queries, k, eligible, breadth, deeper)
        if eligible is not self.live:
            self._widen(queries, eligible, breadth, deeper, scores, positions)
        short = np.flatnonzero(positions[:, -1] < 0)  # the lists that were probed held too few eligible rows
        if len(short):
            scores[short], positions[short] = self._exact(queries[short], k, eligible)
        return scores, positions

    def _approximate(
        self, queries: Vectors, k: int, eligible: Eligible | None, breadth: float, deeper: float
    ) -> tuple[Scores, Positions]:
        """Results of the approximate index for a search `breadth` times as wide as tuned, ranked by exact scores, of
        `deeper` times as many candidates.
        """
        assert self._ann is not None
        # The depth, a multiple of k, is tuned for `TUNED_K`; for a smaller k it would be too shallow.
        deep = max(k, TUNED_K)
        params = None
        if eligible or breadth > 1:  # making the parameters takes as long as half a search
            selector = eligible.selector if eligible else None
            base = ann.search_parameters(self._ann.base_index, selector, breadth, deeper)
            params = faiss.IndexRefineSearchParameters(k_factor=self._ann.k_factor * deeper, base_index_params=base)
        scores, positions = self._ann.search(queries, deep, params=params)
        return np.ascontiguousarray(scores[:, :k]), np.ascontiguousarray(positions[:, :k])

    def _widen(
        self,
        queries: Vectors,
        eligible: Eligible | None,
        breadth: float,
        deeper: float,
        scores: Scores,
        positions: Positions,
    ) -> None:
        """Search again, in place, 4 times wider until at most 1% of a query's results improve, wherever they lie.

        What was found before stays if it is better: compressed vectors may rank it lower than what else is found now.
        """
        k = scores.shape[1]
        unsettled = np.arange(len(queries))
        while len(unsettled) and breadth < self._widest:
            breadth *= _WIDER
            before, known = scores[unsettled], positions[unsettled]
            better, found = self._approximate(queries[unsettled], k, eligible, breadth, deeper)
            better, found = best_of_each(
                k, np.concatenate([before, better], axis=1), np.concatenate([known, found], axis=1)
            )
            gained = np.count_nonzero(before < better[:, -1:], axis=1)
            scores[unsettled], positions[unsettled] = better, found
            unsettled = unsettled[gained > k // 100]

    def within(self, query: Vectors, min_score: float, eligible: Eligible | None = None) -> tuple[Scores, Positions]:
        """Cosine and position of every eligible row that scores `min_score` or more, in no order. `query` is 1-d."""
        above = float(np.nextafter(np.float32(min_score), np.float32(-np.inf)))  # faiss leaves the bound itself out
        among = eligible or self.live
        params = faiss.SearchParameters(sel=among.selector) if among else None
        _, scores, positions = self._flat.range_search(query[np.newaxis], above, params=params)
        return scores, positions

    def vectors(self, positions: Positions) -> Vectors:
        found: Vectors = self._flat.reconstruct_batch(np.ascontiguousarray(positions))
        return found

    def live_positions(self) -> Positions:
        return np.flatnonzero(self._live_mask)

    def dead_positions(self) -> Positions:
        return np.flatnonzero(~self._live_mask)

    def live_blocks(self, rows: int = 16_384) -> Iterator[tuple[Positions, Vectors]]:
        """Positions and vectors of the live rows, block by block; read from the file to keep memory small."""
        start = 0
        for block in self._file.blocks(rows):
            live = np.flatnonzero(self._live_mask[start : start + len(block)])
            yield live + start, block if len(live) == len(block) else block[live]
            start += len(block)

    def _exact(self, queries: Vectors, k: int, eligible: Eligible | None) -> tuple[Scores, Positions]:
        if eligible is None or (len(queries) <= _MANY and eligible.count > self.ntotal // 32):
            params = None if eligible is None else faiss.SearchParameters(sel=eligible.selector)
            scores, positions = self._flat.search(queries, k, params=params)
            return scores, positions
        # Fetched once for all queries, and multiplied as matrices; faiss does not do so with a selector.
        rows = np.flatnonzero(eligible.mask)
        parts = np.split(rows, range(_FETCHED, len(rows), _FETCHED))
        return exact_neighbours(queries, ((part, self.vectors(part)) for part in parts), k)
