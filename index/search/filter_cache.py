"""Caches which rows pass a filter, so that a repeated filter costs nothing."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Generic

import pyarrow as pa

from index.filters.filter import Filter
from index.segments.searchable import S, Searchable

_OVERHEAD = 500  # bytes of Python objects for each entry


class FilterCache(Generic[S]):
    """The rows of some segments that pass a filter, for the most recently used filters. Thread-safe.

    `schema` has the columns that can be filtered; `max_bytes` limits the cache, which takes a bit per row and filter.
    """

    def __init__(self, segments: Searchable[S], schema: pa.Schema, max_bytes: int = 64 << 20) -> None:
        self._segments = segments
        self._schema = schema
        self._max_bytes = max_bytes
        self._bytes = 0
        self._found: OrderedDict[str, Sequence[S]] = OrderedDict()
        self._lock = threading.Lock()

    def eligible(self, where: Mapping[str, Any]) -> Sequence[S]:
        """The live rows that pass, for each segment or shard. FilterError says what is wrong with the expression."""
        wanted = Filter.parse(where, self._schema)
        with self._lock:
            if wanted.key in self._found:
                self._found.move_to_end(wanted.key)
                return self._found[wanted.key]
        # Outside the lock, so that others can search; two threads with the same filter compute the same result.
        eligible = self._segments.eligible(wanted)
        with self._lock:
            if wanted.key not in self._found:
                self._found[wanted.key] = eligible
                self._bytes += _size(wanted.key, eligible)
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._found.popitem(last=False))
        return eligible


def _size(key: str, eligible: Sequence[S]) -> int:
    return _OVERHEAD + len(key) + sum(each.nbytes for each in eligible)
