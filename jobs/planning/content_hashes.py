"""Reads pictures to compare their bytes."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from embedder.errors import Rejected
from embedder.fetch import Fetcher
from index.collection.row_files import map_in_threads
from index.collection.rows import TEXT
from index.storage.picture_reader import PictureReader

NEVER_READABLE: Final = ""
"""Stands for the hash of a picture that will never be readable; no content has this hash."""


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

    return pa.array(map_in_threads(hash_of, uris), TEXT)  # hashing lets other threads run
