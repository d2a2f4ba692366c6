"""Routes that search and embed."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from api.errors import Problem
from api.http.body import BodyReader, valid
from api.http.middleware.admission import Slots
from api.http.middleware.auth import charge
from api.http.openapi import (
    BATCH_ANSWER,
    BATCH_BODY,
    EMBED_ANSWER,
    EMBED_BODY,
    SEARCH_ANSWER,
    answers_like,
    search_body,
)
from api.http.parse import check_counts, check_lengths, parts_of, query_of
from api.http.problems import failed, problem_docs
from api.http.requests import BatchRequest, EmbedRequest, SearchRequest
from api.http.responses import BatchResponse, Embedded, EmbedResponse, Failed, Found, IndexOut, ModelOut, SearchResponse
from api.http.stages import Answering, gather_results
from api.search.query import Part, Query
from api.search.service import SearchService
from api.settings import RequestLimits

_BODY_PROBLEMS: Final = (
    *("malformed-body", "request-timeout", "too-large", "unsupported-media-type", "invalid-request", "internal"),
)
_SEARCH_PROBLEMS: Final = (
    *_BODY_PROBLEMS,
    *("bad-url", "forbidden-scheme", "forbidden-address", "url-not-usable", "url-unreachable", "url-timeout"),
    *("text-not-supported", "unusable-image", "shard-unavailable"),
)


def search_routes(service: SearchService, limits: RequestLimits, searching: Slots) -> APIRouter:
    """`POST /search`, `/search/batch` and `/embed`; each search and each embedding takes a place."""
    router = APIRouter(tags=["search"])
    answering = Answering(service, limits, searching)
    bodies = BodyReader(limits)

    @router.post(
        "/search",
        summary="The nearest images to a picture, a text, an image of the index, a vector, or a mix of them",
        response_model=SearchResponse,
        responses={**answers_like(SEARCH_ANSWER), **problem_docs(*_SEARCH_PROBLEMS)},
        openapi_extra={"requestBody": search_body(limits)},
    )
    async def search(request: Request) -> Response:
        query, engine = await bodies.search(request, service.engine.model.dim), service.engine
        answering.admit(request, [query.parts])
        return _json(await answering.search(query, engine))

    @router.post(
        "/search/batch",
        summary="Many searches, each with its own result or problem",
        response_model=BatchResponse,
        responses={**answers_like(BATCH_ANSWER), **problem_docs(*_BODY_PROBLEMS)},
        openapi_extra={"requestBody": BATCH_BODY},
    )
    async def batch(request: Request) -> Response:
        reading = partial(_queries_of, dim=service.engine.model.dim, limits=limits)
        queries, engine = await bodies.json(request, reading), service.engine
        answering.admit(request, [query.parts for query in queries if isinstance(query, Query)])
        charge(request, len(queries) - 1)

        async def answer(query: Query | Problem) -> Found:
            if isinstance(query, Problem):
                raise query
            return Found(ok=await answering.search(query, engine))

        found = await gather_results([partial(answer, query) for query in queries])
        results = [failed(each) if isinstance(each, Exception) else each for each in found]
        return await to_thread.run_sync(_batch_json, results)

    @router.post(
        "/embed",
        summary="Vectors of pictures or texts",
        response_model=EmbedResponse,
        responses={**answers_like(EMBED_ANSWER), **problem_docs(*_BODY_PROBLEMS)},
        openapi_extra={"requestBody": EMBED_BODY},
    )
    async def embed(request: Request) -> Response:
        parts, engine = await bodies.json(request, partial(_parts_of, limits=limits)), service.engine

        async def answer(part: Part | Problem) -> Embedded:
            if isinstance(part, Problem):
                raise part
            return await answering.embed(part, engine)

        answering.admit(request, [(part,) for part in parts if isinstance(part, Part)])
        charge(request, len(parts) - 1)
        found = await gather_results([partial(answer, part) for part in parts])
        results = [failed(each) if isinstance(each, Exception) else each for each in found]
        index = IndexOut(version=engine.version, ntotal=engine.searcher.ntotal)
        return _json(
            EmbedResponse(index=index, model=ModelOut.of(engine.model, limits.show_locations), results=results)
        )

    return router


def _queries_of(document: object, *, dim: int, limits: RequestLimits) -> list[Query | Problem]:
    """For each search of a batch its query, or the problem with it."""
    check_counts(document, limits, "searches")
    return [_query_or_problem(each, dim, limits) for each in valid(document, BatchRequest).searches]


def _query_or_problem(document: object, dim: int, limits: RequestLimits) -> Query | Problem:
    try:
        check_lengths(document, dim, limits)
        return query_of(valid(document, SearchRequest), limits)
    except Problem as problem:
        return problem


def _parts_of(document: object, *, limits: RequestLimits) -> list[Part | Problem]:
    """For each item to embed its part, or the problem with it."""
    check_counts(document, limits, "images", "texts", "urls")
    return parts_of(valid(document, EmbedRequest), limits)


def _batch_json(results: Sequence[Found | Failed]) -> Response:
    """A BatchResponse, written one by one: 64,000 matches at once hold the interpreter for a third of a second."""
    written = ",".join(each.model_dump_json() for each in results)
    return Response(f'{{"results":[{written}]}}', media_type="application/json")


def _json(document: BaseModel) -> Response:
    """The document without FastAPI's second validation against its own model."""
    return Response(document.model_dump_json(), media_type="application/json")
