"""Reads the pictures of a collection's rows, and turns the rejection of a query's picture into a problem."""

import logging
from collections.abc import Mapping
from hashlib import sha256
from threading import Lock
from typing import Any, Final, NamedTuple

from cachetools import LRUCache, cached

from api import problems
from api.observe.log import is_awaited
from api.problems import Problem
from api.search.batcher import ENTRY_BYTES
from embedder.errors import FetchError, ImageError, Rejected
from embedder.fetch import Fetcher
from embedder.images.decoder_pool import DecodePool
from embedder.images.formats import SUPPORTED, picture_format
from embedder.images.limits import ACCEPTED_LIMITS

logger = logging.getLogger(__name__)

_MAX_CACHED: Final = 64 * 2**20  # bytes of thumbnails
_BUSY_RETRY_S: Final = 2

MIN_SIDE: Final = 16
MAX_SIDE: Final = 1024
"""Pixels of the longer side of a thumbnail that a caller may choose, at least and at most."""

# Problem of a query's picture for each reason of rejection; other reasons are mapped by their stage.
_PROBLEM_BY_REASON: Final[dict[str, type[Problem]]] = {
    "bad_uri": problems.BadUrl,
    "forbidden_userinfo": problems.BadUrl,
    "forbidden_scheme": problems.ForbiddenScheme,
    "forbidden_address": problems.ForbiddenAddress,
    "forbidden_port": problems.ForbiddenAddress,
    "timeout": problems.UrlTimeout,
    "unknown_host": problems.UrlUnreachable,
    "connection_failed": problems.UrlUnreachable,
    "tls_failed": problems.UrlUnreachable,
    "not_an_image": problems.UnusableImage,
    "out_of_memory": problems.OutOfMemory,
    "decoders_busy": problems.Overloaded,
}


class Picture(NamedTuple):
    data: bytes
    media_type: str


class Pictures:
    """Reads rows' pictures through a fetcher that may read the operator's sources; caches thumbnails. Thread-safe."""

    def __init__(self, fetcher: Fetcher, decoders: DecodePool) -> None:
        self._fetcher = fetcher
        self.decoders = decoders
        thumbnails: LRUCache[Any, Picture] = LRUCache(_MAX_CACHED, lambda small: len(small.data) + ENTRY_BYTES)
        self._thumbnail = cached(thumbnails, key=_thumbnail_key, lock=Lock())(self._make_thumbnail)

    def read(self, row: Mapping[str, Any], size: int | None = None) -> Picture:
        """The original file of a row, or a thumbnail whose longer side has at most `size` pixels.

        Only the content that was embedded is returned. Raises PictureNotFound if the file is gone, Overloaded if too
        many pictures are being decoded, otherwise PictureUnavailable.
        """
        try:
            return self._original(row) if size is None else self._thumbnail(row, size)
        except (FetchError, ImageError) as error:
            if error.reason == "decoders_busy":
                raise _problem_of(error, problems.Overloaded, str(error)) from error
            # The error's message may name the operator's paths and buckets, so callers get only the reason.
            gone = error.reason in {"not_found", "http_404", "http_410"}
            failure = "is no longer there" if gone else f"cannot be read: {error.reason}"
            kind = problems.PictureNotFound if gone else problems.PictureUnavailable
            raise _problem_of(error, kind, f"the file of {row['image_id']!r} {failure}") from error

    def _original(self, row: Mapping[str, Any]) -> Picture:
        data = self._read_embedded(row)
        # Its first bytes may look like a picture's: the decoder checks whether it is one.
        if row["content_hash"] is None:
            self.decoders.thumbnail(data, 1, limits=ACCEPTED_LIMITS, is_awaited=is_awaited)
        # Browsers are told only these types, so that no file is ever shown as a page.
        name = picture_format(data)
        return Picture(data, f"image/{name.lower()}" if name in SUPPORTED else "application/octet-stream")

    def _make_thumbnail(self, row: Mapping[str, Any], size: int) -> Picture:
        data = self._read_embedded(row)
        return Picture(self.decoders.thumbnail(data, size, limits=ACCEPTED_LIMITS, is_awaited=is_awaited), "image/jpeg")

    def _read_embedded(self, row: Mapping[str, Any]) -> bytes:
        """The file of a row. Raises Problem if it is not the one that was embedded: the URI may lead to another file by
        now, which callers must not see.
        """
        if row["uri"] is None:
            problem = f"{row['image_id']!r} has no file: its vector was imported without an address"
            raise problems.PictureUnavailable(problem, reason="no_uri", stage="fetch", retryable=False)
        data = self._fetcher.fetch(row["uri"])
        if row["content_hash"] in (None, sha256(data).hexdigest()):
            return data
        raise problems.PictureUnavailable(
            f"the file of {row['image_id']!r} has changed since it was embedded: embed it again to see it",
            reason="changed",
            stage="fetch",
            retryable=False,
        )


def problem_of_query(rejected: Rejected, field: str) -> Problem:
    """The problem of a query's picture, which came in `field` of the request."""
    kind = _PROBLEM_BY_REASON.get(rejected.reason)
    if kind is None and rejected.stage != "fetch":
        kind = problems.UnusableImage
    elif kind is None:
        kind = problems.UrlUnreachable if rejected.reason.startswith("http_5") else problems.UrlNotUsable
    detail = str(rejected)
    if rejected.stage == "embed":  # raised by the operator's own class: the details are for the log
        logger.warning("a query's picture has no vector: %s", rejected)
        detail = "the model has no vector for this picture: try another one"
    if kind is problems.ForbiddenAddress:
        detail += "; the server allows one that --allow-host names"
    return _problem_of(rejected, kind, detail, field=field)


def _thumbnail_key(row: Mapping[str, Any], size: int) -> tuple[Any, ...]:
    """When a changed file has been embedded again, its row differs in at least one of these."""
    return (*(row[name] for name in ("uri", "content_hash", "modified", "etag", "size")), size)


def _problem_of(rejected: Rejected, kind: type[Problem], detail: str, **more: Any) -> Problem:
    wait = {"retry_after_s": _BUSY_RETRY_S} if kind is problems.Overloaded else {}
    facts = {"reason": rejected.reason, "stage": rejected.stage, "retryable": rejected.retryable}
    return kind(detail, **more, **facts, **wait)
