"""Caches which rows pass a filter, so that a repeated filter is free."""

import threading
from collections.abc import Callable

from cachetools import LRUCache

from index.filters.filter import Filter
from index.segments.searchable import Eligible

_OVERHEAD = 500  # bytes of Python objects for each entry


class FilterCache:
    """The rows that pass the most recently used filters, with a bit for each row and filter. Thread-safe."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._entries: LRUCache[str, tuple[str, list[Eligible]]] = LRUCache(max_bytes, _size)
        self._lock = threading.Lock()

    def eligible(self, where: Filter, compute: Callable[[Filter], list[Eligible]]) -> list[Eligible]:
        """The live rows that pass, for each segment: cached, or what `compute` returns."""
        with self._lock:
            if entry := self._entries.get(where.key):
                return entry[1]
        # Outside the lock, so that others can search; two threads with the same filter compute the same result.
        entry = where.key, compute(where)
        with self._lock:
            if _size(entry) <= self._entries.maxsize:
                self._entries[where.key] = entry
        return entry[1]


def _size(entry: tuple[str, list[Eligible]]) -> int:
    key, eligible = entry
    return _OVERHEAD + len(key) + sum(each.nbytes for each in eligible)
