"""The HTTP interface: a plain FastAPI app over one SearchService."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI

from api.http.answering import Answering
from api.http.middleware.admission import Slots
from api.http.middleware.auth import install_access
from api.http.middleware.collection import CollectionMiddleware
from api.http.middleware.headers import HeadersMiddleware
from api.http.middleware.telemetry import CatchAll, follow, install_telemetry
from api.http.openapi import install_description
from api.http.problems import install_problems, problem_table
from api.http.routes.collections import collection_routes
from api.http.routes.duplicates import duplicate_routes
from api.http.routes.facets import facet_routes
from api.http.routes.images import image_routes
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
    app.add_middleware(CatchAll)
    limits = limits or RequestLimits()
    searching = Slots(limits.max_searches, "searches are being worked on")
    answering = Answering(collections, limits, searching)
    for routes in (
        *(search_routes, facet_routes, image_routes, version_routes),
        *(duplicate_routes, state_routes, collection_routes),
    ):
        app.include_router(routes(answering))
    install_web(app)
    access = access or Access()
    install_access(app, access, searching)
    app.add_middleware(HeadersMiddleware)
    metrics = metrics or Metrics()
    follow(collections, metrics, limits)
    app.add_middleware(CatchAll)
    install_telemetry(app, metrics, send_request_ids=send_request_ids)
    app.add_middleware(CollectionMiddleware, first=collections.first)
    install_description(app, limits, access)
    return app
