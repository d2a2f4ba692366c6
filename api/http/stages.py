"""Runs the stages of queries in separate threads, so that slow hosts delay only the queries that name them."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from fastapi import Request

from api.access.locations import redact
from api.errors import Problem
from api.http.middleware.admission import Slots, admit
from api.http.parse import check_filter
from api.http.responses import LOCATION_COLUMNS, Embedded, SearchResponse, TimingOut
from api.search.engine import Engine
from api.search.query import Part, Query, Stopwatch
from api.search.service import SearchService
from api.settings import RequestLimits

T = TypeVar("T")


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
        """See `SearchService.search`."""
        if not self._locations:
            check_filter(query.options.get("filter"), engine.searcher.filterable.keys() - LOCATION_COLUMNS)
        watch = Stopwatch()
        fetched = replace(query, parts=await self._fetched(query.parts, watch))
        with self._searching.taking(), self._redacted(engine):
            # The document of a thousand matches takes milliseconds; other requests need not wait for that.
            return await to_thread.run_sync(
                lambda: SearchResponse.of(self._service.search(fetched, engine=engine, watch=watch), self._locations),
                limiter=self._searchers,
            )

    async def embed(self, part: Part, engine: Engine) -> Embedded:
        """See `SearchService.embed`."""
        watch = Stopwatch()
        (fetched,) = await self._fetched((part,), watch)
        with self._searching.taking(), self._redacted(engine):
            vector = await to_thread.run_sync(self._service.embed, fetched, engine, watch, limiter=self._searchers)
        return Embedded(ok=vector.tolist(), timing_ms=TimingOut.of(watch.milliseconds()))

    @contextmanager
    def _redacted(self, engine: Engine) -> Iterator[None]:
        """The model's own words, why it takes no text, may name its folder."""
        try:
            yield
        except Problem as problem:
            if problem.kind.slug != "text-not-supported":
                raise
            detail = redact(problem.detail, show=self._locations, places=(engine.model.model_id,))
            raise Problem(problem.kind.slug, detail, **problem.extensions) from problem

    async def _fetched(self, parts: tuple[Part, ...], watch: Stopwatch) -> tuple[Part, ...]:
        urls = sum(part.url is not None for part in parts)
        if not urls:
            return parts

        def fetch(part: Part) -> Callable[[], Awaitable[Part]]:
            return lambda: to_thread.run_sync(self._service.fetch, part, limiter=self._fetchers)

        with watch.stage("fetch"), self._fetching.taking(urls):
            found = await gather_results([fetch(part) for part in parts])
        for each in found:
            if isinstance(each, Exception):
                raise each
        return tuple(each for each in found if isinstance(each, Part))


async def gather_results(calls: Sequence[Callable[[], Awaitable[T]]]) -> "list[T | Exception]":
    """What each call returned or raised, in their order. They run concurrently."""
    results: dict[int, T | Exception] = {}

    async def run(number: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[number] = await call()
        except Exception as error:
            results[number] = error

    async with anyio.create_task_group() as group:
        for number, call in enumerate(calls):
            group.start_soon(run, number, call)
    return [results[number] for number in range(len(calls))]
