"""Hashes of pictures' content, read in this process: unchanged content needs no model."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from embedder.errors import FetchError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from index.collection.rows import TEXT
from index.storage.picture_reader import PictureReader

UNREADABLE: Final = ""
"""In place of a hash for a picture that will not be there at the next attempt either; no content has it."""

_THREADS = 16  # reading waits for disks and networks, and hashing lets other threads run


def content_hashes(uris: Sequence[str | None]) -> pa.Array[Any]:
    """SHA-256 of each picture's bytes in hex; null if they cannot be read now, `UNREADABLE` if never."""
    fetcher = Fetcher(FetchPolicy(), buckets=PictureReader())  # the operator's own sources are trusted

    def hash_of(uri: str | None) -> str | None:
        if uri is None:
            return UNREADABLE
        try:
            return hashlib.sha256(fetcher.fetch(uri)).hexdigest()
        except FetchError as error:
            return None if error.retryable else UNREADABLE

    with ThreadPoolExecutor(_THREADS) as pool:
        return pa.array(pool.map(hash_of, uris), TEXT)
