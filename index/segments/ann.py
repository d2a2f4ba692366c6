"""Approximate faiss indexes: trained on a sample, filled block by block, searched with a selector."""

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from index.arrays import Vectors
from index.errors import DISK_FULL, FactoryError

_ROWS_PER_LIST = 32  # training rows; more cost time and gain next to nothing
_ROWS_PER_CODE = 128
_ITERATIONS = 10
_FLOAT, _ID = 4, 8  # bytes
_GRAPH_ROW = 16  # bytes
_MIN_SAMPLE = 20_000
_PCA_SAMPLE = 5_000
_QUERY_BY_QUERY = 11  # faiss's number for the kernel of fast scan that keeps candidates in a reservoir


def new_index(factory: str, dim: int) -> faiss.Index:
    """An empty index for inner products. FactoryError if faiss cannot make one from this factory string."""
    if re.search(r"(?<!\d)0+(?!\d)|HNSW1(?!\d)", factory):  # faiss would abort the process when vectors are added
        raise FactoryError(f"{factory!r} for {dim} dimensions: expected sizes above 0, and 2 or more for HNSW")
    if re.search(r"\d{8}", factory):  # faiss would use all memory, also for a few rows
        raise FactoryError(f"{factory[:200]!r} for {dim} dimensions: expected sizes below 10,000,000")
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, MemoryError) as error:
        raise FactoryError(f"{factory!r} for {dim} dimensions: {faiss_reason(error)}") from error
    outermost = faiss.downcast_index(index)
    if isinstance(outermost, faiss.IndexRefine):
        ranked_by = faiss.downcast_index(outermost.refine_index)
        if not isinstance(ranked_by, faiss.IndexFlatCodes):  # faiss would abort the process here too
            raise FactoryError(f"{factory!r}: expected Flat, SQ or PQ in Refine(…), got {type(ranked_by).__name__}")
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise FactoryError(f"{factory!r} for {dim} dimensions: faiss supports it only for Euclidean distances")
    return index


def read_index(path: Path) -> faiss.Index:
    """An index mapped from its file.

    By default fast scan searches a batch list by list. Query by query, batches are as fast, and single queries need up
    to a quarter less CPU.
    """
    index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    ivf = faiss.try_extract_index_ivf(index)
    if ivf and isinstance(fast_scan := faiss.downcast_index(ivf), faiss.IndexIVFFastScan):
        fast_scan.implem = _QUERY_BY_QUERY
    return index


def copy_of(path: Path, *, keep_rows: bool) -> faiss.Index:
    """The index in a file, in memory, to add vectors to: with its rows, or only trained."""
    index = faiss.read_index(str(path))
    if not keep_rows:
        index.reset()
    return index


def write(index: faiss.Index, path: Path) -> None:
    """OSError, with the system's reason, if that fails."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:  # faiss raises nothing else, with the system's error in its text
        code = next((code for code in DISK_FULL if os.strerror(code) in str(error)), errno.EIO)
        raise OSError(code, os.strerror(code), str(path)) from error


def training_rows(index: faiss.Index) -> int:
    """The number of vectors to train on, which grows with the number of inverted lists."""
    ivf = faiss.try_extract_index_ivf(index)
    return max(_MIN_SAMPLE, _ROWS_PER_LIST * ivf.nlist if ivf else 0)


def row_bytes(index: faiss.Index) -> int:
    """Bytes of memory for each vector: its codes, id and links in a graph. Lists and codebooks come on top."""
    total = 0
    for part in _parts(index):
        if isinstance(part, faiss.IndexHNSW):
            # The links of the lowest level, then offsets, levels, and links of higher levels, which few rows have.
            total += 4 * int(part.hnsw.nb_neighbors(0)) + _GRAPH_ROW
        elif not isinstance(part, faiss.IndexRefine | faiss.IndexPreTransform):
            code_size = getattr(part, "code_size", _FLOAT * part.d)  # an index without codes is refused later
            total += int(code_size) + (_ID if isinstance(part, faiss.IndexIVF) else 0)
    return total


def train(index: faiss.Index, sample: Vectors) -> None:
    """Train on `(n, dim)` float32 unit vectors. FactoryError if they are too few for this index."""
    ivf = faiss.try_extract_index_ivf(index)
    if ivf:
        ivf = faiss.downcast_index(ivf)
        _limit(ivf.cp, _ROWS_PER_LIST)
        if hasattr(ivf, "pq"):
            _limit(ivf.pq.cp, _ROWS_PER_CODE)
    try:
        inner = faiss.downcast_index(index)
        if isinstance(inner, faiss.IndexRefine):
            inner = faiss.downcast_index(inner.base_index)
        if isinstance(inner, faiss.IndexPreTransform):
            transform = faiss.downcast_VectorTransform(inner.chain.at(0))
            if isinstance(transform, faiss.PCAMatrix):
                _set_components(transform, _thinned(sample))
        index.train(sample)
    except (RuntimeError, MemoryError) as error:
        raise FactoryError(
            f"the index cannot be trained on {len(sample):,} vectors: {faiss_reason(error)}; name one with fewer "
            "lists or codes with --factory"
        ) from error


def fill(index: faiss.Index, blocks: Iterable[Vectors]) -> None:
    """Add vectors block by block. FactoryError if the index does not support that, or skipping rows, as filters do."""
    try:
        for block in blocks:
            first = index.ntotal == 0
            index.add(block)
            if first:
                _check_selects(index, block[:1])
    except (RuntimeError, MemoryError) as error:
        raise FactoryError(
            f"an index of this kind cannot be filled and searched with a selection of its rows: {faiss_reason(error)}; "
            "name another with --factory"
        ) from error


def principal_dims(sample: Vectors, share: float) -> int:
    """How many principal dimensions, largest first, have `share` of the variance of `(n, dim)` vectors."""
    variances = np.linalg.eigvalsh(np.cov(_thinned(sample), rowvar=False).reshape(sample.shape[1], -1))[::-1]
    return int(np.searchsorted(np.cumsum(variances), share * variances.sum()) + 1)


def parameters(index: faiss.Index) -> dict[str, float]:
    """Those of the search parameters nprobe, efSearch and k_factor that the index has, by faiss's names."""
    # Rounded, because faiss's k_factor has single precision.
    return {name: round(float(getattr(owner, name)), 4) for name, owner in _settable(index)}


