"""A cache bounded in bytes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_ENTRY_BYTES: Final = 512  # for the key, the value's header and the dict's slot


class LruCache(Generic[K, V]):
    """The most recently used values, up to `max_bytes`; 0 keeps none. Thread-safe.

    `hits` and `misses` count the calls of `get`.
    """

    def __init__(self, max_bytes: int) -> None:
        self.hits = 0
        self.misses = 0
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of `size` bytes; the least recently used values make room."""
        size += _ENTRY_BYTES
        with self._lock:
            self._bytes += size - self._entries.pop(key, (value, 0))[1]
            self._entries[key] = value, size
            while self._bytes > self._max_bytes:
                self._bytes -= self._entries.popitem(last=False)[1][1]
