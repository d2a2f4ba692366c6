"""What a Searcher needs from the segments of a version, in this process or others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from index.arrays import Ids, Positions, Scores, Vectors
from index.filters.filter import Filter


class Selection(Protocol):
    """Rows that pass a filter: their number, and the bytes that caching them takes."""

    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


S = TypeVar("S", bound=Selection)


class Searchable(Protocol[S]):
    """The segments of a version as one: `SegmentedIndex`, or `ShardedIndex` in other processes. Thread-safe."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def live_count(self) -> int: ...
    def count(self, eligible: Sequence[S] | None) -> int: ...
    def eligible(self, wanted: Filter) -> Sequence[S]: ...
    def search_with_ids(
        self, queries: Vectors, k: int, eligible: Sequence[S] | None = None
    ) -> tuple[Scores, Positions, Ids]: ...
    def positions(self, ids: pa.Array[Any]) -> Positions: ...
    def vectors(self, positions: Positions) -> Vectors: ...
    def ids(self, positions: Positions) -> Ids: ...
    def rows(self, positions: Positions, columns: Sequence[str]) -> list[dict[str, Any]]: ...
