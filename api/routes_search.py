"""Routes that search and embed."""

from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from api.access import charge
from api.answering import Answering, settled
from api.asked import BatchRequest, EmbedRequest, SearchRequest
from api.body import problem_of_invalid, read_json, read_search
from api.errors import Problem
from api.openapi import (
    BATCH_ANSWER,
    BATCH_BODY,
    EMBED_ANSWER,
    EMBED_BODY,
    SEARCH_ANSWER,
    answers_like,
    search_body,
)
from api.overload import Places
from api.problems import failed, problem_docs
from api.query import Part, Query
from api.reading import check_count, parts_of, query_of
from api.schemas import BatchResponse, Embedded, EmbedResponse, Found, IndexOut, ModelOut, SearchResponse
from api.service import SearchService
from api.settings import RequestLimits

_BODY_PROBLEMS: Final = (
    *("malformed-body", "request-timeout", "too-large", "unsupported-media-type", "invalid-request", "internal"),
)
_SEARCH_PROBLEMS: Final = (
    *_BODY_PROBLEMS,
    *("bad-url", "forbidden-scheme", "forbidden-address", "url-not-usable", "url-unreachable", "url-timeout"),
    *("text-not-supported", "unusable-image", "shard-unavailable"),
)


def search_routes(service: SearchService, limits: RequestLimits, searching: Places) -> APIRouter:
    """`POST /search`, `/search/batch` and `/embed`; each search and each embedding takes a place."""
    router = APIRouter(tags=["search"])
    answering = Answering(service, limits, searching)

    @router.post(
        "/search",
        summary="The nearest images to a picture, a text, an image of the index, a vector, or a mix of them",
        response_model=SearchResponse,
        responses={**answers_like(SEARCH_ANSWER), **problem_docs(*_SEARCH_PROBLEMS)},
        openapi_extra={"requestBody": search_body(limits)},
    )
    async def search(request: Request) -> Response:
        query, engine = await read_search(request, limits), service.engine
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
        asked, engine = await read_json(request, BatchRequest, limits), service.engine
        check_count("searches", len(asked.searches), limits)
        queries = [_query_or_problem(document, limits) for document in asked.searches]
        answering.admit(request, [query.parts for query in queries if isinstance(query, Query)])
        charge(request, len(queries) - 1)

        async def answer(query: Query | Problem) -> Found:
            if isinstance(query, Problem):
                raise query
            return Found(ok=await answering.search(query, engine))

        found = await settled([partial(answer, query) for query in queries])
        return _json(BatchResponse(results=[failed(each) if isinstance(each, Exception) else each for each in found]))

    @router.post(
        "/embed",
        summary="Vectors of pictures or texts",
        response_model=EmbedResponse,
        responses={**answers_like(EMBED_ANSWER), **problem_docs(*_BODY_PROBLEMS)},
        openapi_extra={"requestBody": EMBED_BODY},
    )
    async def embed(request: Request) -> Response:
        asked, engine = await read_json(request, EmbedRequest, limits), service.engine

        async def answer(part: Part | Problem) -> Embedded:
            if isinstance(part, Problem):
                raise part
            return await answering.embed(part, engine)

        parts = parts_of(asked, limits)
        answering.admit(request, [(part,) for part in parts if isinstance(part, Part)])
        charge(request, len(parts) - 1)
        found = await settled([partial(answer, part) for part in parts])
        results = [failed(each) if isinstance(each, Exception) else each for each in found]
        index = IndexOut(version=engine.version, ntotal=engine.searcher.ntotal)
        return _json(EmbedResponse(index=index, model=ModelOut.of(engine.model), results=results))

    return router


def _query_or_problem(document: object, limits: RequestLimits) -> Query | Problem:
    try:
        return query_of(SearchRequest.model_validate(document), limits)
    except ValidationError as error:
        return problem_of_invalid(error, SearchRequest)
    except Problem as problem:
        return problem


def _json(document: BaseModel) -> Response:
    """The document without FastAPI's second validation against its own model."""
    return Response(document.model_dump_json(), media_type="application/json")
