"""The HTTP interface: a plain FastAPI app over one SearchService."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from fastapi import FastAPI

from api.http.middleware.admission import Slots
from api.http.middleware.auth import install_access
from api.http.middleware.headers import HeadersMiddleware
from api.http.middleware.telemetry import CatchAll, follow, install_telemetry
from api.http.openapi import install_description
from api.http.problems import install_problems, problem_table
from api.http.routes.images import image_routes
from api.http.routes.pages import install_web
from api.http.routes.search import search_routes
from api.http.routes.versions import state_routes, version_routes
from api.observe.metrics import Metrics
from api.search.service import SearchService
from api.settings import Access, RequestLimits

logger = logging.getLogger(__name__)

_DESCRIPTION: Final = f"""Finds images that look alike.

Every error is an `application/problem+json` document (RFC 9457). Its `type` never changes its meaning:

{problem_table()}
"""


def create_app(
    service: SearchService,
    *,
    limits: RequestLimits | None = None,
    access: Access | None = None,
    metrics: Metrics | None = None,
    send_request_ids: bool = True,
) -> FastAPI:
    """The app that answers from `service`: warms it up, follows the live index version, and closes it at the end.

    `send_request_ids`: whether each answer has the header X-Request-ID, which a proxy may add instead.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.decoders.start()
        try:
            await to_thread.run_sync(service.live.warm_up)
        except Exception:
            # The process stays up to report this: /readyz keeps callers away, and the log has the cause.
            logger.exception("the warm-up query failed: not ready")
        service.live.start()
        yield
        await to_thread.run_sync(service.close)

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
    app.include_router(search_routes(service, limits, searching))
    app.include_router(image_routes(service, limits))
    if service.live.source is not None:
        app.include_router(version_routes(service.live, service.live.source.collection, limits))
    app.include_router(state_routes(service, limits))
    install_web(app)
    access = access or Access()
    install_access(app, access, searching)
    app.add_middleware(HeadersMiddleware)
    metrics = metrics or Metrics()
    follow(service, metrics, limits)
    app.add_middleware(CatchAll)
    install_telemetry(app, metrics, send_request_ids=send_request_ids)
    install_description(app, limits, access)
    return app
