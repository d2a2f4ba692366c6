"""Inverted lists of codes: a search probes those whose centroids are nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np

from index.arrays import Vectors
from index.segments.kinds.kind import IndexKind, Parameters, selecting, steps

_ROWS_PER_LIST = 32  # training rows; more cost time and gain next to nothing
_ROWS_PER_CODE = 128
_ITERATIONS = 10
_ID = 8  # bytes
_SCANNED_TOGETHER = 32  # codes; the length of a list is a multiple of this
_SCANNED_PER_LIST, _SHORT = 4_096, 128  # numbers in an exact scan that cost as much as probing a short list; dimensions
_FINDING_LISTS = 16  # short lists, whose probing costs as much as reducing a query and finding its lists
_QUERY_BY_QUERY = 11  # faiss's number for the kernel of fast scan that keeps candidates in a reservoir


class Ivf(IndexKind):
    wraps = ("quantizer",)
    parameter = "nprobe"

    def __init__(self, index: Any, parts: Sequence[IndexKind]) -> None:
        super().__init__(index, [])
        [self._quantizer] = parts  # of the lists; it has no codes of vectors, and its own search is not tuned

    @property
    def training_rows(self) -> int:
        return max(super().training_rows, _ROWS_PER_LIST * int(self.index.nlist))

    def prepare_training(self, sample: Vectors) -> None:
        _limit(self.index.cp, _ROWS_PER_LIST)
        if hasattr(self.index, "pq"):
            _limit(self.index.pq.cp, _ROWS_PER_CODE)

    @property
    def row_bytes(self) -> int:
        return int(self.index.code_size) + _ID

    @property
    def fixed_bytes(self) -> int:
        """Of the centroids, the codebooks, and the unfilled ends of lists."""
        nlist, code_size = int(self.index.nlist), int(self.index.code_size)
        codebooks = 4 * int(self.index.pq.ksub) * int(self.index.d) if hasattr(self.index, "pq") else 0
        return nlist * self._quantizer.row_bytes + codebooks + nlist * _SCANNED_TOGETHER // 2 * code_size

    def prepare_search(self) -> None:
        """By default fast scan searches a batch list by list. Query by query, batches are as fast, and single queries
        need up to a quarter less CPU.
        """
        if isinstance(self.index, faiss.IndexIVFFastScan):
            self.index.implem = _QUERY_BY_QUERY

    def search_parameters(self, selector: faiss.IDSelector | None, breadth: float, deeper: float = 1.0) -> Any:
        kind = faiss.IVFPQSearchParameters if isinstance(self.index, faiss.IndexIVFPQ) else faiss.IVFSearchParameters
        nprobe = min(self.index.nlist, int(np.ceil(self.index.nprobe * breadth)))
        return kind(nprobe=nprobe, **selecting(selector))

    @property
    def widths(self) -> list[Parameters]:
        counts = {round(step) for step in steps(1, self.index.nlist, per_octave=8)}
        return [{"nprobe": float(count)} for count in sorted(counts)]

    @property
    def covering_breadth(self) -> float:
        return float(self.index.nlist / self.index.nprobe)

    def rows_scanned_meanwhile(self, dim: int) -> int:
        return (int(self.index.nprobe) + _FINDING_LISTS) * _SCANNED_PER_LIST // max(dim, _SHORT)

    def require_sound(self, ntotal: int, dim: int) -> None:
        super().require_sound(ntotal, dim)
        index = self.index
        self._quantizer.require_sound(index.nlist, index.d)
        lists = faiss.downcast_InvertedLists(index.invlists)
        if not isinstance(lists, faiss.ArrayInvertedLists | faiss.BlockInvertedLists):  # others name a file
            raise ValueError(f"its lists are {type(lists).__name__}: expected lists in this file")
        if lists.nlist != index.nlist:
            raise ValueError(f"it has {lists.nlist} lists, expected {index.nlist}")
        seen = np.zeros(ntotal, bool)
        for number in range(index.nlist):
            if size := lists.list_size(number):
                ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
                if ids.min() < 0 or ids.max() >= ntotal:
                    raise ValueError(f"list {number} names a row that it does not have")
                seen[ids] = True
        if not seen.all():
            raise ValueError(f"its lists have {int(seen.sum())} of {ntotal} rows")


def _limit(clustering: faiss.ClusteringParameters, points_per_centroid: int) -> None:
    clustering.max_points_per_centroid = points_per_centroid
    clustering.min_points_per_centroid = 1  # no warnings: recall is measured
    clustering.niter = _ITERATIONS
