"""The service that a request is for."""

from fastapi import Request

from api.errors import Problem
from api.http.middleware.collection import COLLECTION
from api.http.responses import redact
from api.observe.log import notes
from api.search.collections import Collections
from api.search.service import SearchService
from api.settings import RequestLimits
from index.collection import Collection


class Services:
    """Collections for routes. Why one cannot be opened is told without its location if callers must not know that."""

    def __init__(self, collections: Collections, limits: RequestLimits) -> None:
        self.collections = collections
        self._locations = limits.show_locations

    async def of(self, request: Request) -> SearchService:
        """The service of the request's collection, opened if need be. Raises Problem."""
        name = request.scope[COLLECTION]
        if not self.collections.is_single and name in self.collections.names:
            notes().collection = name
        return await self.named(name)

    async def with_collection(self, request: Request) -> tuple[SearchService, Collection]:
        """The service, and the collection whose versions it follows. Raises Problem."""
        service = await self.of(request)
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
