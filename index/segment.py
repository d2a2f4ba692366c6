"""A flat segment: exact vectors in a faiss file and their rows in an Arrow file, aligned by position."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.errors import CollectionError
from index.rows import EMBEDDING

VECTORS = "vectors.faiss"
ROWS = "rows.arrow"
FLAT = "Flat"

_NORM_TOLERANCE = 1e-3


class Segment:
    """An index and its rows, memory-mapped: opening costs no copy, and processes share the pages."""

    def __init__(self, index: faiss.Index, batches: list[pa.RecordBatch]) -> None:
        self._index = index
        self._batches = batches
        self._starts = np.cumsum([0, *(len(batch) for batch in batches)])

    @classmethod
    def open(cls, folder: Path) -> Segment:
        """Map the files that `write_segment` made. CollectionError when they do not agree."""
        # IO_FLAG_MMAP would copy a flat index into memory without a word; this flag maps it.
        index = faiss.read_index(str(folder / VECTORS), faiss.IO_FLAG_MMAP_IFC)
        reader = pa.ipc.open_file(pa.memory_map(str(folder / ROWS)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        rows = sum(len(batch) for batch in batches)
        if index.ntotal != rows:
            raise CollectionError(f"{folder} has {index.ntotal} vectors but {rows} rows: build the index again")
        return cls(index, batches)

    @property
    def ntotal(self) -> int:
        """Number of vectors."""
        return int(self._index.ntotal)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self._index.d)

    def search(self, queries: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Cosine and position of the k nearest, each `(n, k)`, best first. A position of -1 is no match.

        `queries` is `(n, dim)` float32, contiguous, unit norm.
        """
        scores, positions = self._index.search(queries, k)
        return scores, positions

    def vector(self, position: int) -> npt.NDArray[np.float32]:
        """The vector at a position, `(dim,)` float32."""
        return np.asarray(self._index.reconstruct(position), np.float32)

    def rows(self, positions: npt.NDArray[np.int64], columns: list[str] | None = None) -> list[dict[str, Any]]:
        """The rows at these positions, in their order. None: every column but the embedding."""
        found: list[dict[str, Any]] = [{}] * len(positions)
        # Batch by batch: taking from a table of many batches would first join them all.
        batch_of = np.searchsorted(self._starts, positions, side="right") - 1
        for number in np.unique(batch_of):
            slots = np.flatnonzero(batch_of == number)
            batch = self._batches[number].select(columns) if columns else self._batches[number]
            taken = batch.take(pa.array(positions[slots] - self._starts[number]))
            for slot, row in zip(slots, taken.to_pylist(), strict=True):
                found[slot] = row
        return found

    def find(self, image_id: str) -> dict[str, Any] | None:
        """The row of an id, or None."""
        for batch in self._batches:
            position = batch.column("image_id").index(image_id).as_py()
            if position >= 0:
                row: dict[str, Any] = batch.slice(position, 1).to_pylist()[0]
                return row
        return None

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a row."""
        return list(self._batches[0].schema.names) if self._batches else []


def write_segment(folder: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, capacity: int) -> int:
    """Write embedded rows as a segment, in their order, and return how many there were.

    At most `capacity` rows. The vectors are copied once, straight into the index. CollectionError names the
    id of a vector that is not finite or not of unit norm (to one part in a thousand).
    """
    dim = schema.field(EMBEDDING).type.list_size
    stored = schema.remove(schema.get_field_index(EMBEDDING)).remove_metadata()
    index = faiss.IndexFlat(dim, faiss.METRIC_INNER_PRODUCT)
    # `add` would double its memory each time that it is full; room for all is taken once instead.
    index.codes.resize(capacity * dim * 4)
    room = faiss.rev_swig_ptr(index.get_xb(), capacity * dim).reshape(capacity, dim)
    total = 0
    with pa.ipc.new_file(str(folder / ROWS), stored) as writer:
        for batch in batches:
            room[total : total + len(batch)] = _unit_vectors(batch, dim)
            writer.write_batch(batch.select(stored.names))
            total += len(batch)
    index.codes.resize(total * dim * 4)
    index.ntotal = total
    faiss.write_index(index, str(folder / VECTORS))
    return total


def _unit_vectors(batch: pa.RecordBatch, dim: int) -> npt.NDArray[np.float32]:
    """The embeddings of a batch, `(n, dim)` float32, with the last rounding of their norms undone."""
    flat = pc.list_flatten(batch.column(EMBEDDING)).to_numpy(zero_copy_only=False)
    vectors: npt.NDArray[np.float32] = flat.astype(np.float32, copy=False).reshape(len(batch), dim)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.abs(norms[:, 0] - 1) <= _NORM_TOLERANCE))  # NaN compares false: found too
    if len(wrong):
        first = int(wrong[0])
        raise CollectionError(
            f"the embedding of {batch.column('image_id')[first].as_py()!r} has norm {norms[first, 0]:.4g}: "
            f"expected 1 (within {_NORM_TOLERANCE}); embed it again with a model that returns unit vectors"
        )
    unit: npt.NDArray[np.float32] = vectors / norms
    return unit
