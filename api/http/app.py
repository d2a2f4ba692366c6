"""The HTTP interface: a plain FastAPI app over one SearchService."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from api.http.answering import Answering
from api.http.middleware.admission import ConcurrencyLimit, Slots
from api.http.middleware.auth import AuthMiddleware
from api.http.middleware.every_request import CatchAll, EveryRequestMiddleware
from api.http.openapi import install_description
from api.http.problems import install_problems, problem_table
from api.http.routes.collections import collection_routes
from api.http.routes.duplicates import duplicate_routes
from api.http.routes.facets import facet_routes
from api.http.routes.images import image_routes
from api.http.routes.metrics import follow, metrics_routes
from api.http.routes.pages import install_web
from api.http.routes.search import search_routes
from api.http.routes.versions import state_routes, version_routes
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
    """The app that answers from a collection or several: warms up what is open, follows its live index version, and
    closes all at the end. `/collections/NAME/` has every route again, for this collection.

    `send_request_ids`: whether each answer has the header X-Request-ID, which a proxy may add instead.
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
        redirect_slashes=False,  # a redirect has an empty body: a path that is not there gets a problem document
    )
    install_problems(app)
    limits, access, metrics = limits or RequestLimits(), access or Access(), metrics or Metrics()
    searching = Slots(limits.max_searches, "searches are being worked on")
    answering = Answering(collections, limits, searching)
    for routes in (
        *(search_routes, facet_routes, image_routes, version_routes),
        *(duplicate_routes, state_routes, collection_routes),
    ):
        app.include_router(routes(answering))
    app.include_router(metrics_routes(metrics))
    install_web(app)
    _install_access(app, access, searching)
    app.add_middleware(
        EveryRequestMiddleware, metrics=metrics, first=collections.first, send_request_ids=send_request_ids
    )
    follow(collections, metrics, limits)
    install_description(app, limits, access)
    return app


def _install_access(app: FastAPI, access: Access, searching: Slots) -> None:
    """Limit `app` to the callers and rates that `access` allows, and to searches for which `searching` has places.

    What is added later comes first: CORS, key and rate, then the limit on concurrent work.
    """
    app.add_middleware(CatchAll)  # within CORS, whose headers let other sites' pages read the problem
    app.add_middleware(
        ConcurrencyLimit, most=access.max_ongoing_requests, timeout_s=access.request_timeout_s, searching=searching
    )
    app.add_middleware(AuthMiddleware, access=access)
    if access.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(access.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "X-API-Key", "X-Request-ID", "API-Version"],
            expose_headers=["Retry-After", "X-Request-ID", "API-Version", "ETag"],
        )
