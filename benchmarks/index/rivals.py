"""The indexes that are compared: ours, and those of others. Each finds row numbers, and has dials to turn."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import faiss
import numpy as np
from usearch.index import Index

from benchmarks.index.recall import exact
from index.segments.segmented_index import SegmentedIndex
from jobs.demo.clustered import DIM, Rows, Vectors

Dials = Mapping[str, float]

_LENGTHS = (10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_ADD_BLOCK = 50_000


class Contestant(Protocol):
    """An index in a race. `ramps` are settings to try, each a list that goes from fast to exact.

    `tuned` is what it chose itself; None: the race finds its best. `most_queries` bounds a batch. `bytes` are those
    that searching keeps in memory.
    """

    name: str
    bytes: int
    ramps: Sequence[Sequence[Dials]]
    tuned: Dials | None = None
    most_queries: int = 10_000

    def set(self, dials: Dials) -> None: ...

    def search(self, queries: Vectors, k: int, threads: int) -> Rows: ...


class Ours(Contestant):
    """The segments of a version."""

    name = "Likeness"

    def __init__(self, segments: SegmentedIndex, memory: int) -> None:
        self._segments, first = segments, segments.parts[0]
        self.bytes = memory
        self.tuned = first.parameters
        self._row_of = segments.ids(np.arange(segments.ntotal)).astype(np.int64)
        lists = [round(2 ** (step / 2)) for step in range(2, 20)]
        nprobe = [{"nprobe": float(count)} for count in lists if count <= first.nlist]
        depths: list[Dials] = [{"rescore": factor} for factor in (4.0, 8.0, 16.0, 32.0)]
        if "k_factor" in first.parameters:
            depths = [{"k_factor": factor, "rescore": 2.0} for factor in (2.0, 4.0, 8.0, 16.0)]
        self.ramps = [[{**depth, **width} for width in nprobe] for depth in depths]

    def set(self, dials: Dials) -> None:
        for segment in self._segments.parts:
            segment.tune(dials)

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        rows: Rows = self._row_of[self._segments.search(queries, k)[1]]
        return rows


class Hnsw(Contestant):
    """faiss's graph over 8-bit vectors."""

    name = "faiss HNSW32,SQ8"
    ramps = (tuple({"efSearch": length} for length in _LENGTHS),)

    def __init__(self, vectors: Vectors, threads: int) -> None:
        faiss.omp_set_num_threads(threads)
        started = time.perf_counter()
        self._index = faiss.index_factory(DIM, "HNSW32,SQ8", faiss.METRIC_INNER_PRODUCT)
        self._index.train(vectors)
        self._index.add(vectors)
        self.build_seconds = time.perf_counter() - started
        graph = self._index.hnsw
        self.bytes = len(vectors) * DIM + 4 * graph.neighbors.size() + 8 * graph.offsets.size()

    def set(self, dials: Dials) -> None:
        self._index.hnsw.efSearch = int(dials["efSearch"])

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        rows: Rows = self._index.search(queries, k)[1]
        return rows


class Usearch(Contestant):
    """usearch's graph over the vectors as they are, with its defaults."""

    name = "usearch f32"
    ramps = (tuple({"expansion_search": length} for length in _LENGTHS),)

    def __init__(self, vectors: Vectors, threads: int) -> None:
        started = time.perf_counter()
        self._index = Index(ndim=DIM, metric="ip", dtype="f32")
        for first in range(0, len(vectors), _ADD_BLOCK):
            block = vectors[first : first + _ADD_BLOCK]
            self._index.add(np.arange(first, first + len(block)), block, threads=threads)
        self.build_seconds = time.perf_counter() - started
        self.bytes = int(self._index.memory_usage)

    def set(self, dials: Dials) -> None:
        # Its getter and setter stand apart, which mypy takes for a property without one.
        self._index.expansion_search = int(dials["expansion_search"])  # type: ignore[misc]

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        keys = self._index.search(queries, k, threads=threads).keys
        return keys.astype(np.int64).reshape(len(queries), k)


class Flat(Contestant):
    """Exact search, over the vectors in memory."""

    name = "faiss Flat"
    ramps = (({},),)  # nothing to turn
    most_queries = 128  # slow, and no faster with more

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors
        self.bytes = vectors.nbytes

    def set(self, dials: Dials) -> None:
        pass

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        return exact(queries, self._vectors, k)[1]
