"""The pictures of the collection's own rows: files as they are, and thumbnails."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from api.errors import BUSY_S, Problem
from api.etag import Tagged
from api.observe.request_record import is_awaited
from api.search.lru import LruCache
from embedder.errors import FetchError, ImageError
from embedder.fetch import Fetcher
from embedder.images.decoder_pool import DecodePool
from embedder.images.formats import SUPPORTED, picture_format

_MAX_CACHED: Final = 64 * 2**20  # bytes of thumbnails


class Pictures:
    """Reads pictures by their rows, through a fetcher that may read the operator's sources. Thread-safe.

    Thumbnails are cached.
    """

    def __init__(self, fetcher: Fetcher, decoders: DecodePool) -> None:
        self._fetcher = fetcher
        self._decoders = decoders
        self._thumbnails: LruCache[tuple[Any, ...], Tagged] = LruCache(_MAX_CACHED)

    def read(self, row: Mapping[str, Any], size: int | None = None) -> Tagged:
        """The original file of a row, or a thumbnail whose longer side has at most `size` pixels.

        It is the picture that was embedded: one of another content is not shown. Raises Problem: picture-not-found when
        the file is gone, overloaded when too many are being decoded, else picture-unavailable.
        """
        try:
            return self._original(row) if size is None else self._thumbnail(row, size)
        except (FetchError, ImageError) as error:
            if error.reason == "decoders_busy":
                raise Problem("overloaded", str(error), retry_after_s=BUSY_S) from error
            # The error's message may name the operator's paths and buckets, so callers get only the reason.
            gone = error.reason in {"not_found", "http_404", "http_410"}
            said = "is no longer there" if gone else f"cannot be read: {error.reason}"
            raise Problem(
                "picture-not-found" if gone else "picture-unavailable",
                f"the file of {row['image_id']!r} {said}",
                reason=error.reason,
                stage=error.stage,
                retryable=error.retryable,
            ) from error

    def _original(self, row: Mapping[str, Any]) -> Tagged:
        data = self._embedded(row)
        # A few bytes may look like a picture's: whether it is one, its decoder says.
        if row["content_hash"] is None:
            self._decoders.thumbnail(data, 1, is_awaited=is_awaited)
        # A browser is told only these types: whatever else a file may be, it is never shown as a page.
        name = picture_format(data)
        return Tagged.of(data, f"image/{name.lower()}" if name in SUPPORTED else "application/octet-stream")

    def _thumbnail(self, row: Mapping[str, Any], size: int) -> Tagged:
        # If a file has changed, its row differs in one of these once it has been embedded again.
        key = (*(row[name] for name in ("uri", "content_hash", "modified", "etag", "size")), size)
        cached = self._thumbnails.get(key)
        if cached is not None:
            return cached
        small = Tagged.of(self._decoders.thumbnail(self._embedded(row), size, is_awaited=is_awaited), "image/jpeg")
        self._thumbnails.put(key, small, len(small.data))
        return small

    def _embedded(self, row: Mapping[str, Any]) -> bytes:
        """The file of a row. Raises Problem when it is not the one that was embedded: the address may lead elsewhere by
        now, and what lies there is not for callers.
        """
        data = self._fetcher.fetch(row["uri"])
        if row["content_hash"] in (None, sha256(data).hexdigest()):
            return data
        raise Problem(
            "picture-unavailable",
            f"the file of {row['image_id']!r} is another than was embedded: it can be seen once it is embedded again",
            reason="changed",
            stage="fetch",
            retryable=False,
        )
