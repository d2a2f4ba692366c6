"""Reads the signatures of a collection's pictures: fetches them from their sources, decodes them in other processes."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, Final

from embedder.errors import FetchError, Rejected
from embedder.fetch import Fetcher
from embedder.images.decoder_pool import DecodePool
from embedder.images.signature import Signature
from index.storage.picture_reader import PictureReader
from jobs.duplicates.same_picture import SIDE

_THREADS: Final = 8  # more than most machines have cores, because some wait for the network


class SignatureReader:
    """Reads the pictures of rows from files, URLs and buckets. Call `close` at the end."""

    def __init__(self) -> None:
        self._fetcher = Fetcher(buckets=PictureReader())
        self._decoders = DecodePool()
        self._threads = ThreadPoolExecutor(_THREADS)

    def read(self, rows: Sequence[Mapping[str, Any]]) -> list[Signature | str]:
        """For each row, the signature of its picture, or the reason why there is none."""
        return list(self._threads.map(self._read_one, rows))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._decoders.close()

    def _read_one(self, row: Mapping[str, Any]) -> Signature | str:
        try:
            data = self._fetcher.fetch(row["uri"])
            if row["content_hash"] not in (None, sha256(data).hexdigest()):
                raise FetchError("changed", "the file has changed since it was embedded")
            return self._decoders.signature(data, SIDE)
        except Rejected as error:
            return error.reason
