"""Reads a collection's pictures to compare them: fetches them from their sources, decodes them in other processes."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, Final, TypeVar

from PIL import Image

from embedder.errors import FetchError, Rejected
from embedder.fetch import Fetcher
from embedder.images.decoder_pool import DecodePool
from embedder.images.signature import Signature
from embedder.machine import usable_cpus
from index.storage.picture_reader import PictureReader
from jobs.duplicates.detail import MAX_PIXELS
from jobs.duplicates.same_picture import SIDE

T = TypeVar("T")
Rows = Sequence[Mapping[str, Any]]

_THREADS_PER_CPU: Final = 4  # because some wait for the network


class PictureLoader:
    """Reads the pictures of rows from files, URLs and buckets. Call `close` at the end."""

    def __init__(self) -> None:
        self._fetcher = Fetcher(buckets=PictureReader())
        self._decoders = DecodePool()
        self._threads = ThreadPoolExecutor(_THREADS_PER_CPU * usable_cpus())

    def signatures(self, rows: Rows) -> list[Signature | str]:
        """For each row, the signature of its picture, or the reason why there is none."""
        return self._read(rows, lambda data: self._decoders.signature(data, SIDE))

    def pictures(self, rows: Rows) -> list[Image.Image | str]:
        """For each row, its whole picture with up to `MAX_PIXELS`, or the reason why there is none."""
        return self._read(rows, lambda data: self._decoders.whole_picture(data, MAX_PIXELS))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._decoders.close()

    def _read(self, rows: Rows, decode: Callable[[bytes], T]) -> list[T | str]:
        def read_one(row: Mapping[str, Any]) -> T | str:
            if row["uri"] is None:
                return "no_uri"
            try:
                data = self._fetcher.fetch(row["uri"])
                if row["content_hash"] not in (None, sha256(data).hexdigest()):
                    raise FetchError("changed", "the file has changed since it was embedded")
                return decode(data)
            except Rejected as error:
                return error.reason

        return list(self._threads.map(read_one, rows))
