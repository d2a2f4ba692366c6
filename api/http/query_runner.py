"""Finds the service for a request, and runs the slow parts of its searches in a limited number of threads."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from api.documents import Embedded, Found, SearchResponse
from api.http.body import BodyReader
from api.http.middleware.admission import SLOT, Slots
from api.http.middleware.every_request import COLLECTION
from api.http.middleware.rate_limit import charge
from api.http.responses import LOCATION_COLUMNS, check_columns, redact, search_response, timing
from api.observe.log import Stopwatch, current_record
from api.problems import CollectionUnavailable, NotFound, TextNotSupported
from api.search.collections import Collections
from api.search.engine import Engine
from api.search.query import Part, Query
from api.search.service import Answered, SearchService, Vector
from api.settings import RequestLimits
from index.collection import Collection

T = TypeVar("T")


class QueryRunner:
    """Opens collections and runs queries for routes on an event loop.

    Pictures are fetched in separate threads. Everything else runs in `max_searches` others, each with a slot in
    `searching`, so a query that waits for a host takes none of them. If callers must not see locations, these are
    removed from the reasons why a collection cannot be opened.
    """

    def __init__(self, collections: Collections, limits: RequestLimits, searching: Slots) -> None:
        self.collections = collections
        self.limits = limits
        self.bodies = BodyReader(limits)
        self._show_locations = limits.show_locations
        self._searching = searching
        self._fetching = Slots(limits.max_url_fetches, "pictures are being fetched from other hosts")
        self._fetchers = CapacityLimiter(limits.max_url_fetches)
        self._searchers = CapacityLimiter(limits.max_searches)

    async def service(self, request: Request) -> SearchService:
        """The service of the request's collection, opened if necessary. Raises Problem."""
        name = request.scope[COLLECTION]
        if not self.collections.is_single and name in self.collections.names:
            current_record().collection = name
        return await self.service_of(request, name)

    async def with_collection(self, request: Request) -> tuple[SearchService, Collection]:
        """The service, and the collection whose versions it follows. Raises Problem."""
        service = await self.service(request)
        if service.live.collection is None:
            raise NotFound("this server has one index version, and no collection")
        return service, service.live.collection

    async def service_of(self, request: Request, name: str) -> SearchService:
        """The service of a collection. A search that waits until it is open, which may take minutes, has no slot."""
        if SLOT in request.scope and name not in self.collections.open_services:
            request.scope[SLOT].release()
        try:
            return await self.collections.service(name)
        except CollectionUnavailable as problem:
            raise problem.with_detail(self.redacted(problem.detail, name)) from problem

    def redacted(self, text: str, name: str) -> str:
        """A message about a collection, as callers may read it."""
        return redact(text, show_locations=self._show_locations, known_locations=(self.collections.location(name),))

    def admit(self, request: Request, parts: Iterable[Part], searches: int = 1, cost: int = 1) -> None:
        """Admit a request with so many searches, for these parts; it counts as `cost` requests.

        Raises Overloaded if too few slots are free.
        """
        request.scope[SLOT].admit(searches)
        if count := sum(part.needs_fetch for part in parts):
            self._fetching.require(count)
        if cost > 1:
            charge(request, cost - 1)

    async def search(self, query: Query, service: SearchService, engine: Engine) -> SearchResponse:
        """The answer to a query; for a further page, by the engine of the page before. Raises Problem."""
        watch = Stopwatch()
        if query.options.get("cursor") is not None:
            engine = await to_thread.run_sync(service.engine_of, query, limiter=self._searchers)
        query = await self._prepared(query, service, engine, watch)
        # Converting a thousand matches takes milliseconds, for which other requests need not wait.
        return await self._run(
            engine, lambda: search_response(service.search(query, engine, watch), self._show_locations)
        )

    async def answer(
        self,
        query: Query,
        service: SearchService,
        engine: Engine,
        watch: Stopwatch,
        vectors: Sequence[Vector] | None = None,
    ) -> Answered:
        """Like `search` by this engine, for several collections. `vectors` are those of the query's parts, if known:
        threads that ask for them at once would each decode a picture.
        """
        query = await self._prepared(query, service, engine, watch)
        return await self._run(engine, partial(service.answer, query, engine, watch, vectors))

    async def vectors(
        self, parts: Sequence[Part], service: SearchService, engine: Engine, watch: Stopwatch
    ) -> list[Vector]:
        """The vectors of a query's parts, which have their pictures. Raises Problem."""
        return await self._run(engine, partial(service.vectors, engine, parts, watch))

    async def find(self, query: Query, service: SearchService, engine: Engine) -> Found:
        return Found(ok=await self.search(query, service, engine))

    async def embed(self, part: Part, service: SearchService, engine: Engine) -> Embedded:
        watch = Stopwatch()
        [vector] = await self.vectors(await self.fetched((part,), service, engine, watch), service, engine, watch)
        return Embedded(ok=vector.tolist(), timing_ms=timing(watch.milliseconds()))

    async def _prepared(self, query: Query, service: SearchService, engine: Engine, watch: Stopwatch) -> Query:
        """The query with its pictures, which leaves out the columns that callers must not see. Raises Problem."""
        check_columns(query.options, engine.searcher.filterable, self._show_locations)
        hidden = frozenset() if self._show_locations else LOCATION_COLUMNS
        return replace(query, hidden=hidden, parts=await self.fetched(query.parts, service, engine, watch))

    async def _run(self, engine: Engine, work: Callable[[], T]) -> T:
        """The result of the work, in a thread and with a slot. Raises Problem."""
        with self._searching.hold():
            try:
                return await to_thread.run_sync(work, limiter=self._searchers)
            except TextNotSupported as problem:
                # The model's own message has its folder.
                known = (engine.embedder.identity.model_id,)
                detail = redact(problem.detail, show_locations=self._show_locations, known_locations=known)
                raise problem.with_detail(detail) from problem

    async def fetched(
        self, parts: tuple[Part, ...], service: SearchService, engine: Engine, watch: Stopwatch
    ) -> tuple[Part, ...]:
        """The parts with their pictures. Raises Problem."""
        count = sum(part.needs_fetch for part in parts)
        if not count:
            return parts
        fetches = (to_thread.run_sync(service.fetch, part, engine, limiter=self._fetchers) for part in parts)
        with watch.stage("fetch"), self._fetching.hold(count):
            return tuple(await all_of(fetches))


async def all_of(answers: Iterable[Awaitable[T]]) -> list[T]:
    """The results, concurrently. Raises the failure that is first in order, once all have ended and need their slots no
    longer.
    """
    results = await asyncio.gather(*answers, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
