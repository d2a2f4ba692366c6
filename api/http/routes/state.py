"""Routes that describe this server and its state."""

from fastapi import APIRouter

from api.documents import IndexDetailsOut
from api.errors import Problem
from api.http.problems import problem_docs
from api.http.responses import index_details
from api.search.service import SearchService
from api.settings import RequestLimits


def state_routes(service: SearchService, limits: RequestLimits) -> APIRouter:
    """`/index`, `/healthz` and `/readyz`."""
    router = APIRouter(tags=["state"])

    @router.get("/index", summary="The index version that answers, and how well", response_model=IndexDetailsOut)
    async def index() -> IndexDetailsOut:
        searcher = service.engine.searcher
        return index_details(searcher.manifest, searcher.filterable, limits.show_locations)

    @router.get("/healthz", summary="The process is up")
    async def healthz() -> dict[str, str]:
        return {"status": "up"}

    @router.get("/readyz", summary="A query can be answered", responses=problem_docs("not-ready"))
    async def readyz() -> dict[str, str]:
        if not service.live.has_answered:
            raise Problem("not-ready", "no query can be answered now; the server's log says why")
        return {"status": "ready", "index": service.engine.searcher.version}

    return router
