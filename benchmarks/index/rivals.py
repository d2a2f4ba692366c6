"""The compared indexes: ours and those of others. Each returns row numbers, and has search parameters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np

from benchmarks.common.clustered import DIM, Rows, Vectors
from benchmarks.common.process import CORES
from index.segments.segmented_index import SegmentedIndex

Parameters = Mapping[str, float]

_LENGTHS = (10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_LISTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ADD_BLOCK = 50_000


class Contestant(Protocol):
    """An index in a race. `ramps` are lists of parameters to try, each from fast to exact.

    `tuned` is the index's own choice; with None the race finds the best. `bytes` is the memory that searching needs.
    """

    name: str
    bytes: int
    ramps: Sequence[Sequence[Parameters]]
    tuned: Parameters | None = None

    def set(self, parameters: Parameters) -> None: ...

    def search(self, queries: Vectors, k: int, threads: int) -> Rows: ...


class Ours(Contestant):
    """The segments of an index version, searched `width` times as far as its build chose, or with the best parameters
    of a `sweep`.
    """

    name = "Likeness"

    def __init__(self, segments: SegmentedIndex, memory: int, *, width: float = 1.0, sweep: bool = False) -> None:
        self.segments, self.bytes, self._width = segments, memory, width
        self._row_of = segments.ids(np.arange(segments.ntotal)).astype(np.int64)
        first = segments.parts[0]
        chosen: Parameters = {**first.parameters, "width": width}
        self.ramps: Sequence[Sequence[Parameters]] = []
        if not sweep:
            self.tuned = chosen
            return
        self.name = f"{self.name}, swept"
        depth = "k_factor" if "k_factor" in chosen else "rescore"
        [(wide, most)] = first.kind.widths[-1].items()
        widths = _LISTS[: np.searchsorted(_LISTS, most, "right")] if wide == "nprobe" else _LENGTHS
        self.ramps = [[{**chosen, depth: factor, wide: n} for n in widths] for factor in (4.0, 8.0, 16.0, 32.0)]

    def set(self, parameters: Parameters) -> None:
        self._width = parameters["width"]
        for segment in self.segments.parts:
            segment.tune({name: value for name, value in parameters.items() if name != "width"})

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        rows: Rows = self._row_of[self.segments.search(queries, k, width=self._width).positions]
        return rows


class Usearch(Contestant):
    """usearch's graph over the unchanged vectors, with its defaults."""

    name = "usearch f32"
    ramps = (tuple({"expansion_search": length} for length in _LENGTHS),)

    def __init__(self, vectors: Vectors, dims: int) -> None:
        from usearch.index import Index

        self._index: Any = Index(ndim=DIM, metric="ip", dtype="f32")
        for first in range(0, len(vectors), _ADD_BLOCK):
            block = vectors[first : first + _ADD_BLOCK]
            self._index.add(np.arange(first, first + len(block)), block, threads=CORES)
        self.bytes = int(self._index.memory_usage)

    def set(self, parameters: Parameters) -> None:
        self._index.expansion_search = int(parameters["expansion_search"])

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

    def set(self, parameters: Parameters) -> None:
        self._index.hnsw.efSearch = int(parameters["efSearch"])

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        faiss.omp_set_num_threads(threads)
        rows: Rows = self._index.search(queries, k)[1]
        return rows


class Svs(Contestant):
    """Intel's graph over `dims` principal dimensions, with candidates ranked by complete vectors.

    LeanVec stores both in 8 bits, but runs only on Intel processors. On others, SVS's open kernels search the same
    dimensions in 16 bits, and faiss ranks by the unchanged vectors.
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
            graph = svs.VamanaBuildParameters(graph_max_degree=32, window_size=100, alpha=1.2)
            self._index = svs.Vamana.build(graph, data, svs.DistanceType.L2, num_threads=CORES)
            parts = [Path(home) / part for part in ("config", "graph", "data")]
            self._index.save(*map(str, parts))
            self.bytes = sum(map(_size, parts)) + (0 if has_leanvec else vectors.nbytes)

    def set(self, parameters: Parameters) -> None:
        changed = self._index.search_parameters
        self._candidates = int(parameters["candidates"])
        changed.buffer_config = self._buffer(int(parameters["window"]), self._candidates)
        self._index.search_parameters = changed

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
    """Google's lists over `dims` principal dimensions, with candidates ranked by complete vectors in 16 bits."""

    name = "ScaNN"
    ramps = tuple(tuple({"candidates": count, "leaves": n} for n in _LENGTHS) for count in (20, 40, 80, 160))

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

    def set(self, parameters: Parameters) -> None:
        self._parameters = (int(parameters["candidates"]), int(parameters["leaves"]))

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        if len(queries) == 1:
            found = self._index.search(queries[0], k, *self._parameters)[0][np.newaxis]
        elif threads == 1:
            found = self._index.search_batched(queries, k, *self._parameters)[0]
        else:
            found = self._index.search_batched_parallel(queries, k, *self._parameters)[0]
        rows: Rows = found.astype(np.int64)
        return rows


RIVALS: dict[str, Callable[[Vectors, int], Contestant]] = {
    "faiss": Hnsw,
    "usearch": Usearch,
    "svs": Svs,
    "scann": Scann,
}
"""By the module they need."""


def missing() -> list[str]:
    """Modules of rivals that are not installed."""
    return [module for module in RIVALS if find_spec(module) is None]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
