"""The content of pictures by its hash, read in this process: no model is needed to know that nothing is new in them."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from embedder.errors import FetchError
from embedder.fetch import Fetcher, FetchPolicy
from index.rows import TEXT

UNREADABLE: Final = ""
"""Stands for the hash of what will not be there when it is asked for again; it is no content's."""

_THREADS = 16  # reading waits for disks and networks, and hashing lets other threads run


def content_hashes(uris: Sequence[str | None]) -> pa.Array[Any]:
    """SHA-256 of each picture's bytes in hex; null where they cannot be read now, `UNREADABLE` where never."""
    fetcher = Fetcher(FetchPolicy())  # the operator's own sources are trusted

    def hash_of(uri: str | None) -> str | None:
        if uri is None:
            return UNREADABLE
        try:
            return hashlib.sha256(fetcher.fetch(uri)).hexdigest()
        except FetchError as error:
            return None if error.retryable else UNREADABLE

    with ThreadPoolExecutor(_THREADS) as pool:
        return pa.array(pool.map(hash_of, uris), TEXT)
