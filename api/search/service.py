"""Answers queries: from pictures, texts, ids and vectors to the nearest images of a collection."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from api.errors import Problem, abbreviate, invalid, invalid_fields
from api.observe.log import Stopwatch, is_awaited, notes, record_outcome
from api.search.batcher import ContentKey, EmbeddingCache
from api.search.engine import Engine, IndexSource, LiveEngine
from api.search.pictures import Pictures, problem_of_query
from api.search.query import Part, Query, SearchResult
from embedder.errors import Rejected, UnsupportedInputError
from embedder.fetch import Fetcher
from embedder.images.decoder_pool import DecodePool
from embedder.images.limits import ImageLimits
from embedder.protocol import Embedder
from index.collection.rows import FIXED
from index.errors import FilterError, QueryError
from index.match import Match
from index.query_vectors import SearchOptions, mix
from index.search import Searcher
from index.search.sharded_index import ShardsLostError

Vector = NDArray[np.float32]


class SearchService:
    """Everything that a query needs. Thread-safe; every method blocks.

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
        self.pictures = Pictures(picture_fetcher, self.decoders)
        self._query_fetcher = query_fetcher
        self._query_limits = query_limits or ImageLimits()

    @property
    def engine(self) -> Engine:
        """The current engine. A request takes it once and keeps it to its end."""
        return self.live.engine

    def close(self) -> None:
        """End the threads that follow CURRENT and embed, the latter when its pass is over, and the decoders.

        A later query starts them again, but for the one that follows CURRENT.
        """
        self.live.stop()
        self.engine.batcher.close()
        self.decoders.close()

    def search(self, query: Query, *, engine: Engine | None = None, watch: Stopwatch | None = None) -> SearchResult:
        """The nearest to the query's mix. Images of the index that are parts of it are left out.

        Matches have a percentile if the query is a single picture. Raises Problem, which names the field;
        `shard-unavailable` when shards do not answer and the query does not allow that, or none of them does.
        """
        engine, watch = engine or self.engine, watch or Stopwatch()
        searcher = engine.searcher
        _check_fields(searcher, query.fields)
        vectors = self._vectors(engine, query.parts, watch)
        with watch.stage("search"):
            while True:
                try:
                    matches = _nearest(searcher, query, vectors)
                    break
                except ShardsLostError as error:
                    # The answer is as if there were only the other shards: results of the first round are discarded.
                    if not (query.allow_partial and len(error.rest)):
                        raise _unavailable(error) from error
                    searcher = Searcher(searcher.manifest, error.rest)
        return SearchResult(
            matches=matches,
            version=engine.searcher.version,
            ntotal=engine.searcher.ntotal,
            searched=searcher.searched,
            model=engine.embedder.identity,
            timing_ms=watch.milliseconds(),
        )

    def fetch(self, part: Part) -> Part:
        """The part with the bytes from its URL, if it has one. Raises Problem."""
        if part.url is None or part.data is not None:
            return part
        with _naming_field(part.at.format("url")), record_outcome("fetch"):
            return replace(part, data=self._query_fetcher.fetch(part.url))

    def embed(self, part: Part, engine: Engine, watch: Stopwatch | None = None) -> Vector:
        """The vector of one part, `(dim,)`, unit norm. Raises as `search`."""
        return self._vectors(engine, (part,), watch or Stopwatch())[0]

    def _vectors(self, engine: Engine, parts: Sequence[Part], watch: Stopwatch) -> list[Vector]:
        notes().index = engine.searcher.version
        if any(part.url is not None and part.data is None for part in parts):
            with watch.stage("fetch"):
                parts = [self.fetch(part) for part in parts]
        # All parts are submitted before waiting for the first, so that they are embedded together.
        begun = [self._begin(engine, part, watch) for part in parts]
        waiting = any(isinstance(each, Future) for each in begun)
        try:
            with watch.stage("embed") if waiting else nullcontext():
                return [_awaited(part, each) for part, each in zip(parts, begun, strict=True)]
        except Problem as problem:
            if problem.kind.slug == "embedder-unavailable":
                self.live.mark_unavailable(engine)
            raise

    def _begin(self, engine: Engine, part: Part, watch: Stopwatch) -> "Future[Vector] | Vector":
        if part.data is not None:
            data, key = part.data, ContentKey.of(part.data, engine.embedder.identity.fingerprint)
            with _naming_field(_picture_field(part)):
                return engine.batcher.embed(key, lambda: self._decoded(engine, data, watch))
        if part.text is not None:
            text = part.text
            if not text.strip():
                raise invalid(part.at.format("text"), "words that say what to look for", text)
            return engine.batcher.embed(ContentKey.of(text, engine.embedder.identity.fingerprint), lambda: text)
        if part.image_id is not None:
            try:
                return engine.searcher.vector(part.image_id)
            except ShardsLostError as error:
                raise _unavailable(error) from error
            except QueryError as error:
                expected = f"an image of index version {engine.searcher.version}"
                raise invalid(part.at.format("id"), expected, part.image_id) from error
        if part.vector is None:
            raise ValueError("a part without anything to look for")
        if part.vector.shape != (engine.embedder.identity.dim,):
            expected = f"{engine.embedder.identity.dim} numbers, as the model of the index makes"
            shape = part.vector.shape
            raise invalid(part.at.format("embedding"), expected, shape[0] if len(shape) == 1 else shape)
        return part.vector

    def _decoded(self, engine: Engine, data: bytes, watch: Stopwatch) -> NDArray[np.uint8]:
        with watch.stage("decode"), record_outcome("decode"):
            crop, limits = engine.embedder.crop, self._query_limits
            return self.decoders.decode(data, crop, limits=limits, is_awaited=is_awaited).pixels


