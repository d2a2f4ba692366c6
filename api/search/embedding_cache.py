"""Caches the vectors of recent pictures and texts."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from api.search.lru import LruCache


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


class EmbeddingCache(LruCache[ContentKey, NDArray[np.float32]]):
    """The most recently used vectors, read-only."""

    def __init__(self, max_bytes: int = 32 * 2**20) -> None:
        super().__init__(max_bytes)

    def keep(self, key: ContentKey, vector: NDArray[np.float32]) -> None:
        """Keep a copy: the vector may be a row of a whole batch."""
        kept = vector.copy()
        kept.flags.writeable = False
        self.put(key, kept, kept.nbytes)
