"""The kinds of approximate index, a class each: how one is trained, filled, searched and checked, and what it takes.

Kinds wrap each other as in faiss: `PCAR48,IVF1000,PQ48x4fsr,Refine(SQ8)` is a `Refine` of a `Transform` of `Ivf`. A new
kind is a file here, an entry in the table, and the bounds of its search parameter in
`index/collection/records/bounds.py`.
"""

import re
from pathlib import Path

import faiss

from index.errors import FactoryError
from index.segments.kinds.hnsw import Hnsw
from index.segments.kinds.ivf import Ivf
from index.segments.kinds.kind import IndexKind, faiss_reason
from index.segments.kinds.wrappers import Refine, Transform

_KINDS: dict[type, type[IndexKind]] = {
    faiss.IndexRefine: Refine,
    faiss.IndexPreTransform: Transform,
    faiss.IndexIVF: Ivf,
    faiss.IndexHNSW: Hnsw,
}


def _kind_of(index: faiss.Index) -> IndexKind:
    kind = next((kind for base, kind in _KINDS.items() if isinstance(index, base)), IndexKind)
    return kind(index, [_kind_of(faiss.downcast_index(getattr(index, name))) for name in kind.wraps])


def new_index(factory: str, dim: int) -> IndexKind:
    """An empty index for inner products. FactoryError if faiss cannot make one from this factory string."""
    if re.search(r"(?<!\d)0+(?!\d)|HNSW1(?!\d)", factory):  # faiss would abort the process when vectors are added
        raise FactoryError(f"{factory!r} for {dim} dimensions: expected sizes above 0, and 2 or more for HNSW")
    if re.search(r"\d{8}", factory):  # faiss would use all memory, also for a few rows
        raise FactoryError(f"{factory[:200]!r} for {dim} dimensions: expected sizes below 10,000,000")
    try:
        kind = _kind_of(faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT))
    except (RuntimeError, MemoryError) as error:
        raise FactoryError(f"{factory!r} for {dim} dimensions: {faiss_reason(error)}") from error
    if isinstance(kind, Refine):
        ranked_by = kind.parts[1].index
        if not isinstance(ranked_by, faiss.IndexFlatCodes):  # faiss would abort the process here too
            raise FactoryError(f"{factory!r}: expected Flat, SQ or PQ in Refine(…), got {type(ranked_by).__name__}")
    if kind.index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise FactoryError(f"{factory!r} for {dim} dimensions: faiss supports it only for Euclidean distances")
    return kind


def map_index(path: Path) -> IndexKind:
    """An index mapped from its file, to search it."""
    kind = _kind_of(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC))
    kind.prepare_search()
    return kind


def copy_index(path: Path, *, keep_rows: bool) -> IndexKind:
    """The index in a file, in memory, to add vectors to: with its rows, or only trained."""
    kind = _kind_of(faiss.read_index(str(path)))
    if not keep_rows:
        kind.index.reset()
    return kind