def row_of_image(searcher: Searcher, image_id: str) -> dict[str, Any] | None:
    """Like `Searcher.row`. Problem `shard-unavailable` when the row may be in a shard that does not answer."""
    try:
        return searcher.row(image_id)
    except ShardsLostError as error:
        raise _unavailable(error) from error


@contextmanager
def _naming_field(field: str) -> Iterator[None]:
    """Turns the rejection of a picture into the Problem of the field that gave the picture."""
    try:
        yield
    except Rejected as error:
        raise problem_of_query(error, field) from error


def _nearest(searcher: Searcher, query: Query, vectors: Sequence[Vector]) -> list[Match]:
    ids = {part.image_id for part in query.parts if part.image_id is not None}
    options: SearchOptions = {**query.options, "exclude": {*query.options.get("exclude", ()), *ids}}
    weights = [part.weight for part in query.parts]
    try:
        direction = mix(np.stack(vectors), weights)
    except QueryError as error:
        expected = "examples that do not cancel each other out: leave one out, or change a weight"
        raise invalid("queries", expected, weights) from error
    try:
        matches = searcher.search(direction[np.newaxis], query.k, **options)[0]
    except FilterError as error:
        raise invalid_fields([{"field": "filter", "expected": error.expected, "got": error.got}]) from error
    except QueryError as error:  # its message says what was expected
        got = [{"field": "body", "expected": str(error), "got": abbreviate({"k": query.k})}]
        raise Problem("invalid-request", f"body: {error}", errors=got) from error
    first, *others = query.parts
    # Scores of words and vectors are on another scale.
    if not others and first.text is None and first.vector is None and first.weight > 0:
        matches = [replace(each, percentile=searcher.percentile(each.score)) for each in matches]
    if (fields := query.fields) is not None:
        matches = [
            replace(each, metadata={name: value for name, value in each.metadata.items() if name in fields})
            for each in matches
        ]
    return matches


def _check_fields(searcher: Searcher, wanted: Sequence[str] | None) -> None:
    """Problem names the `wanted` fields that are no metadata columns. None: all are wanted."""
    known = sorted(searcher.filterable.keys() - FIXED)
    wrong = [name for name in wanted or () if name not in known]
    if wrong:
        expected = f"only {', '.join(known)}" if known else "none, for the images have no metadata"
        raise invalid_fields([{"field": "fields", "expected": expected, "got": abbreviate(name)} for name in wrong])


def _awaited(part: Part, vector: "Future[Vector] | Vector") -> Vector:
    """The vector of a part, once it is there. Raises Problem when the model has none for it."""
    try:
        with _naming_field(_picture_field(part)):
            return vector.result() if isinstance(vector, Future) else vector
    except UnsupportedInputError as error:
        if part.text is not None:
            raise Problem("text-not-supported", str(error), field=part.at.format("text")) from error
        raise invalid(_picture_field(part), f"an id or a vector, because {error}", "a picture") from error


def _picture_field(part: Part) -> str:
    return part.at.format("image" if part.url is None else "url")


def _unavailable(error: ShardsLostError) -> Problem:
    return Problem("shard-unavailable", f"{error}: try again soon", retry_after_s=2)
