"""Answers queries: from pictures, texts, ids and vectors to the nearest images of a collection."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from api.errors import Problem, invalid
from api.observe.request_record import is_awaited, notes, record_outcome
from api.search.cache import ContentKey, EmbeddingCache
from api.search.engine import Engine
from api.search.live_engine import IndexSource, LiveEngine
from api.search.nearest import Vector, check_fields, nearest_allowing_partial, vector_of_image
from api.search.pictures import Picture, Pictures, naming_field
from api.search.query import Part, Query, Stopwatch
from api.search.result import SearchResult
from embedder.fetch import Fetcher
from embedder.images.decoder_pool import DecodePool
from embedder.images.limits import ImageLimits
from embedder.protocol import Embedder
from index.queries import SearchOptions
from index.search import Searcher


class SearchService:
    """Everything that a query needs, loaded once. Thread-safe; every method blocks.

    `query_fetcher` reads the URLs that callers send and must be one for untrusted URLs. `picture_fetcher`
    reads the pictures of the collection's own rows, whose URIs the operator chose and which may be local files.
    With a `source` the service follows CURRENT to other index versions and their models (`live.start()`).
    `decoders` decode pictures; None: as many as there are cores, which take their time as for one's own pictures.

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
        cache: EmbeddingCache | None = None,
        source: IndexSource | None = None,
        decoders: DecodePool | None = None,
    ) -> None:
        self.cache = cache or EmbeddingCache()
        self.on_batch: list[Callable[[int], None]] = []
        self.live = LiveEngine(Engine.of(embedder, searcher, self.cache, self.on_batch), source)
        self.decoders = decoders or DecodePool()
        self._pictures = Pictures(picture_fetcher, self.decoders)
        self._query_fetcher = query_fetcher
        self._query_limits = query_limits or ImageLimits()

    @property
    def engine(self) -> Engine:
        """The current engine. A request takes it once and keeps it to its end."""
        return self.live.engine

    @property
    def ready(self) -> bool:
        """Whether the current engine has answered a query, and its model still answers."""
        return self.live.has_answered

    @property
    def version(self) -> str:
        return self.engine.version

    def warm_up(self) -> None:
        """Answer one query, so that the first caller does not wait for lazy loading; then `ready` is true."""
        self.live.warm_up()

    def close(self) -> None:
        """End the threads that follow CURRENT and embed, the latter when its pass is over, and the decoders."""
        self.live.stop()
        self.engine.batcher.close()
        self.decoders.close()

    def search_by_url(self, url: str, k: int, **options: Unpack[SearchOptions]) -> SearchResult:
        """The `k` nearest to the picture at `url`. Raises Problem.

        `options` of this and the other searches are those of `Searcher.search`.
        """
        return self.search(Query(parts=(Part(url=url),), k=k, options=options))

    def search_by_bytes(self, data: bytes, k: int, **options: Unpack[SearchOptions]) -> SearchResult:
        """The `k` nearest to the picture in `data`. Raises Problem."""
        return self.search(Query(parts=(Part(data=data),), k=k, options=options))

    def search_by_text(self, text: str, k: int, **options: Unpack[SearchOptions]) -> SearchResult:
        """The `k` nearest to `text`. Raises Problem for an empty text and for a model without a text side."""
        return self.search(Query(parts=(Part(text=text),), k=k, options=options))

    def search(self, query: Query, *, engine: Engine | None = None, watch: Stopwatch | None = None) -> SearchResult:
        """The nearest to the query's mix. Images of the index that are parts of it are left out.

        Raises Problem, which names the field.
        """
        engine, watch = engine or self.engine, watch or Stopwatch()
        check_fields(engine.searcher, query.fields)
        vectors = self._vectors(engine, query.parts, watch)
        with watch.stage("search"):
            matches, searched = nearest_allowing_partial(engine.searcher, query, vectors)
        return SearchResult(
            matches=matches,
            version=engine.version,
            ntotal=engine.searcher.ntotal,
            searched=searched,
            model=engine.model,
            timing_ms=watch.milliseconds(),
        )

    def fetch(self, part: Part) -> Part:
        """The part with the bytes from its URL, if it has one. Raises Problem."""
        if part.url is None or part.data is not None:
            return part
        with naming_field(part.at.format("url")), record_outcome("fetch"):
            return replace(part, data=self._query_fetcher.fetch(part.url))

    def embed(self, part: Part, engine: Engine, watch: Stopwatch | None = None) -> Vector:
        """The vector of one part, `(dim,)`, unit norm. Raises as `search`."""
        return self._vectors(engine, (part,), watch or Stopwatch())[0]

    def picture(self, row: Mapping[str, Any], size: int | None = None) -> Picture:
        """The original file of a row, or a thumbnail whose longer side has at most `size` pixels. Raises Problem."""
        return self._pictures.read(row, size)

    def _vectors(self, engine: Engine, parts: Sequence[Part], watch: Stopwatch) -> list[Vector]:
        notes().index = engine.version
        if any(part.url is not None and part.data is None for part in parts):
            with watch.stage("fetch"):
                parts = [self.fetch(part) for part in parts]
        # All parts are submitted before waiting for the first, so that they are embedded together.
        begun = [self._begin(engine, part, watch) for part in parts]
        waiting = any(isinstance(each, Future) for each in begun)
        try:
            with watch.stage("embed") if waiting else nullcontext():
                return [each.result() if isinstance(each, Future) else each for each in begun]
        except Problem as problem:
            if problem.kind.slug == "embedder-unavailable":
                self.live.mark_unavailable(engine)
            raise

    def _begin(self, engine: Engine, part: Part, watch: Stopwatch) -> "Future[Vector] | Vector":
        """The part's vector, or a future of it."""
        if part.data is not None:
            data, key = part.data, ContentKey.of(part.data, engine.model.fingerprint)
            with naming_field(part.at.format("image" if part.url is None else "url")):
                return engine.batcher.embed(key, lambda: self._decoded(engine, data, watch))
        if part.text is not None:
            text = _checked_text(engine, part.text, part.at)
            return engine.batcher.embed(ContentKey.of(text, engine.model.fingerprint), lambda: text)
        if part.image_id is not None:
            return vector_of_image(engine.searcher, part.image_id, part.at)
        if part.vector is None:
            raise ValueError("a part without anything to look for")
        if len(part.vector) != engine.model.dim:
            expected = f"{engine.model.dim} numbers, as the model of the index makes"
            raise invalid(part.at.format("embedding"), expected, len(part.vector))
        return part.vector

    def _decoded(self, engine: Engine, data: bytes, watch: Stopwatch) -> NDArray[np.uint8]:
        with watch.stage("decode"), record_outcome("decode"):
            return self.decoders.decode(data, engine.crop, limits=self._query_limits, is_awaited=is_awaited).pixels


def _checked_text(engine: Engine, text: str, at: str) -> str:
    if not text.strip():
        raise invalid(at.format("text"), "words that say what to look for", text)
    if engine.text_refusal is not None:
        raise Problem("text-not-supported", engine.text_refusal, field=at.format("text"))
    return text
