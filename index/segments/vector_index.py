"""Vectors mapped from disk, with the approximate index that finds them."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.arrays import Positions, Scores, Vectors
from index.segments.eligible import Eligible
from index.segments.exact import exact_neighbours
from index.segments.hits import Hits
from index.segments.kinds.kind import IndexKind
from index.segments.kinds.registry import map_index
from index.segments.vector_file import BLOCK_ROWS, VectorFile

TUNED_K = 11
"""The k for which search parameters such as nprobe are tuned: ten neighbours, and the query image itself."""

MIN_DEPTH = TUNED_K + 2
"""A search looks at least as deep as for this k, so that recall is measured with the depth that users get: of ten
neighbours, and the three images that a query was mixed from."""

_COPIED_ROWS = 1_024
_MAX_MASKED_QUERIES = 16  # for more, fetching the rows costs less than testing every row's bit for each query
_DEEPEN_WIDTH = 8  # times as wide, candidates that compression ranks too low are missed as often as lists
_NO_CROWD = 2.0  # a cosine that no row has
_MAX_PARAMETERS = 64  # sets of search parameters, for as many k and widths
_EXACT_ROWS_PER_K = 32  # an approximate search ranks about 32 k rows, so an exact scan of as many costs the same


class VectorIndex:
    """The vectors of a file. Opening copies nothing, processes share the pages, and the files may then be unlinked.

    `nearest` searches them, with the approximate index in `ann_path` if there is one. Up to `max_exact_rows` vectors
    are scanned exactly even with one. faiss raises its own errors.
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
        self._vectors: Vectors = faiss.rev_swig_ptr(self._flat.get_xb(), self.ntotal * self.dim).reshape(-1, self.dim)
        self._file = VectorFile(path, self.ntotal, self.dim)
        self.kind = map_index(ann_path) if ann_path else IndexKind(self._flat, [])
        self._approximate = ann_path is not None
        self._rescore, self._breadth, self.crowd, self.widest = 1.0, 0.5, _NO_CROWD, 1.0
        self._live_parameters: dict[tuple[float, float], Any] = {}
        if self._approximate:
            # A requested index is used even for few rows; only a selection of rows is scanned.
            self._exact_rows = min(max_exact_rows, self.ntotal // 2)
            self.tune(parameters or {})
        self.live: Eligible | None = None
        """The rows without tombstones; None: all."""
        self.live_count = self.ntotal

    def add_tombstones(self, positions: Positions) -> None:
        """These rows are no longer found. Not thread-safe with searches."""
        self._live_parameters.clear()
        mask = self._live_mask()
        mask[positions] = False
        live = Eligible.of(mask)
        self.live = None if live.count == self.ntotal else live
        self.live_count = live.count

    def _live_mask(self) -> npt.NDArray[np.bool_]:
        """Whether each row has no tombstone."""
        return np.ones(self.ntotal, bool) if self.live is None else self.live.mask[: self.ntotal]

    def __len__(self) -> int:
        return self.live_count

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters of the approximate search; empty for a flat segment."""
        if not self._approximate:
            return {}
        crowd = {} if self.crowd == _NO_CROWD else {"crowd": self.crowd}
        return self.kind.parameters | {"rescore": self._rescore, "breadth": self._breadth, **crowd}

    def tune(self, parameters: Mapping[str, float]) -> None:
        """Set the parameters of the approximate search, named as in `parameters`. Not thread-safe with searches."""
        if self._approximate:
            self._live_parameters.clear()
            self.kind.set(parameters)
            self._rescore = parameters.get("rescore", self._rescore)
            self._breadth = parameters.get("breadth", self._breadth)
            self.crowd = parameters.get("crowd", self.crowd)
            self.widest = self.kind.covering_breadth  # asking faiss takes as long as a search

    def scans(self, k: int, eligible: Eligible | None) -> bool:
        """Whether a search for the k nearest compares all of these rows (None: the live ones)."""
        return not self._approximate or self._count(eligible) <= max(self._exact_rows, _EXACT_ROWS_PER_K * k)

    def breadth(self, k: int, eligible: Eligible | None) -> float:
        """How many times as wide as tuned a search for the k nearest of these rows is.

        Ten times as many neighbours are about as far away as the same number among a tenth of the rows.
        """
        return float((max(1.0, k / MIN_DEPTH) * self.ntotal / self._count(eligible)) ** self._breadth)

    def deeper(self, width: float) -> float:
        """How many times as many candidates as tuned a search has that is `width` times as wide."""
        return 1.0 if width <= 1 else max(1.0, width / max(1.0, min(_DEEPEN_WIDTH, self.widest)))

    def candidates(self, queries: Vectors, k: int, eligible: Eligible | None, breadth: float, deeper: float) -> Hits:
        """The rows with the best approximate scores, some of which are the k nearest, at least `MIN_DEPTH`, by a search
        `breadth` times as wide as tuned, with `deeper` times as many results.
        """
        eligible = eligible or self.live
        params = self._search_parameters(eligible, breadth, deeper) if eligible or breadth > 1 else None
        return Hits.whole(*self.kind.index.search(queries, max(k, int(k * self._rescore * deeper)), params=params))

    def _search_parameters(self, eligible: Eligible | None, breadth: float, deeper: float) -> Any:
        """Kept for searches of all live rows, because making them takes as long as a search."""
        if eligible is self.live and (known := self._live_parameters.get((breadth, deeper))):
            return known
        params = self.kind.search_parameters(eligible.selector if eligible else None, breadth, deeper)
        if eligible is self.live and len(self._live_parameters) < _MAX_PARAMETERS:
            self._live_parameters[breadth, deeper] = params
        return params

    def scores(self, queries: Vectors, positions: Positions) -> Scores:
        """Cosines of the queries with the vectors at `(n, m)` positions; -inf for -1."""
        scores = np.empty(positions.shape, np.float32)
        arrays = np.ascontiguousarray(queries), scores, np.ascontiguousarray(positions)  # faiss takes bare pointers
        vectors, distances, labels = map(faiss.swig_ptr, arrays)
        self._flat.compute_distance_subset(len(queries), vectors, positions.shape[1], distances, labels)
        return scores

    def reads_disk(self, positions: Positions) -> bool:
        """Read these vectors. Whether the system had to get one from disk, as far as it tells."""
        if sys.platform != "linux":
            return False
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        self._vectors[positions, 0]
        return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt > faults

    def request(self, positions: Positions) -> None:
        """Have the system read these vectors, all at once."""
        self._file.request(positions)

    def within(self, query: Vectors, min_score: float, eligible: Eligible | None = None) -> Hits:
        """Every eligible row that scores `min_score` or more, in no order. `query` is `(dim,)`."""
        above = float(np.nextafter(np.float32(min_score), np.float32(-np.inf)))  # faiss excludes the bound itself
        eligible = eligible or self.live
        params = faiss.SearchParameters(sel=eligible.selector) if eligible else None
        _, scores, positions = self._flat.range_search(query[np.newaxis], above, params=params)
        return Hits.whole(scores[np.newaxis], positions[np.newaxis])

    def vectors(self, positions: Positions) -> Vectors:
        return self._vectors[positions]

    def live_positions(self) -> Positions:
        return np.flatnonzero(self._live_mask())

    def dead_positions(self) -> Positions:
        return np.flatnonzero(~self._live_mask())

    def all_blocks(self) -> Iterator[Vectors]:
        """The vectors of all rows, also of those with tombstones, read from the file to save memory: in blocks so small
        that the memory of one serves the next.
        """
        return self._file.blocks(_COPIED_ROWS)

    def live_blocks(self, first: int = 0) -> Iterator[tuple[Positions, Vectors]]:
        """Positions and vectors of the live rows from the `first`, block by block, read from the file to save
        memory.
        """
        mask = self._live_mask()
        for block in self._file.blocks(first=first):
            live = np.flatnonzero(mask[first : first + len(block)])
            yield live + first, block if len(live) == len(block) else block[live]
            first += len(block)

    def scan(self, queries: Vectors, k: int, eligible: Eligible | None) -> Hits:
        """The k nearest of these rows (None: the live ones), by comparing all."""
        eligible, count = eligible or self.live, self._count(eligible)
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
        parts = np.split(rows, range(BLOCK_ROWS, len(rows), BLOCK_ROWS))
        return exact_neighbours(queries, ((part, self.vectors(part)) for part in parts), k)

    def _count(self, eligible: Eligible | None) -> int:
        return eligible.count if eligible else self.live_count
