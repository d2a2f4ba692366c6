"""Answers queries: from pictures, texts, ids and vectors to the nearest images of a collection."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from api import problems
from api.observe.log import Stopwatch, current_record, is_awaited, record_outcome
from api.problems import Problem, abbreviate, invalid
from api.search.batcher import ContentKey
from api.search.engine import Engine, LiveEngine
from api.search.page import check_fields, editions_of, naming_option, page_fields, page_of
from api.search.partial_answers import ask_shards
from api.search.pictures import Pictures, problem_of_query
from api.search.query import Part, Query, SearchResult
from embedder.errors import Rejected, UnsupportedInputError
from embedder.fetch import Fetcher
from embedder.images import Region
from embedder.images.limits import ImageLimits
from index.errors import QueryError
from index.filters.facets import Counts
from index.search import VersionSearcher
from index.search.result_set import Answer

logger = logging.getLogger(__name__)

Vector = NDArray[np.float32]

_ROUNDING: Final = 1e-6


class Answered(NamedTuple):
    answer: Answer
    searcher: VersionSearcher
    """That of the engine, or of the shards that answered."""
    refusal: Problem | None = None
    """Why it has one of words and vectors only, or none of both."""


class SearchService:
    """Answers the queries to one collection. Thread-safe; every method blocks.

    `query_fetcher` fetches the URLs that callers send, so it must be one for untrusted URLs. `pictures` reads the
    pictures of the collection's rows, whose URIs the operator chose and which may be local files; its decoders also
    decode the pictures of queries.
    """

    def __init__(
        self,
        *,
        live: LiveEngine,
        query_fetcher: Fetcher,
        pictures: Pictures,
        query_limits: ImageLimits | None = None,
    ) -> None:
        self.live = live
        self.decoders = pictures.decoders
        self.pictures = pictures
        self._query_fetcher = query_fetcher
        self._query_limits = query_limits or ImageLimits()

    @property
    def engine(self) -> Engine:
        """The current engine. A request reads it once and keeps it to its end."""
        return self.live.engine

    def start(self) -> None:
        """Answer a first query, and follow CURRENT."""
        try:
            self.live.warm_up()
        except Exception:
            # The process stays up to report this: /readyz keeps callers away, and the log has the cause.
            logger.exception("the warm-up query failed: not ready")
        self.live.start()

    def close(self) -> None:
        """End the thread that follows CURRENT, the one that embeds (after its current pass), and the decoders.

        A later query restarts all but the first.
        """
        self.live.stop()
        self.engine.batcher.close()
        self.decoders.close()

    def search(self, query: Query, engine: Engine | None = None, watch: Stopwatch | None = None) -> SearchResult:
        """The nearest neighbours of the query's mix, without the images that are parts of it; or without parts, the
        images that pass the filter.

        Matches have a percentile if the query's kind has one. Raises Problem, which names the field; and like
        `ask_shards` if shards do not answer.
        """
        engine, watch = engine or self.engine_of(query), watch or Stopwatch()
        answered = self.answer(query, engine, watch)
        require_found([answered])
        answer, searcher = answered.answer, answered.searcher
        if answer.end is not None:
            self.live.keep_for_pages(engine)
        editions = {"": engine.searcher.manifest.edition}
        return SearchResult(
            matches=answer.matches,
            **page_fields(query, answer, editions, searcher.filterable),
            version=engine.searcher.version,
            ntotal=engine.searcher.ntotal,
            searched=searcher.searched,
            model=engine.embedder.identity,
            timing_ms=watch.milliseconds(),
        )

    def answer(
        self, query: Query, engine: Engine, watch: Stopwatch, vectors: Sequence[Vector] | None = None
    ) -> Answered:
        """Like `search`, with the searcher that answered. `vectors` are those of the query's parts, if known."""
        check_fields(engine.searcher, query.options.get("fields"))
        refusal: Problem | None = None
        parts = query.parts if query.needs_vectors else ()
        if query.parts and not parts and query.hidden.issuperset(engine.searcher.word_columns):
            refusal = invalid("words", "auto or off, because this index has no words", "only")
        try:
            vectors = self.vectors(engine, parts, watch) if vectors is None else vectors
        except problems.TextNotSupported as problem:
            if query.words is None:
                raise
            vectors, refusal = [], problem  # the words alone may find something
        page = partial(page_of, query=query, vectors=vectors)
        with watch.stage("search"):
            allow_partial = bool(query.options.get("allow_partial"))
            answer, searcher = ask_shards(engine.searcher, page, allow_partial=allow_partial)
        return Answered(answer, searcher, refusal)

    def engine_of(self, query: Query) -> Engine:
        """The engine that answers a query: the current one, for a further page that of the page before. Raises
        Problem.
        """
        editions = editions_of(query, [""])
        return self.live.engine_of(editions[""]) if editions else self.engine

    def fetch(self, part: Part, engine: Engine | None = None) -> Part:
        """The part with its picture, if it needs one: from its URL, or for a crop of an image of the index from that
        image's file. Raises Problem.
        """
        if not part.needs_fetch:
            return part
        region_of(part)  # an invalid one is refused first
        if not is_awaited():  # a batch may have a thousand URLs: other requests must not wait for the rest of them
            raise problems.AnswerTimeout("the request ended before this picture was fetched")
        if part.url is None:
            return replace(part, data=self._read_image(part, (engine or self.engine).searcher))
        with _naming_field(part), record_outcome("fetch"):
            return replace(part, data=self._query_fetcher.fetch(part.url))

    def vectors(self, engine: Engine, parts: Sequence[Part], watch: Stopwatch) -> list[Vector]:
        """The vector of each part, `(dim,)`, unit norm. Raises like `search`."""
        current_record().index = engine.searcher.version
        if any(part.needs_fetch for part in parts):
            with watch.stage("fetch"):
                parts = [self.fetch(part, engine) for part in parts]
        # All parts are submitted before waiting for the first, so that they are embedded together.
        vectors = [self._submit(engine, part, watch) for part in parts]
        must_wait = any(isinstance(vector, Future) for vector in vectors)
        try:
            with watch.stage("embed") if must_wait else nullcontext():
                return list(map(_result, parts, vectors))
        except problems.EmbedderUnavailable:
            self.live.mark_unavailable(engine)
            raise

    def _read_image(self, part: Part, searcher: VersionSearcher) -> bytes:
        """The file of an image of the index."""
        row = row_of_image(searcher, part.image_id or "", field=part.picture_field)
        try:
            return self.pictures.read(row).data
        except Problem as problem:
            detail = f"{problem.detail}. A search by the whole image, without crop, still works"
            raise problem.with_detail(detail, field=part.picture_field) from problem

    def _submit(self, engine: Engine, part: Part, watch: Stopwatch) -> "Future[Vector] | Vector":
        region = region_of(part)
        if part.data is not None:
            data, key = part.data, ContentKey.of(part.data, engine.fingerprint, region)
            with _naming_field(part):
                return engine.batcher.embed(key, lambda: self._decode(engine, data, region, watch))
        if part.text is not None:
            text, expected = part.text, "words that say what to look for"
            if not text.strip():
                raise invalid(part.field_path.format("text"), expected, text)
            try:
                key = ContentKey.of(text, engine.fingerprint)
            except UnicodeEncodeError as error:  # from a shell, not from JSON, whose parser refuses it
                raise invalid(part.field_path.format("text"), f"{expected}, in UTF-8", text) from error
            return engine.batcher.embed(key, lambda: text)
        if part.image_id is not None:
            image_id = part.image_id
            try:
                return ask_shards(engine.searcher, lambda searcher: searcher.vector(image_id))[0]
            except QueryError as error:
                raise image_not_found(engine.searcher, image_id, field=part.field_path.format("id")) from error
        if part.vector is None:
            raise ValueError("expected a part with a picture, text, id or vector")
        if part.vector.shape != (engine.embedder.identity.dim,):
            expected = f"{engine.embedder.identity.dim} numbers, as the model of the index makes"
            shape = part.vector.shape
            raise invalid(part.field_path.format("embedding"), expected, shape[0] if len(shape) == 1 else shape)
        largest = np.abs(part.vector).max()
        if not 0 < largest < np.inf:
            expected = "finite numbers" if largest else "numbers, not all of them zero"
            raise invalid(part.field_path.format("embedding"), expected, part.vector.tolist())
        scaled = part.vector.astype(np.float64) / largest  # squares of float32 values may not fit in a float32
        vector: Vector = (scaled / np.linalg.norm(scaled)).astype(np.float32)
        return vector

    def _decode(self, engine: Engine, data: bytes, region: Region | None, watch: Stopwatch) -> NDArray[np.uint8]:
        with watch.stage("decode"), record_outcome("decode"):
            crop, limits = replace(engine.embedder.crop, region=region), self._query_limits
            return self.decoders.decode(data, crop, limits=limits, is_awaited=is_awaited).pixels


