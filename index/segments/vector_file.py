"""The file of a segment's exact vectors, a flat faiss index: written as a stream, read in blocks, mapped by faiss."""

import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np

from index.arrays import Positions, Vectors

BLOCK_ROWS = 16_384  # at a time: looking up as many takes half as long for each as looking up 1,024
_RUN = 8  # consecutive vectors that a sample reads at once
_HEADER = 45  # bytes before the vectors


class VectorFile:
    """Reads vectors from a file, which may be unlinked meanwhile. OSError if it ends too early. Thread-safe.

    The file is not mapped: a pass over all vectors must not fill the memory, nor a sample load the pages around it.
    """

    def __init__(self, path: Path, ntotal: int, dim: int) -> None:
        self._path = path
        self._ntotal = ntotal
        self._dim = dim
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def blocks(self, rows: int = BLOCK_ROWS, first: int = 0) -> Iterator[Vectors]:
        """Vectors from the `first`, `(rows, dim)` float32. Blocks share no memory, so a caller may keep them."""
        for start in range(first, self._ntotal, rows):
            block = np.empty((min(rows, self._ntotal - start), self._dim), np.float32)
            self._read(block, start)
            yield block

    def sample(self, size: int) -> Vectors:
        """At most `size` of the vectors, `(n, dim)` float32, in their order: short runs that start at random."""
        runs = np.random.default_rng(0).choice(-(-self._ntotal // _RUN), -(-size // _RUN), replace=False)
        sample = np.empty((len(runs) * _RUN, self._dim), np.float32)
        end = 0
        for start in np.sort(runs * _RUN).tolist():
            count = min(_RUN, self._ntotal - start)  # the file's last run may be shorter
            self._read(sample[end : end + count], start)
            end += count
        return sample[: min(size, end)]

    def request(self, positions: Positions) -> None:
        """Have the system read the vectors at these positions into its cache, all at once. Does not wait for them."""
        size = 4 * self._dim
        if hasattr(os, "posix_fadvise"):
            for offset in (_HEADER + np.unique(positions) * size).tolist():
                os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def _read(self, vectors: Vectors, start: int) -> None:
        """Fill `vectors`, `(n, dim)`, from position `start`."""
        left = vectors.data.cast("B")
        offset = _HEADER + start * 4 * self._dim
        while left:
            count = os.preadv(self._descriptor, [left], offset)
            if not count:
                raise OSError(f"{self._path} ends at byte {offset:,}, {len(left):,} before the vectors do")
            left = left[count:]
            offset += count


def require_flat(path: Path, ntotal: int, dim: int) -> None:
    """ValueError unless a file has exactly so many vectors. faiss would trust the numbers in it."""
    size = _HEADER + 4 * dim * ntotal
    with path.open("rb") as file:
        if file.read(_HEADER) != flat_header(dim, ntotal) or os.fstat(file.fileno()).st_size != size:
            raise ValueError(f"it does not have {ntotal:,} vectors of {dim} dimensions, in {size:,} bytes")


def flat_header(dim: int, ntotal: int) -> bytes:
    """The header of a flat index's file: the third field counts vectors, the last floats (write_index_header)."""
    header = bytearray(faiss.serialize_index(faiss.IndexFlat(dim, faiss.METRIC_INNER_PRODUCT)).tobytes())
    header[8:16] = ntotal.to_bytes(8, "little")
    header[-8:] = (ntotal * dim).to_bytes(8, "little")
    return bytes(header)
