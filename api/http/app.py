"""The HTTP interface: a FastAPI app over one SearchService or several collections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware

from api.http.middleware.admission import ConcurrencyLimit, Slots
from api.http.middleware.every_request import EveryRequestMiddleware
from api.http.middleware.permissions import PermissionMiddleware
from api.http.openapi import guarded_routes, install_openapi, open_routes
from api.http.problem_responses import PROBLEM_HANDLERS, problem_table
from api.http.query_runner import QueryRunner
from api.http.routes.collections import collection_routes
from api.http.routes.images import duplicate_routes, image_routes
from api.http.routes.metrics import EngineMetrics, metrics_routes
from api.http.routes.pages import PAGES, install_web
from api.http.routes.search import batch_routes, facet_routes, search_routes
from api.http.routes.versions import index_routes, probe_routes
from api.observe.metrics import Metrics
from api.search.collections import Collections
from api.search.service import SearchService
from api.settings import Access, RequestLimits

_DESCRIPTION: Final = f"""Finds images that look alike.

Every error is an `application/problem+json` document (RFC 9457), whose `type` never changes its meaning.

<details><summary>Types of problems</summary>

{problem_table()}

</details>
"""


def create_app(
    served: SearchService | Collections,
    *,
    limits: RequestLimits | None = None,
    access: Access | None = None,
    metrics: Metrics | None = None,
    send_request_ids: bool = True,
) -> FastAPI:
    """The app for one or several collections. It warms up open ones, follows their live index versions, and closes
    them at the end. Below `/collections/NAME/` are all routes again, for that collection.

    `send_request_ids`: whether answers have the header X-Request-ID; otherwise a proxy adds it.
    """
    collections = Collections.of(served) if isinstance(served, SearchService) else served

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await collections.start()
        yield
        await collections.close()

    # The documentation pages are in `api.http.routes.pages`.
    app = FastAPI(
        title="Likeness",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,  # names the functions of generated clients
        redirect_slashes=False,  # a redirect has an empty body, but unknown paths get a problem document
        exception_handlers=PROBLEM_HANDLERS,
    )
    limits, access, metrics = limits or RequestLimits(), access or Access(), metrics or Metrics()
    searching = Slots(limits.max_searches, "searches are in progress")
    runner = QueryRunner(collections, limits, searching)
    guarded = guarded_routes(needs_key=access.keys is not None)
    for routes in (
        *(search_routes, batch_routes, facet_routes, image_routes, duplicate_routes),
        *(index_routes, collection_routes),
    ):
        app.include_router(routes(runner), **guarded)
    app.include_router(metrics_routes(metrics), **guarded)
    app.include_router(probe_routes(runner), **open_routes())
    install_web(app)
    _install_access(app, access, searching)
    app.add_middleware(
        EveryRequestMiddleware, metrics=metrics, first=collections.first, send_request_ids=send_request_ids
    )
    metrics.register(EngineMetrics(collections, limits.show_locations))
    collections.batchers.on_batch.append(metrics.count_batch)
    install_openapi(app)
    return app


def _install_access(app: FastAPI, access: Access, searching: Slots) -> None:
    """Limit callers, rates and concurrent requests as `access` says, and searches to the slots of `searching`.

    The middleware added last runs first: CORS, key and rate, then the limit on concurrent requests.
    """
    # A defect of a route is answered, and logged, even if its request is late.
    app.add_middleware(ExceptionMiddleware, handlers=PROBLEM_HANDLERS)
    app.add_middleware(
        ConcurrencyLimit, limit=access.max_ongoing_requests, timeout_s=access.request_timeout_s, searching=searching
    )
    app.add_middleware(PermissionMiddleware, access=access, pages=PAGES)
    # Inside CORS, whose headers let other sites' pages read the problem.
    app.add_middleware(ExceptionMiddleware, handlers=PROBLEM_HANDLERS)
    if access.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(access.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "X-API-Key", "X-Request-ID", "API-Version"],
            expose_headers=["Retry-After", "X-Request-ID", "API-Version", "ETag"],
        )
