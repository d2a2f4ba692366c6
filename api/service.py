"""Answers queries: from a URL, bytes or a text to the nearest images of a collection."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Unpack

import numpy as np
from numpy.typing import NDArray

from api.errors import OtherModelError, Problem, invalid
from embedder.errors import FetchError, ImageError, ModelError
from embedder.fetch import Fetcher
from embedder.formats import SUPPORTED
from embedder.images import ImageLimits, decode_image, thumbnail
from embedder.protocol import Embedder, ModelIdentity
from index.queries import SearchOptions
from index.records import VersionManifest
from index.search import Match, Searcher

# Only these are named to a browser: whatever else a file may be, it is never a page.
# (Pillow says "mpo" of the JPEGs with a second picture behind the first that many cameras write.)
_MEDIA_TYPES: Final = {name.lower(): f"image/{name.lower()}" for name in SUPPORTED} | {"mpo": "image/jpeg"}


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Matches, best first, and what found them. `timing_ms`: fetch, decode, embed, search, total."""

    matches: list[Match]
    version: str
    ntotal: int
    model: ModelIdentity
    timing_ms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The bytes of a picture, ready to be sent."""

    data: bytes
    media_type: str


class SearchService:
    """Everything that a query needs, loaded once. Thread-safe; every method blocks.

    `query_fetcher` reads the URLs that callers send and must be one for untrusted URLs. `picture_fetcher`
    reads the pictures of the collection's own rows, whose URIs the operator chose: local files among them.

    Raises OtherModelError when the searcher's vectors come from another model than `embedder`.
    """

    def __init__(
        self,
        *,
        embedder: Embedder,
        searcher: Searcher,
        query_fetcher: Fetcher,
        picture_fetcher: Fetcher,
        query_limits: ImageLimits | None = None,
    ) -> None:
        _require_same_model(embedder, searcher)
        self._embedder = embedder
        self._searcher = searcher
        self._query_fetcher = query_fetcher
        self._picture_fetcher = picture_fetcher
        self._query_limits = query_limits or ImageLimits()
        # One forward pass at a time: two would share the same cores and both take twice as long.
        self._forward = threading.Lock()
        # A decoded picture may take half a gigabyte: only as many at once as there are cores for them.
        self._decoding = threading.BoundedSemaphore(os.cpu_count() or 1)
        # Found out once: later on, a ModelError is a defect and not something to tell callers.
        self._text_refusal = _text_refusal(embedder)
        self.ready = False

    @property
    def version(self) -> str:
        return self._searcher.version

    @property
    def ntotal(self) -> int:
        return self._searcher.ntotal

    @property
    def manifest(self) -> VersionManifest:
        """What is recorded of the index version."""
        return self._searcher.manifest

    @property
    def filterable(self) -> dict[str, str]:
        """Columns that a filter can name, with their Arrow types."""
        return self._searcher.filterable

    @property
    def model(self) -> ModelIdentity:
        return self._embedder.identity

    def warm_up(self) -> None:
        """Answer one query, so that the first caller does not wait for lazy loading; then `ready` is true."""
        side = self._embedder.crop.side
        self._search(np.full((side, side, 3), 127, np.uint8), 1, _Stopwatch(), {})
        self.ready = True

    def search_by_url(self, url: str, k: int, **options: Unpack[SearchOptions]) -> SearchResult:
        """The `k` nearest to the picture at `url`. Raises FetchError, ImageError.

        `options` of this and the other searches are those of `Searcher.search`, with its QueryError.
        """
        watch = _Stopwatch()
        with watch.stage("fetch"):
            data = self._query_fetcher.fetch(url)
        return self._search_by_bytes(data, k, watch, options)

    def search_by_bytes(self, data: bytes, k: int, **options: Unpack[SearchOptions]) -> SearchResult:
        """The `k` nearest to the picture in `data`. Raises ImageError."""
        return self._search_by_bytes(data, k, _Stopwatch(), options)

    def search_by_text(self, text: str, k: int, **options: Unpack[SearchOptions]) -> SearchResult:
        """The `k` nearest to `text`. Raises Problem for an empty text and for a model without a text side."""
        if not text.strip():
            raise invalid("text", "words that say what to look for", text)
        if self._text_refusal is not None:
            raise Problem("text-not-supported", self._text_refusal)
        watch = _Stopwatch()
        with watch.stage("embed"), self._forward:
            vector = self._embedder.embed_texts([text])
        return self._nearest(vector, k, watch, options)

    def row(self, image_id: str) -> dict[str, Any] | None:
        """The row of an image of the index, without its vector, or None."""
        return self._searcher.row(image_id)

    def picture(self, row: Mapping[str, Any], size: int | None = None) -> Picture:
        """The original file of a row, or a thumbnail whose longer side has at most `size` pixels.

        Raises Problem: picture-not-found when the file is gone, else picture-unavailable.
        """
        # The error's message may name the operator's paths and buckets: the reason is enough for a caller.
        try:
            data = self._picture_fetcher.fetch(row["uri"])
            if size is None:
                return Picture(data=data, media_type=_MEDIA_TYPES.get(row["format"], "application/octet-stream"))
            with self._decoding:
                small = thumbnail(data, size)
        except (FetchError, ImageError) as error:
            gone = error.reason in {"not_found", "http_404", "http_410"}
            raise Problem(
                "picture-not-found" if gone else "picture-unavailable",
                f"the picture of {row['image_id']!r} cannot be read: {error.reason}",
                reason=error.reason,
                stage=error.stage,
                retryable=error.retryable,
            ) from error
        return Picture(data=small, media_type="image/jpeg")

    def _search_by_bytes(self, data: bytes, k: int, watch: "_Stopwatch", options: SearchOptions) -> SearchResult:
        with watch.stage("decode"), self._decoding:
            pixels = decode_image(data, self._embedder.crop, limits=self._query_limits).pixels
        return self._search(pixels, k, watch, options)

    def _search(self, pixels: NDArray[np.uint8], k: int, watch: "_Stopwatch", options: SearchOptions) -> SearchResult:
        with watch.stage("embed"), self._forward:
            vector = self._embedder.embed_images(pixels[np.newaxis])
        return self._nearest(vector, k, watch, options)

    def _nearest(
        self, vector: NDArray[np.float32], k: int, watch: "_Stopwatch", options: SearchOptions
    ) -> SearchResult:
        with watch.stage("search"):
            matches = self._searcher.search(vector, k, **options)[0]
        return SearchResult(
            matches=matches,
            version=self.version,
            ntotal=self.ntotal,
            model=self.model,
            timing_ms=watch.milliseconds(),
        )


class _Stopwatch:
    """Times the stages of one query."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._seconds = {"fetch": 0.0, "decode": 0.0, "embed": 0.0, "search": 0.0}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started

    def milliseconds(self) -> dict[str, float]:
        total = time.perf_counter() - self._started
        return {name: seconds * 1e3 for name, seconds in (*self._seconds.items(), ("total", total))}


def _text_refusal(embedder: Embedder) -> str | None:
    """Why the model takes no text, or None when it does."""
    try:
        embedder.embed_texts(["a picture"])
    except ModelError as error:
        return str(error)
    return None


def _require_same_model(embedder: Embedder, searcher: Searcher) -> None:
    ours, theirs = embedder.identity, searcher.model
    if ours.fingerprint != theirs.fingerprint:
        raise OtherModelError(
            f"expected model {theirs.id!r} (fingerprint {theirs.fingerprint}), which made the vectors of "
            f"index version {searcher.version}, got {ours.model_id!r} (fingerprint {ours.fingerprint}): "
            "serve with the model of the index, or embed the collection again with this one"
        )
