"""The rows that a search may return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Eligible:
    """The rows of a segment that a search may return. `bits` has a bit for each row, lowest first; `count` of them are
    set. `tiles` are the tiles of these rows, if the segment has tiles.
    """

    bits: npt.NDArray[np.uint8]
    count: int
    tiles: Eligible | None = None

    @classmethod
    def of(cls, mask: npt.NDArray[np.bool_], tiles: int = 0) -> Eligible:
        """The rows of `mask`, each with `tiles` tiles."""
        bits, count = np.packbits(mask, bitorder="little"), int(np.count_nonzero(mask))
        return cls(bits, count, cls.of(np.repeat(mask, tiles)) if tiles else None)

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """A value for each row, then up to seven values of padding."""
        return np.unpackbits(self.bits, bitorder="little").view(bool)

    def at(self, positions: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether these rows are among them."""
        found: npt.NDArray[np.bool_] = (self.bits[positions >> 3] >> (positions & 7)) & 1 == 1
        return found

    @property
    def nbytes(self) -> int:
        return int(self.bits.nbytes) + (self.tiles.nbytes if self.tiles else 0)

    @property
    def selector(self) -> faiss.IDSelector:
        """For faiss. Keep a reference to it and to this object while it is used."""
        return faiss.IDSelectorBitmap(self.bits)
