"""Routes that search and embed, and the one of facets: values that images share, to narrow a search down."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import TypeVar

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.documents import BatchResponse, EmbedResponse, FacetsOut, Failed, Found, SearchResponse, json_bytes
from api.http.openapi import BATCH_BODY, EMBED_BODY, SEARCH_BODY, parameters_of
from api.http.problem_responses import failed_item, problem_docs
from api.http.query_runner import QueryRunner
from api.http.requests import FACET_PARAMETERS, SEARCH_PARAMETERS, UPLOAD, read_texts
from api.http.responses import check_columns, index_out, json_response, model_out
from api.problems import BODY_PROBLEMS, SEARCH_PROBLEMS, Problem, ShardUnavailable
from api.search.page import facets_out
from api.search.query import Part, Query
from api.search.service import facets_of

T = TypeVar("T")
R = TypeVar("R")


def search_routes(runner: QueryRunner) -> APIRouter:
    """`POST` and `GET /search`; a search takes a slot."""
    router, bodies = APIRouter(tags=["search"]), runner.bodies

    @router.post(
        "/search",
        summary="The images nearest to a picture, a text, an indexed image, a vector, or a mix of them",
        response_model=SearchResponse,
        responses=problem_docs(*BODY_PROBLEMS, *SEARCH_PROBLEMS),
        openapi_extra={"requestBody": SEARCH_BODY, "parameters": parameters_of(UPLOAD)},
    )
    @router.get(
        "/search",
        name="search_by_parameters",
        summary="The images nearest to a text, a URL's picture or an indexed image, as parameters of the URL",
        response_model=SearchResponse,
        responses=problem_docs(*SEARCH_PROBLEMS),
        openapi_extra={"parameters": parameters_of(SEARCH_PARAMETERS)},
    )
    async def search(request: Request) -> Response:
        service = await runner.service(request)
        query = await bodies.search(request)
        runner.admit(request, query.parts)
        return json_response(await runner.search(query, service, service.engine))

    return router


def batch_routes(runner: QueryRunner) -> APIRouter:
    """`POST /search/batch` and `/embed`; each search and each embedding takes a slot."""
    router, bodies = APIRouter(tags=["search"]), runner.bodies

    @router.post(
        "/search/batch",
        summary="Several searches at once, each with its own result or problem",
        response_model=BatchResponse,
        responses=problem_docs(*BODY_PROBLEMS),
        openapi_extra={"requestBody": BATCH_BODY},
    )
    async def batch(request: Request) -> Response:
        service = await runner.service(request)
        queries, engine = await bodies.json(request, bodies.parse_batch), service.engine
        valid = [query for query in queries if isinstance(query, Query)]
        parts = chain.from_iterable(query.parts for query in valid)
        runner.admit(request, parts, searches=len(valid), cost=len(queries))
        found = await _gather(queries, lambda query: runner.find(query, service, engine))
        return await to_thread.run_sync(_batch_response, found)

    @router.post(
        "/embed",
        summary="Vectors of pictures or texts",
        response_model=EmbedResponse,
        responses=problem_docs(*BODY_PROBLEMS),
        openapi_extra={"requestBody": EMBED_BODY},
    )
    async def embed(request: Request) -> Response:
        service = await runner.service(request)
        parts, engine = await bodies.json(request, bodies.parse_embed_items), service.engine
        valid = [part for part in parts if isinstance(part, Part)]
        runner.admit(request, valid, searches=len(valid), cost=len(parts))
        vectors = await _gather(parts, lambda part: runner.embed(part, service, engine))
        model = model_out(engine.embedder.identity, runner.limits.show_locations)
        return json_response(EmbedResponse(index=index_out(engine.searcher), model=model, results=vectors))

    return router


async def _gather(items: Sequence[T | Problem], answer: Callable[[T], Awaitable[R]]) -> list[R | Failed]:
    """The answer to each item, or the problem with it; concurrently."""

    async def run(item: T | Problem) -> R:
        if isinstance(item, Problem):
            raise item
        return await answer(item)

    results = await asyncio.gather(*map(run, items), return_exceptions=True)
    return [failed_item(result) if isinstance(result, BaseException) else result for result in results]


def _batch_response(results: Sequence[Found | Failed]) -> Response:
    """A BatchResponse, serialised in parts: 64,000 matches at once would block all threads for a third of a second."""
    joined = b",".join(map(json_bytes, results))
    return Response(b'{"results":[%b]}' % joined, media_type="application/json")


def facet_routes(runner: QueryRunner) -> APIRouter:
    """`GET /facets`."""
    router, limits = APIRouter(tags=["search"]), runner.limits

    @router.get(
        "/facets",
        summary="The values that recur among the images that pass a filter, with counts; for a column without its own "
        "condition",
        response_model=FacetsOut,
        responses=problem_docs(ShardUnavailable),
        openapi_extra={"parameters": parameters_of(FACET_PARAMETERS)},
    )
    async def facets(request: Request) -> Response:
        where = FACET_PARAMETERS.read(read_texts(request.query_params)).get("filter")
        searcher = (await runner.service(request)).engine.searcher
        check_columns({"filter": where}, searcher.filterable, limits.show_locations)
        counts = await to_thread.run_sync(facets_of, searcher, where)
        columns = facets_out(counts, searcher.filterable)
        return json_response(FacetsOut(index=index_out(searcher), rows=counts.rows, columns=columns))

    return router