def require_found(answers: Sequence[Answered]) -> None:
    """Raises the Problem of a collection without vectors of text, or without words, if nothing was found."""
    refusals = [each.refusal for each in answers if each.refusal is not None]
    if refusals and not any(each.answer.total for each in answers):
        raise refusals[0]


def row_of_image(searcher: VersionSearcher, image_id: str, **extensions: str) -> dict[str, Any]:
    """Like `Searcher.row`. Raises ImageNotFound, with these `extensions`; ShardUnavailable if the row may be in a shard
    that does not answer.
    """
    row = ask_shards(searcher, lambda each: each.row(image_id))[0]
    if row is None:
        raise image_not_found(searcher, image_id, **extensions)
    return row


def image_not_found(searcher: VersionSearcher, image_id: str, **extensions: str) -> problems.ImageNotFound:
    return problems.ImageNotFound(f"index version {searcher.version} has no image {abbreviate(image_id)}", **extensions)


def facets_of(searcher: VersionSearcher, where: Mapping[str, Any] | None) -> Counts:
    """Like `Searcher.facets`. InvalidRequest for a filter, ShardUnavailable as in `row_of_image`."""
    with naming_option():
        return ask_shards(searcher, lambda each: each.facets(where))[0]


@contextmanager
def _naming_field(part: Part) -> Iterator[None]:
    """Raises the Problem of the part's field if its picture is rejected, or the model has no vector for such input."""
    try:
        yield
    except Rejected as error:
        raise problem_of_query(error, part.picture_field) from error
    except UnsupportedInputError as error:
        if part.text is not None:
            raise problems.TextNotSupported(str(error), field=part.field_path.format("text")) from error
        raise invalid(part.picture_field, f"an id or a vector, because {error}", "a picture") from error


def _result(part: Part, vector: "Future[Vector] | Vector") -> Vector:
    """Wait for the vector of a part. Raises Problem if the model has none for it."""
    with _naming_field(part):
        return vector.result() if isinstance(vector, Future) else vector


def region_of(part: Part) -> Region | None:
    """The part's crop, within the picture; None without one. Raises Problem if it is invalid."""
    if part.crop is None:
        return None
    if part.text is not None or part.vector is not None:
        raise invalid(part.field_path.format("crop"), "a picture to take it from: image, url or id", list(part.crop))
    if len(part.crop) == 4:
        x, y, width, height = part.crop
        # Fractions that were computed elsewhere may add up to a little more than 1.
        if 0 <= x < 1 and 0 <= y < 1 and 0 < width <= 1 + _ROUNDING - x and 0 < height <= 1 + _ROUNDING - y:
            return x, y, min(width, 1 - x), min(height, 1 - y)
    expected = "[x, y, width, height] as fractions of the picture, from 0 to 1 and within its edges"
    raise invalid(part.field_path.format("crop"), expected, list(part.crop))
