"""The indexes that are compared: ours, and those of others. Each finds row numbers, and has dials to turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np

from benchmarks.common.process import CORES
from index.segments.segmented_index import SegmentedIndex
from jobs.demo.clustered import DIM, Rows, Vectors

Dials = Mapping[str, float]

_LENGTHS = (10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_LISTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ADD_BLOCK = 50_000


class Contestant(Protocol):
    """An index in a race. `ramps` are settings to try, each a list that goes from fast to exact.

    `tuned` is what it chose itself; None: the race finds its best. `bytes` are those that searching keeps in memory.
    """

    name: str
    bytes: int
    ramps: Sequence[Sequence[Dials]]
    tuned: Dials | None = None

    def set(self, dials: Dials) -> None: ...

    def search(self, queries: Vectors, k: int, threads: int) -> Rows: ...


class Ours(Contestant):
    """The segments of a version that was just opened: `width` times as far as its build chose, or at the best dials of
    a `sweep`.
    """

    name = "Likeness"

    def __init__(self, segments: SegmentedIndex, memory: int, *, width: float = 1.0, sweep: bool = False) -> None:
        self.segments, self.bytes, self._width = segments, memory, width
        self._row_of = segments.ids(np.arange(segments.ntotal)).astype(np.int64)
        first = segments.parts[0]
        chosen: Dials = {**first.parameters, "width": width}
        self.ramps: Sequence[Sequence[Dials]] = []
        if not sweep:
            self.tuned = chosen
            return
        self.name = f"{self.name}, swept"
        depth = "k_factor" if "k_factor" in chosen else "rescore"
        wide = "nprobe" if first.nlist else "efSearch"
        widths = _LISTS[: np.searchsorted(_LISTS, first.nlist, "right")] if first.nlist else _LENGTHS
        self.ramps = [[{**chosen, depth: factor, wide: n} for n in widths] for factor in (4.0, 8.0, 16.0, 32.0)]

    def set(self, dials: Dials) -> None:
        self._width = dials["width"]
        for segment in self.segments.parts:
            segment.tune({name: value for name, value in dials.items() if name != "width"})

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        rows: Rows = self._row_of[self.segments.search(queries, k, width=self._width)[1]]
        return rows


class Usearch(Contestant):
    """usearch's graph over the vectors as they are, with its defaults."""

    name = "usearch f32"
    ramps = (tuple({"expansion_search": length} for length in _LENGTHS),)

    def __init__(self, vectors: Vectors, dims: int) -> None:
        from usearch.index import Index

        self._index: Any = Index(ndim=DIM, metric="ip", dtype="f32")
        for first in range(0, len(vectors), _ADD_BLOCK):
            block = vectors[first : first + _ADD_BLOCK]
            self._index.add(np.arange(first, first + len(block)), block, threads=CORES)
        self.bytes = int(self._index.memory_usage)

    def set(self, dials: Dials) -> None:
        self._index.expansion_search = int(dials["expansion_search"])

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        keys = self._index.search(queries, k, threads=threads).keys
        rows: Rows = keys.astype(np.int64).reshape(len(queries), k)
        return rows


class Hnsw(Contestant):
    """faiss's graph over 8-bit vectors."""

    name = "faiss HNSW32,SQ8"
    ramps = (tuple({"efSearch": length} for length in _LENGTHS),)

    def __init__(self, vectors: Vectors, dims: int) -> None:
        faiss.omp_set_num_threads(CORES)
        self._index = faiss.index_factory(DIM, self.name.split()[1], faiss.METRIC_INNER_PRODUCT)
        self._index.train(vectors)
        self._index.add(vectors)
        graph = self._index.hnsw
        self.bytes = len(vectors) * DIM + 4 * graph.neighbors.size() + 8 * graph.offsets.size()

    def set(self, dials: Dials) -> None:
        self._index.hnsw.efSearch = int(dials["efSearch"])

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        rows: Rows = self._index.search(queries, k)[1]
        return rows


