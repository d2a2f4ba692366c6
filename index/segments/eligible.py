"""The rows of a segment that a search may return."""

from __future__ import annotations

from dataclasses import dataclass

import faiss
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Eligible:
    """The rows of a segment that a search may return. `bits` has a bit for each row, lowest first; `count` are set."""

    bits: npt.NDArray[np.uint8]
    count: int

    @classmethod
    def of(cls, mask: npt.NDArray[np.bool_]) -> Eligible:
        """From a mask with a value for each row."""
        return cls(np.packbits(mask, bitorder="little"), int(np.count_nonzero(mask)))

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """A value for each row, padded by up to seven more."""
        return np.unpackbits(self.bits, bitorder="little").astype(bool)

    @property
    def nbytes(self) -> int:
        return int(self.bits.nbytes)

    @property
    def selector(self) -> faiss.IDSelector:
        """For faiss; it has to be kept as long as it is used, and the bits with it."""
        return faiss.IDSelectorBitmap(self.bits)
