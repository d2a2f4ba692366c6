"""The pictures of the collection's own rows: files as they are, and thumbnails."""

from collections.abc import Mapping
from typing import Any, Final

from api.errors import Problem, overloaded
from api.lru import LruCache
from api.notes import is_awaited
from api.tagged import Tagged
from embedder.decoding import DecodePool
from embedder.errors import FetchError, ImageError
from embedder.fetch import Fetcher
from embedder.formats import SUPPORTED, picture_format

# A browser is told only these types: whatever else a file may be, it is never shown as a page.
# (Many cameras write JPEGs with a second picture after the first, which Pillow calls "mpo".)
_MEDIA_TYPES: Final = {name.lower(): f"image/{name.lower()}" for name in SUPPORTED} | {"mpo": "image/jpeg"}

_MOST_CACHED: Final = 64 * 2**20  # bytes of thumbnails


class Pictures:
    """Reads pictures by their rows, through a fetcher that may read the operator's sources. Thread-safe.

    Thumbnails are cached.
    """

    def __init__(self, fetcher: Fetcher, decoders: DecodePool) -> None:
        self._fetcher = fetcher
        self._decoders = decoders
        self._thumbnails: LruCache[tuple[Any, ...], Tagged] = LruCache(_MOST_CACHED)

    def read(self, row: Mapping[str, Any], size: int | None = None) -> Tagged:
        """The original file of a row, or a thumbnail whose longer side has at most `size` pixels.

        Raises Problem: picture-not-found when the file is gone, overloaded when too many are being decoded, else
        picture-unavailable.
        """
        try:
            return self._original(row) if size is None else self._thumbnail(row, size)
        except (FetchError, ImageError) as error:
            if error.reason == "decoders_busy":
                raise overloaded(str(error)) from error
            # The error's message may name the operator's paths and buckets, so callers get only the reason.
            gone = error.reason in {"not_found", "http_404", "http_410"}
            raise Problem(
                "picture-not-found" if gone else "picture-unavailable",
                f"the picture of {row['image_id']!r} cannot be read: {error.reason}",
                reason=error.reason,
                stage=error.stage,
                retryable=error.retryable,
            ) from error

    def _original(self, row: Mapping[str, Any]) -> Tagged:
        media_type = _MEDIA_TYPES.get(row["format"], "application/octet-stream")
        data = self._fetcher.fetch(row["uri"])
        if picture_format(data) is None:
            # The address may lead elsewhere by now, and such content is not for callers.
            raise ImageError("not_an_image", "expected the picture that was embedded, got something else")
        return Tagged.of(data, media_type)

    def _thumbnail(self, row: Mapping[str, Any], size: int) -> Tagged:
        # If a file has changed, its row differs in one of these once it has been embedded again.
        key = (*(row[name] for name in ("uri", "content_hash", "modified", "etag", "size")), size)
        cached = self._thumbnails.get(key)
        if cached is not None:
            return cached
        data = self._fetcher.fetch(row["uri"])
        small = Tagged.of(self._decoders.thumbnail(data, size, wanted=is_awaited), "image/jpeg")
        self._thumbnails.put(key, small, len(small.data))
        return small