class Svs(Contestant):
    """Intel's graph over `dims` principal dimensions, whose candidates are ranked by whole vectors.

    LeanVec has both in 8 bits, but refuses to run on processors that are not Intel's. There SVS's open kernels search
    the same dimensions in 16 bits, and faiss ranks by the vectors as they are.
    """

    maker = "SVS"
    ramps = tuple(tuple({"window": n, "candidates": times * n} for n in _LENGTHS) for times in (1, 2))

    def __init__(self, vectors: Vectors, dims: int) -> None:
        import svs

        has_leanvec = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
        self.name = f"{self.maker} {'LeanVec' if has_leanvec else 'Vamana f16'}"
        self._buffer = svs.SearchBufferConfig
        self._reduction: faiss.PCAMatrix | None = None
        self._vectors = vectors
        with tempfile.TemporaryDirectory() as home:
            if has_leanvec:
                svs.write_vecs(vectors, f"{home}/all.fvecs")
                whole = svs.VectorDataLoader(f"{home}/all.fvecs", svs.DataType.float32, dims=DIM)
                data = svs.LeanVecLoader(whole, dims, svs.LeanVecKind.lvq8, svs.LeanVecKind.lvq8)
            else:
                faiss.omp_set_num_threads(CORES)
                self._reduction = faiss.PCAMatrix(DIM, dims)
                self._reduction.train(vectors)
                data = self._reduction.apply(vectors).astype(np.float16)
            parameters = svs.VamanaBuildParameters(graph_max_degree=32, window_size=100, alpha=1.2)
            self._index = svs.Vamana.build(parameters, data, svs.DistanceType.L2, num_threads=CORES)
            parts = [Path(home) / part for part in ("config", "graph", "data")]
            self._index.save(*map(str, parts))
            self.bytes = sum(map(_size, parts)) + (0 if has_leanvec else vectors.nbytes)

    def set(self, dials: Dials) -> None:
        parameters = self._index.search_parameters
        self._candidates = int(dials["candidates"])
        parameters.buffer_config = self._buffer(int(dials["window"]), self._candidates)
        self._index.search_parameters = parameters

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        if self._index.num_threads != threads:
            self._index.num_threads = threads
        if self._reduction is None:
            rows: Rows = self._index.search(queries, k)[0].astype(np.int64)
            return rows
        faiss.omp_set_num_threads(threads)
        rows = self._index.search(self._reduction.apply(queries), self._candidates)[0].astype(np.int64)
        scores = np.empty(rows.shape, np.float32)
        pointers = (faiss.swig_ptr(array) for array in (scores, queries, self._vectors, rows))
        faiss.fvec_inner_products_by_idx(*pointers, DIM, *rows.shape)
        return np.take_along_axis(rows, np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)


class Scann(Contestant):
    """Google's lists over `dims` principal dimensions, whose candidates are ranked by whole vectors in 16 bits."""

    name = "ScaNN"
    ramps = tuple(tuple({"candidates": most, "leaves": n} for n in _LENGTHS) for most in (20, 40, 80, 160))

    def __init__(self, vectors: Vectors, dims: int) -> None:
        from scann.scann_ops.py.scann_builder import ReorderType
        from scann.scann_ops.py.scann_ops_pybind import builder

        plan = builder(vectors, 10, "dot_product").set_n_training_threads(CORES)
        plan = plan.pca(reduction_dim=dims, pca_significance_threshold=None, pca_truncation_threshold=None)
        plan = plan.tree(round(2 * len(vectors) ** 0.5), 1).score_ah(1, anisotropic_quantization_threshold=0.2)
        self._index = plan.reorder(100, quantize=ReorderType.BFLOAT16).build()
        with tempfile.TemporaryDirectory() as home:
            self._index.serialize(home)
            self.bytes = _size(Path(home))

    def set(self, dials: Dials) -> None:
        self._dials = (int(dials["candidates"]), int(dials["leaves"]))

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        if len(queries) == 1:
            found = self._index.search(queries[0], k, *self._dials)[0][np.newaxis]
        elif threads == 1:
            found = self._index.search_batched(queries, k, *self._dials)[0]
        else:
            found = self._index.search_batched_parallel(queries, k, *self._dials)[0]
        rows: Rows = found.astype(np.int64)
        return rows


RIVALS: dict[str, Callable[[Vectors, int], Contestant]] = {
    "faiss": Hnsw,
    "usearch": Usearch,
    "svs": Svs,
    "scann": Scann,
}
"""By the module that they need."""


def missing() -> list[str]:
    """Modules of rivals that are not installed."""
    return [module for module in RIVALS if find_spec(module) is None]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
