"""The service of a request, and the slow parts of a search: in threads, as many at once as there are places."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from api.documents import Embedded, SearchResponse
from api.errors import Problem
from api.http.middleware.admission import Slots, admit
from api.http.middleware.every_request import COLLECTION
from api.http.middleware.rate_limit import charge
from api.http.responses import check_filter, redact, search_response, timing
from api.observe.log import Stopwatch, notes
from api.search.collections import Collections
from api.search.engine import Engine
from api.search.query import Part, Query
from api.search.service import SearchService, Vector
from api.settings import RequestLimits
from index.collection import Collection


class Answering:
    """Collections for routes on an event loop. Why one cannot be opened is told without its location, if callers must
    not know that.

    Pictures are fetched in threads of their own, all else in `max_searches` others, each of which has a place in
    `searching`. A query that waits for a host takes none of them.
    """

    def __init__(self, collections: Collections, limits: RequestLimits, searching: Slots) -> None:
        self.collections = collections
        self.limits = limits
        self._locations = limits.show_locations
        self._searching = searching
        self._fetching = Slots(limits.max_url_fetches, "pictures are being fetched from other hosts")
        self._fetchers = CapacityLimiter(limits.max_url_fetches)
        self._searchers = CapacityLimiter(limits.max_searches)

    async def service(self, request: Request) -> SearchService:
        """The service of the request's collection, opened if need be. Raises Problem."""
        name = request.scope[COLLECTION]
        if not self.collections.is_single and name in self.collections.names:
            notes().collection = name
        return await self.named(name)

    async def with_collection(self, request: Request) -> tuple[SearchService, Collection]:
        """The service, and the collection whose versions it follows. Raises Problem."""
        service = await self.service(request)
        if service.live.source is None:
            raise Problem("not-found", "this server has one index version, and no collection")
        return service, service.live.source.collection

    async def named(self, name: str) -> SearchService:
        try:
            return await self.collections.service(name)
        except Problem as problem:
            if problem.kind.slug != "collection-unavailable":
                raise
            raise problem.saying(self.shown(problem.detail, name)) from problem

    def shown(self, text: str, name: str) -> str:
        """What is said of a collection, as callers may read it."""
        return redact(text, show=self._locations, places=(self.collections.location(name),))

    def admit(self, request: Request, searches: Sequence[Sequence[Part]], cost: int = 1) -> None:
        """Raises Problem when there are too few places for a request with searches for these parts. One that is let in
        counts as `cost` requests.
        """
        admit(request, self._searching, len(searches))
        if count := sum(part.needs_fetch for parts in searches for part in parts):
            self._fetching.require(count)
        if cost > 1:
            charge(request, cost - 1)

    async def search(
        self, query: Query, service: SearchService, engine: Engine, vectors: Sequence[Vector] | None = None
    ) -> SearchResponse:
        """With `vectors` of the query's parts, these are not embedded again."""
        check_filter(query.options.get("filter"), engine.searcher.filterable, self._locations)
        watch = Stopwatch()
        if vectors is None:
            query = replace(query, parts=await self.fetched(query.parts, service, engine, watch))
        with self._searching.taking(), self._redacted(engine):
            # The document of a thousand matches takes milliseconds; other requests need not wait for that.
            return await to_thread.run_sync(
                lambda: search_response(service.search(query, engine, watch, vectors), self._locations),
                limiter=self._searchers,
            )

    async def vectors(
        self, parts: tuple[Part, ...], service: SearchService, engine: Engine, watch: Stopwatch
    ) -> list[Vector]:
        """The vectors of a query's parts, which any index of the same model can be searched with."""
        parts = await self.fetched(parts, service, engine, watch)
        with self._searching.taking(), self._redacted(engine):
            return await to_thread.run_sync(service.vectors, engine, parts, watch, limiter=self._searchers)

    async def embed(self, part: Part, service: SearchService, engine: Engine) -> Embedded:
        watch = Stopwatch()
        (vector,) = await self.vectors((part,), service, engine, watch)
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
            raise problem.saying(detail) from problem

    async def fetched(
        self, parts: tuple[Part, ...], service: SearchService, engine: Engine, watch: Stopwatch
    ) -> tuple[Part, ...]:
        count = sum(part.needs_fetch for part in parts)
        if not count:
            return parts
        fetches = (to_thread.run_sync(service.fetch, part, engine, limiter=self._fetchers) for part in parts)
        with watch.stage("fetch"), self._fetching.taking(count):
            found = await asyncio.gather(*fetches, return_exceptions=True)  # they take places until the last has ended
        if failures := [each for each in found if isinstance(each, BaseException)]:
            raise failures[0]
        return tuple(each for each in found if isinstance(each, Part))