def set_parameters(index: faiss.Index, values: Mapping[str, float]) -> None:
    """Set the parameters that `parameters` returned; others are left unchanged."""
    for name, owner in _settable(index):
        if name in values:
            setattr(owner, name, values[name] if name == "k_factor" else int(values[name]))


def search_parameters(
    index: faiss.Index, selector: faiss.IDSelector | None, breadth: float, deeper: float = 1.0
) -> faiss.SearchParameters:
    """faiss's parameters for a search among the selected rows, `breadth` times as wide as the index is set to, with
    `deeper` times as many candidates.
    """
    index = faiss.downcast_index(index)
    common: dict[str, Any] = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexRefine):
        base = search_parameters(index.base_index, selector, breadth)
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor * deeper, base_index_params=base)
    if isinstance(index, faiss.IndexPreTransform):
        return faiss.SearchParametersPreTransform(index_params=search_parameters(index.index, selector, breadth))
    if isinstance(index, faiss.IndexIVF):
        kind = faiss.IVFPQSearchParameters if isinstance(index, faiss.IndexIVFPQ) else faiss.IVFSearchParameters
        return kind(nprobe=min(index.nlist, int(np.ceil(index.nprobe * breadth))), **common)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=int(np.ceil(index.hnsw.efSearch * breadth)), **common)
    return faiss.SearchParameters(**common)


def faiss_reason(error: Exception) -> str:
    """faiss's message without the source location."""
    text = " ".join(str(error).split())
    return re.sub(r"^.* at \S+:\d+: (Error: )?('.*' failed: (?=\S))?", "", text) or text


def _check_selects(index: faiss.Index, query: Vectors) -> None:
    """RuntimeError if a search returns the first row although it is not selected."""
    others = np.ones(index.ntotal, bool)
    others[0] = False
    selector = faiss.IDSelectorBitmap(np.packbits(others, bitorder="little"))
    _, found = index.search(query, 1, params=search_parameters(index, selector, 1.0))
    if found[0, 0] == 0:
        raise RuntimeError("it returns rows that are not selected")


def _limit(clustering: faiss.ClusteringParameters, points_per_centroid: int) -> None:
    clustering.max_points_per_centroid = points_per_centroid
    clustering.min_points_per_centroid = 1  # no warnings: recall is measured
    clustering.niter = _ITERATIONS


def _thinned(sample: Vectors) -> Vectors:
    """Enough vectors for a covariance, evenly spaced, because the sample has the order of the rows."""
    return sample[:: max(1, len(sample) // _PCA_SAMPLE)]


def _set_components(transform: faiss.PCAMatrix, sample: Vectors) -> None:
    """Train on uncentred vectors: faiss would centre them, which changes the ranking by inner product."""
    variances, components = np.linalg.eigh(sample.T @ sample / len(sample))
    faiss.copy_array_to_vector(np.ascontiguousarray(components[:, ::-1].T).ravel(), transform.PCAMat)
    faiss.copy_array_to_vector(variances[::-1].copy(), transform.eigenvalues)
    faiss.copy_array_to_vector(np.zeros(sample.shape[1], np.float32), transform.mean)
    transform.prepare_Ab()
    transform.is_trained = True


def _settable(index: faiss.Index) -> Iterator[tuple[str, Any]]:
    """The names of the search parameters of an index and of the indexes that it wraps, each with its object."""
    for part in _parts(index):
        if isinstance(part, faiss.IndexRefine):
            yield "k_factor", part
        elif isinstance(part, faiss.IndexIVF):
            yield "nprobe", part
        elif isinstance(part, faiss.IndexHNSW):
            yield "efSearch", part.hnsw


def _parts(index: faiss.Index) -> Iterator[Any]:
    """An index and those that it wraps: views, which do not keep `index` alive."""
    part = faiss.downcast_index(index)
    yield part
    for name in ("base_index", "refine_index", "index", "storage"):
        if (wrapped := getattr(part, name, None)) is not None:
            yield from _parts(wrapped)
