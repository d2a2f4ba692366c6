"""Vectors mapped from disk, with the approximate index that finds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import faiss
import numpy as np

from index.arrays import Positions, Vectors
from index.segments.eligible import Eligible
from index.segments.exact import exact_neighbours
from index.segments.hits import Hits
from index.segments.kinds import map_index
from index.segments.kinds.kind import IndexKind
from index.segments.vector_file import VectorFile

TUNED_K = 11
"""The k for which search parameters such as nprobe are tuned: ten neighbours, and the query image itself."""

MIN_DEPTH = TUNED_K + 2
"""A search looks at least as deep as for this k, so that recall is measured with the depth that users get: of ten
neighbours, and the three images that a query was mixed from."""

_FETCH_ROWS = 16_384  # vectors at a time
_COPIED_ROWS = 1_024
_MAX_MASKED_QUERIES = 16  # for more, fetching the rows costs less than testing every row's bit for each query
_WIDENING = 4  # with a smaller factor, two near misses in a row would look like results that no longer change
_DEEPEN_WIDTH = 8  # times as wide, candidates that compression ranks too low are missed as often as lists
_NO_CROWD, _CROWD_DEPTH = 2.0, 16.0  # a cosine that no row has; times as many candidates, twice
_MAX_PARAMETERS = 64  # sets of search parameters, for as many k and widths
_EXACT_ROWS_PER_K = 32  # an approximate search ranks about 32 k rows, so an exact scan of as many costs the same


class VectorIndex:
    """The vectors of a file. Opening copies nothing, processes share the pages, and the files may then be unlinked.

    Scores are always exact, also for results of the approximate index in `ann_path`. Up to `max_exact_rows` vectors are
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
        self.kind = map_index(ann_path) if ann_path else IndexKind(self._flat, [])
        self._ann: faiss.IndexRefine | None = None  # the approximate index, with results ranked by exact vectors
        self._breadth, self._crowd, self._widest = 0.5, _NO_CROWD, 1.0
        self._live_parameters: dict[tuple[float, float], faiss.IndexRefineSearchParameters] = {}
        if ann_path is not None:
            self._ann = faiss.IndexRefine(self.kind.index, self._flat)
            # A requested index is used even for few rows; only a selection of rows is scanned.
            self._exact_rows = min(max_exact_rows, self.ntotal // 2)
            self.tune(parameters or {})
        self._live_mask = np.ones(self.ntotal, bool)
        self.add_tombstones(np.empty(0, np.int64))

    def add_tombstones(self, positions: Positions) -> None:
        """These rows are no longer found. Not thread-safe with searches."""
        self._live_parameters.clear()
        self._live_mask[positions] = False
        live = Eligible.of(self._live_mask)
        self.live: Eligible | None = None if live.count == self.ntotal else live
        self.live_count = live.count

    def __len__(self) -> int:
        return self.live_count

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters of the approximate search; empty for a flat segment."""
        if self._ann is None:
            return {}
        crowd = {} if self._crowd == _NO_CROWD else {"crowd": self._crowd}
        return self.kind.parameters | {"rescore": float(self._ann.k_factor), "breadth": self._breadth, **crowd}

    def tune(self, parameters: Mapping[str, float]) -> None:
        """Set the parameters of the approximate search, named as in `parameters`. Not thread-safe with searches."""
        if self._ann is not None:
            self._live_parameters.clear()
            self.kind.set(parameters)
            self._ann.k_factor = parameters.get("rescore", self._ann.k_factor)
            self._breadth = parameters.get("breadth", self._breadth)
            self._crowd = parameters.get("crowd", self._crowd)
            self._widest = self.kind.covering_breadth  # asking faiss takes as long as a search

    def search(self, queries: Vectors, k: int, eligible: Eligible | None = None, *, width: float = 1.0) -> Hits:
        """The k nearest.

        `queries` is `(n, dim)` float32, contiguous, unit norm. `eligible` None: the live rows. An approximate
        search is `width` times as wide as tuned.
        """
        eligible = eligible or self.live
        count = self.ntotal if eligible is None else eligible.count
        if not len(queries) or self._ann is None or count <= max(self._exact_rows, _EXACT_ROWS_PER_K * k):
            return self._exact(queries, k, eligible, count)
        # Ten times as many neighbours are about as far away as the same number among a tenth of the rows.
        breadth = width * (max(1.0, k / MIN_DEPTH) * self.ntotal / count) ** self._breadth
        deeper = 1.0 if width <= 1 else max(1.0, width / max(1.0, min(_DEEPEN_WIDTH, self._widest)))
        hits = self._approximate(queries, k, eligible, breadth, deeper)
        changing = np.arange(0 if eligible is self.live else len(queries))
        while len(changing) and breadth < self._widest:  # repeated until at most 1% of a query's results change
            breadth *= _WIDENING
            old, new = hits.of(changing), self._approximate(queries[changing], k, eligible, breadth, deeper)
            # Earlier results stay if they are better: compressed vectors may rank them lower than new ones.
            new = Hits.joined([old, new]).distinct(k)
            hits.put(changing, new)
            gained = np.count_nonzero(old.scores < new.scores[:, -1:], axis=1)
            changing = changing[gained > k // 100]
        short = np.flatnonzero(hits.positions[:, -1] < 0)  # the probed lists had too few eligible rows
        if len(short):
            hits.put(short, self._exact(queries[short], k, eligible, count))
        return hits

    def _approximate(self, queries: Vectors, k: int, eligible: Eligible | None, breadth: float, deeper: float) -> Hits:
        """Results of the approximate index, ranked by exact scores, for a search `breadth` times as wide as tuned, with
        `deeper` times as many candidates.
        """
        assert self._ann is not None
        # The depth, a multiple of k, would be too shallow for a smaller k.
        search_k = max(k, MIN_DEPTH)
        params = None
        if eligible or breadth > 1:
            params = self._search_parameters(eligible, breadth, deeper)
        scores, positions = self._ann.search(queries, search_k, params=params)
        crowded = np.flatnonzero(scores[:, TUNED_K - 1] >= self._crowd)
        if len(crowded) and deeper <= 1:
            # Compression cannot tell so many near-equal rows apart: rank far more of them exactly.
            params = self._search_parameters(eligible, breadth, _CROWD_DEPTH)
            scores[crowded], positions[crowded] = self._ann.search(queries[crowded], search_k, params=params)
        return Hits.whole(np.ascontiguousarray(scores[:, :k]), np.ascontiguousarray(positions[:, :k]))

    def _search_parameters(
        self, eligible: Eligible | None, breadth: float, deeper: float
    ) -> faiss.IndexRefineSearchParameters:
        """Kept for searches of all live rows, because making them takes as long as a search."""
        assert self._ann is not None
        if eligible is self.live and (known := self._live_parameters.get((breadth, deeper))):
            return known
        selector = eligible.selector if eligible else None
        base = self.kind.search_parameters(selector, breadth, deeper)
        params = faiss.IndexRefineSearchParameters(k_factor=self._ann.k_factor * deeper, base_index_params=base)
        if eligible is self.live and len(self._live_parameters) < _MAX_PARAMETERS:
            self._live_parameters[breadth, deeper] = params
        return params

    def within(self, query: Vectors, min_score: float, eligible: Eligible | None = None) -> Hits:
        """Every eligible row that scores `min_score` or more, in no order. `query` is `(dim,)`."""
        above = float(np.nextafter(np.float32(min_score), np.float32(-np.inf)))  # faiss excludes the bound itself
        eligible = eligible or self.live
        params = faiss.SearchParameters(sel=eligible.selector) if eligible else None
        _, scores, positions = self._flat.range_search(query[np.newaxis], above, params=params)
        return Hits.whole(scores[np.newaxis], positions[np.newaxis])

    def vectors(self, positions: Positions) -> Vectors:
        found: Vectors = self._flat.reconstruct_batch(np.ascontiguousarray(positions))
        return found

    def live_positions(self) -> Positions:
        return np.flatnonzero(self._live_mask)

    def dead_positions(self) -> Positions:
        return np.flatnonzero(~self._live_mask)

    def all_blocks(self) -> Iterator[Vectors]:
        """The vectors of all rows, also of those with tombstones, read from the file to save memory: in blocks so small
        that the memory of one serves the next.
        """
        return self._file.blocks(_COPIED_ROWS)

    def live_blocks(self, rows: int = 16_384, first: int = 0) -> Iterator[tuple[Positions, Vectors]]:
        """Positions and vectors of the live rows from the `first`, block by block, read from the file to save
        memory.
        """
        for block in self._file.blocks(rows, first):
            live = np.flatnonzero(self._live_mask[first : first + len(block)])
            yield live + first, block if len(live) == len(block) else block[live]
            first += len(block)

    def _exact(self, queries: Vectors, k: int, eligible: Eligible | None, count: int) -> Hits:
        """The k nearest of `count` eligible rows."""
        found, shape = min(k, count), (len(queries), k)
        scores, positions = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64)
        if not len(queries) or not found:
            return Hits.whole(scores, positions)
        if eligible is None or (len(queries) <= _MAX_MASKED_QUERIES and count > self.ntotal // 32):
            params = None if eligible is None else faiss.SearchParameters(sel=eligible.selector)
            scores[:, :found], positions[:, :found] = self._flat.search(queries, found, params=params)
            return Hits.whole(scores, positions)
        # Fetched once for all queries, and multiplied as matrices, which faiss does not do with a selector.
        rows = np.flatnonzero(eligible.mask)
        parts = np.split(rows, range(_FETCH_ROWS, len(rows), _FETCH_ROWS))
        return exact_neighbours(queries, ((part, self.vectors(part)) for part in parts), k)
