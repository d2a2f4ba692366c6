"""Caches which rows pass a filter, so that a repeated filter costs nothing."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Generic

import pyarrow as pa
from cachetools import LRUCache

from index.collection.rows import REJECT
from index.filters.filter import Filter
from index.segments.searchable import S, Searchable

_OVERHEAD = 500  # bytes of Python objects for each entry


class FilterCache(Generic[S]):
    """The rows that pass, for the most recently used filters: a bit for each row and filter. Thread-safe."""

    def __init__(self, segments: Searchable[S], max_bytes: int = 64 << 20) -> None:
        self._segments = segments
        self._found: LRUCache[str, tuple[str, Sequence[S]]] = LRUCache(max_bytes, _size)
        self._lock = threading.Lock()
        # What says why a row was rejected is null in every embedded row.
        self.schema = pa.schema([field for field in segments.schema if field.name not in REJECT])
        """The columns that can be filtered."""

    def eligible(self, where: Mapping[str, Any]) -> Sequence[S]:
        """The live rows that pass, for each segment or shard. FilterError says what is wrong with the expression."""
        wanted = Filter.parse(where, self.schema)
        with self._lock:
            if found := self._found.get(wanted.key):
                return found[1]
        # Outside the lock, so that others can search; two threads with the same filter compute the same result.
        found = wanted.key, self._segments.eligible(wanted)
        with self._lock:
            if _size(found) <= self._found.maxsize:
                self._found[wanted.key] = found
        return found[1]


def _size(entry: tuple[str, Sequence[Any]]) -> int:
    key, eligible = entry
    return _OVERHEAD + len(key) + sum(int(each.nbytes) for each in eligible)
