"""Reads pictures to compare their bytes."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from embedder.errors import Rejected
from embedder.fetch import Fetcher
from index.collection.rows import TEXT
from index.storage.picture_reader import PictureReader

NEVER_READABLE: Final = ""
"""Stands for the hash of a picture that will never be readable; no content has this hash."""

_THREADS = 16  # reading waits for disks and networks, and hashing lets other threads run


def content_hashes(uris: Sequence[str | None]) -> pa.Array[Any]:
    """SHA-256 of each picture's bytes in hex; null if it cannot be read now, `NEVER_READABLE` if it never will be."""
    fetcher = Fetcher(buckets=PictureReader())  # the operator's own sources are trusted

    def hash_of(uri: str | None) -> str | None:
        if uri is None:
            return NEVER_READABLE
        try:
            return hashlib.sha256(fetcher.fetch(uri)).hexdigest()
        except Rejected as error:
            return None if error.retryable else NEVER_READABLE

    with ThreadPoolExecutor(_THREADS) as pool:
        return pa.array(pool.map(hash_of, uris), TEXT)
