"""What a Searcher needs from a version's segments, in this process or others, and the rows that it may return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import faiss
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.arrays import Ids, Parts, Positions, Scores, Vectors
from index.filters.facets import Counts
from index.filters.filter import Filter


@dataclass(frozen=True, eq=False)
class Unlike:
    """A condition on rows: the cosine with each of the `vectors`, `(n, dim)`, is below `cosine`."""

    vectors: Vectors
    cosine: float


class Searchable(Protocol):
    """The segments of a version as one: `SegmentedIndex`, or `ShardedIndex` in other processes. Thread-safe.

    Only rows that pass the filter `where`, and are `unlike` some vectors, are counted or searched.
    """

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def live_count(self) -> int: ...
    def count_values(self, columns: Sequence[str], where: Filter | None = None) -> Counts: ...
    def search_with_ids(
        self,
        queries: Vectors,
        k: int,
        where: Filter | None = None,
        *,
        width: float = 1.0,
        unlike: Unlike | None = None,
    ) -> tuple[Scores, Positions, Parts, Ids]: ...
    def positions(self, ids: pa.Array[Any]) -> Positions: ...
    def vectors(self, positions: Positions) -> Vectors: ...
    def ids(self, positions: Positions) -> Ids: ...
    def rows(self, positions: Positions, columns: Sequence[str]) -> list[dict[str, Any]]: ...


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
        return np.unpackbits(self.bits, bitorder="little").astype(bool)

    @property
    def nbytes(self) -> int:
        return int(self.bits.nbytes) + (self.tiles.nbytes if self.tiles else 0)

    @property
    def selector(self) -> faiss.IDSelector:
        """For faiss. Keep a reference to it and to this object while it is used."""
        return faiss.IDSelectorBitmap(self.bits)
