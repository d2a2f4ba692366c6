"""Routes that search and embed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.documents import BatchResponse, Embedded, EmbedResponse, Failed, Found, IndexOut, SearchResponse, json_bytes
from api.errors import Problem
from api.http.body import BodyReader, parts_of, searches_of
from api.http.middleware.admission import Slots, admit
from api.http.middleware.rate_limit import charge
from api.http.openapi import BATCH_BODY, EMBED_BODY, search_body
from api.http.problems import BODY_PROBLEMS, failed, problem_docs
from api.http.responses import (
    LOCATION_COLUMNS,
    check_filter,
    json_response,
    model_out,
    redact,
    search_response,
    timing,
)
from api.observe.log import Stopwatch
from api.search.engine import Engine
from api.search.query import Part, Query
from api.search.service import SearchService
from api.settings import RequestLimits

T = TypeVar("T")
R = TypeVar("R")

_SEARCH_PROBLEMS: Final = (
    *BODY_PROBLEMS,
    *("bad-url", "forbidden-scheme", "forbidden-address", "url-not-usable", "url-unreachable", "url-timeout"),
    *("text-not-supported", "unusable-image", "shard-unavailable"),
)


def search_routes(service: SearchService, limits: RequestLimits, searching: Slots) -> APIRouter:
    """`POST /search`, `/search/batch` and `/embed`; each search and each embedding takes a place."""
    router = APIRouter(tags=["search"])
    answering = Answering(service, limits, searching)
    bodies = BodyReader(limits)

    @router.post(
        "/search",
        summary="The nearest images to a picture, a text, an image of the index, a vector, or a mix of them",
        response_model=SearchResponse,
        responses=problem_docs(*_SEARCH_PROBLEMS),
        openapi_extra={"requestBody": search_body(limits)},
    )
    async def search(request: Request) -> Response:
        query, engine = await bodies.search(request, service.engine.embedder.identity.dim), service.engine
        answering.admit(request, [query.parts])
        return json_response(await answering.search(query, engine))

    @router.post(
        "/search/batch",
        summary="Many searches, each with its own result or problem",
        response_model=BatchResponse,
        responses=problem_docs(*BODY_PROBLEMS),
        openapi_extra={"requestBody": BATCH_BODY},
    )
    async def batch(request: Request) -> Response:
        reading = partial(searches_of, dim=service.engine.embedder.identity.dim, limits=limits)
        queries, engine = await bodies.json(request, reading), service.engine
        answering.admit(request, [query.parts for query in queries if isinstance(query, Query)])
        charge(request, len(queries) - 1)

        async def answer(query: Query) -> Found:
            return {"ok": await answering.search(query, engine)}

        return await to_thread.run_sync(_batch_json, await _each(queries, answer))

    @router.post(
        "/embed",
        summary="Vectors of pictures or texts",
        response_model=EmbedResponse,
        responses=problem_docs(*BODY_PROBLEMS),
        openapi_extra={"requestBody": EMBED_BODY},
    )
    async def embed(request: Request) -> Response:
        parts, engine = await bodies.json(request, partial(parts_of, limits=limits)), service.engine
        answering.admit(request, [(part,) for part in parts if isinstance(part, Part)])
        charge(request, len(parts) - 1)
        results = await _each(parts, lambda part: answering.embed(part, engine))
        index = IndexOut(version=engine.searcher.version, ntotal=engine.searcher.ntotal)
        model = model_out(engine.embedder.identity, limits.show_locations)
        return json_response(EmbedResponse(index=index, model=model, results=results))

    return router


class Answering:
    """A service for an event loop: URLs are fetched in threads of their own, everything else in `max_searches` others.

    `searching` has a place for each of these. A query that waits for a host takes none of them.
    """

    def __init__(self, service: SearchService, limits: RequestLimits, searching: Slots) -> None:
        self._service = service
        self._locations = limits.show_locations
        self._searching = searching
        self._fetching = Slots(limits.max_url_fetches, "pictures are being fetched from other hosts")
        self._fetchers = CapacityLimiter(limits.max_url_fetches)
        self._searchers = CapacityLimiter(limits.max_searches)

    def admit(self, request: Request, searches: Sequence[Sequence[Part]]) -> None:
        """Raises Problem when there are too few places for a request with searches for these parts."""
        admit(request, self._searching, len(searches))
        if urls := sum(part.url is not None for parts in searches for part in parts):
            self._fetching.require(urls)

    async def search(self, query: Query, engine: Engine) -> SearchResponse:
        if not self._locations:
            check_filter(query.options.get("filter"), engine.searcher.filterable.keys() - LOCATION_COLUMNS)
        watch = Stopwatch()
        fetched = replace(query, parts=await self._fetched(query.parts, watch))
        with self._searching.taking(), self._redacted(engine):
            # The document of a thousand matches takes milliseconds; other requests need not wait for that.
            return await to_thread.run_sync(
                lambda: search_response(self._service.search(fetched, engine=engine, watch=watch), self._locations),
                limiter=self._searchers,
            )

    async def embed(self, part: Part, engine: Engine) -> Embedded:
        watch = Stopwatch()
        (fetched,) = await self._fetched((part,), watch)
        with self._searching.taking(), self._redacted(engine):
            vector = await to_thread.run_sync(self._service.embed, fetched, engine, watch, limiter=self._searchers)
        return Embedded(ok=vector.tolist(), timing_ms=timing(watch.milliseconds()))

    @contextmanager
    def _redacted(self, engine: Engine) -> Iterator[None]:
        """The model's own words, why it takes no text, may name its folder."""
        try:
            yield
        except Problem as problem:
            if problem.kind.slug != "text-not-supported":
                raise
            detail = redact(problem.detail, show=self._locations, places=(engine.embedder.identity.model_id,))
            raise Problem(problem.kind.slug, detail, **problem.extensions) from problem

    async def _fetched(self, parts: tuple[Part, ...], watch: Stopwatch) -> tuple[Part, ...]:
        urls = sum(part.url is not None for part in parts)
        if not urls:
            return parts
        fetches = (to_thread.run_sync(self._service.fetch, part, limiter=self._fetchers) for part in parts)
        with watch.stage("fetch"), self._fetching.taking(urls):
            found = await asyncio.gather(*fetches, return_exceptions=True)  # they take places until the last has ended
        if failures := [each for each in found if isinstance(each, BaseException)]:
            raise failures[0]
        return tuple(each for each in found if isinstance(each, Part))


async def _each(items: Sequence[T | Problem], answer: Callable[[T], Awaitable[R]]) -> list[R | Failed]:
    """The answer to each item, or the problem with it. They are answered concurrently."""

    async def run(item: T | Problem) -> R:
        if isinstance(item, Problem):
            raise item
        return await answer(item)

    found = await asyncio.gather(*map(run, items), return_exceptions=True)
    return [failed(each) if isinstance(each, BaseException) else each for each in found]


def _batch_json(results: Sequence[Found | Failed]) -> Response:
    """A BatchResponse, written one by one: 64,000 matches at once hold the interpreter for a third of a second."""
    written = b",".join(map(json_bytes, results))
    return Response(b'{"results":[%b]}' % written, media_type="application/json")
