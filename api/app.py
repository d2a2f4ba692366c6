"""The HTTP interface: a plain FastAPI app over one SearchService."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from anyio import to_thread
from fastapi import FastAPI

from api.problems import install_problems, problem_table
from api.routes_images import image_routes
from api.routes_search import search_routes
from api.routes_state import state_routes
from api.schemas import ProblemOut, SearchRequest
from api.service import SearchService
from api.settings import RequestLimits

logger = logging.getLogger(__name__)

_DESCRIPTION: Final = f"""Finds images that look alike.

Every error is an `application/problem+json` document (RFC 9457). Its `type` never changes its meaning:

{problem_table()}
"""


def create_app(service: SearchService, *, limits: RequestLimits | None = None) -> FastAPI:
    """The app that answers from `service`; it warms the service up when it starts."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await to_thread.run_sync(service.warm_up)
        except Exception:
            # The process stays up to say so: /readyz keeps callers away, and the log has the cause.
            logger.exception("the warm-up query failed: not ready")
        yield

    app = FastAPI(title="Likeness", version="1", description=_DESCRIPTION, lifespan=lifespan)
    install_problems(app)
    app.include_router(search_routes(service, limits or RequestLimits()))
    app.include_router(image_routes(service))
    app.include_router(state_routes(service))
    _add_schemas(app)
    return app


def _add_schemas(app: FastAPI) -> None:
    """Name in the OpenAPI document the models that no route mentions in its signature."""
    generate: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document["components"]["schemas"]
        for model in (SearchRequest, ProblemOut):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
