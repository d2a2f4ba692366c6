"""Caches which rows pass a filter, so that a repeated filter costs nothing."""

import threading
from collections.abc import Callable

from cachetools import LRUCache

from index.filters.filter import Filter
from index.segments.searchable import Eligible

_OVERHEAD = 500  # bytes of Python objects for each entry


class FilterCache:
    """The rows that pass, for the most recently used filters: a bit for each row and filter. Thread-safe."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._found: LRUCache[str, tuple[str, list[Eligible]]] = LRUCache(max_bytes, _size)
        self._lock = threading.Lock()

    def eligible(self, where: Filter, find: Callable[[Filter], list[Eligible]]) -> list[Eligible]:
        """The live rows that pass, for each segment, as `find` finds them."""
        with self._lock:
            if found := self._found.get(where.key):
                return found[1]
        # Outside the lock, so that others can search; two threads with the same filter compute the same result.
        found = where.key, find(where)
        with self._lock:
            if _size(found) <= self._found.maxsize:
                self._found[where.key] = found
        return found[1]


def _size(entry: tuple[str, list[Eligible]]) -> int:
    key, eligible = entry
    return _OVERHEAD + len(key) + sum(each.nbytes for each in eligible)
