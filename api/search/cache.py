"""Caches the vectors of recent pictures and texts."""

import hashlib
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

ENTRY_BYTES: Final = 512
"""What an entry of a cache takes besides its data: the key, the value's header, the slot of the dict."""


@dataclass(frozen=True)
class ContentKey:
    """The content and the model of a vector. A picture and a text never share a key."""

    kind: str
    digest: bytes
    fingerprint: str

    @classmethod
    def of(cls, content: bytes | str, fingerprint: str) -> "ContentKey":
        """The key of a picture's file, or of a text, under the model of this fingerprint."""
        if isinstance(content, str):
            return cls("text", hashlib.sha256(content.encode()).digest(), fingerprint)
        return cls("image", hashlib.sha256(content).digest(), fingerprint)

    @classmethod
    def unique(cls) -> "ContentKey":
        """A key that is never in the cache: a cached vector would not show that the model works."""
        return cls("probe", uuid4().bytes, "")


class EmbeddingCache:
    """The most recently used vectors, up to `max_bytes`; 0 keeps none. Counts `hits` and `misses`. Thread-safe."""

    def __init__(self, max_bytes: int = 32 * 2**20) -> None:
        self.hits = self.misses = 0
        self._vectors: LRUCache[ContentKey, NDArray[np.float32]] = LRUCache(
            max_bytes, getsizeof=lambda vector: vector.nbytes + ENTRY_BYTES
        )
        self._lock = threading.Lock()

    def get(self, key: ContentKey) -> NDArray[np.float32] | None:
        """The vector, read-only; or None."""
        with self._lock:
            vector = self._vectors.get(key)
            if vector is None:
                self.misses += 1
            else:
                self.hits += 1
            return vector

    def keep(self, key: ContentKey, vector: NDArray[np.float32]) -> None:
        """Keep a copy: the vector may be a row of a whole batch."""
        kept = vector.copy()
        kept.flags.writeable = False
        with self._lock, suppress(ValueError):  # larger than the cache
            self._vectors[key] = kept
