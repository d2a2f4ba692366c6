"""Routes that list the server's collections, and search several of them."""

import asyncio
import heapq
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from itertools import islice, repeat
from urllib.parse import quote

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import URL

from api.documents import (
    CollectionMatchOut,
    CollectionOut,
    CollectionsOut,
    CollectionsSearchResponse,
    SearchedOut,
    SearchResponse,
)
from api.errors import SEARCH_PROBLEMS, CollectionNotFound, Problem, invalid
from api.http.body import BodyReader
from api.http.middleware.auth import KEY, require_collection
from api.http.openapi import COLLECTIONS_BODY
from api.http.problem_documents import problem_docs
from api.http.query_runner import QueryRunner
from api.http.requests import COLLECTIONS_SEARCH
from api.http.responses import json_response, model_out, timing
from api.observe.log import Stopwatch
from api.search.collections import CollectionState
from api.search.engine import Engine
from api.search.query import Query


def collection_routes(runner: QueryRunner) -> APIRouter:
    """`GET /collections`, and `POST /search/collections`.

    All routes are below `/collections/NAME/` too: `api.http.middleware.every_request` strips this prefix.
    """
    router = APIRouter(tags=["collections"])
    bodies = BodyReader(runner.limits)

    @router.get("/collections", summary="The collections of this server that the caller may search")
    async def collections(request: Request) -> CollectionsOut:
        key = request.scope.get(KEY)
        names = [name for name in runner.collections.names if key is None or key.allows(name)]
        states = await asyncio.gather(*map(runner.collections.state, names))
        return CollectionsOut(collections=[_collection_out(state, runner) for state in states])

    @router.get("/collections/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:
        # Relative, because a proxy may add a prefix.
        return RedirectResponse(str(URL(f"./{quote(name)}/").replace(query=request.url.query)))

    @router.post(
        "/search/collections",
        name="search_collections",
        summary="The nearest images in several collections with the same model, merged by score",
        response_model=CollectionsSearchResponse,
        responses=problem_docs(*SEARCH_PROBLEMS, CollectionNotFound),
        openapi_extra={"requestBody": COLLECTIONS_BODY},
    )
    async def search(request: Request) -> Response:
        body = await bodies.json(request, COLLECTIONS_SEARCH.read)
        names = list(dict.fromkeys(body["collections"]))
        for name in names:
            require_collection(request.scope, name)
        services = {name: await runner.service_of(request, name) for name in names}
        query = await to_thread.run_sync(bodies.query_of, body)  # pictures in base64 may be large
        _require_mergeable(query)
        engines = {name: service.engine for name, service in services.items()}
        engine = _common_engine(engines)
        runner.admit(request, query.parts, searches=len(names), cost=len(names))
        watch = Stopwatch()
        vectors = await runner.vectors(query.parts, services[names[0]], engine, watch)
        page = slice(query.offset, query.offset + query.k)
        all_pages = replace(query, options={**query.options, "k": page.stop, "offset": 0})
        with watch.stage("search"):
            searches = (runner.search(all_pages, services[name], engines[name], vectors) for name in names)
            answers = await asyncio.gather(*map(_search_named, names, searches))
        return json_response(_merge(dict(zip(names, answers, strict=True)), page, watch))

    return router


def _collection_out(state: CollectionState, runner: QueryRunner) -> CollectionOut:
    manifest, failure = state.manifest, state.failure
    return {
        "name": state.name,
        "path": f"/collections/{quote(state.name)}/",
        "state": "open" if state.is_open else "closed" if failure is None else "unavailable",
        "ntotal": manifest.ntotal if manifest else None,
        "version": manifest.version if manifest else None,
        "model": model_out(manifest.model, runner.limits.show_locations) if manifest else None,
        "failure": failure and runner.redacted(failure, state.name),
    }


def _common_engine(engines: Mapping[str, Engine]) -> Engine:
    """The engine that embeds for all collections. Raises Problem if their models differ."""
    first, *others = engines.items()
    for name, engine in others:
        if engine.embedder.identity.fingerprint != first[1].embedder.identity.fingerprint:
            expected = "collections with one model, because scores of different models cannot be compared"
            raise invalid("collections", expected, f"{first[0]} and {name}, whose models differ")
    return first[1]


async def _search_named(name: str, search: Awaitable[SearchResponse]) -> SearchResponse:
    """The answer. A Problem names the collection, because collections may have different columns."""
    try:
        return await search
    except Problem as problem:
        raise problem.with_detail(f"in {name}: {problem.detail}") from problem


def _require_mergeable(query: Query) -> None:
    """Raises Problem for a query whose matches in several collections cannot be merged."""
    if diversity := query.options.get("diversity"):
        raise invalid("diversity", "none, because matches of several collections are merged by score", diversity)
    for part in query.parts:
        if part.image_id is not None:
            expected = "a picture, words or a vector, because an id belongs to one collection: search it there"
            raise invalid(part.field_path.format("id"), expected, part.image_id)


def _merge(answers: Mapping[str, SearchResponse], page: slice, watch: Stopwatch) -> CollectionsSearchResponse:
    """One answer with a page of the matches, which each answer has by score and then by id."""
    named = [zip(answer["matches"], repeat(name)) for name, answer in sorted(answers.items())]
    ranked = heapq.merge(*named, key=lambda pair: (-pair[0].score, pair[0].image_id))
    matches = [
        CollectionMatchOut(**{**vars(match), "picture": f"/collections/{quote(name)}{match.picture}"}, collection=name)
        for match, name in islice(ranked, page.start, page.stop)
    ]
    searched = [answer["searched"] for answer in answers.values()]
    return {
        "matches": matches,
        "indexes": {name: answer["index"] for name, answer in answers.items()},
        "searched": SearchedOut(rows=sum(each["rows"] for each in searched), of=sum(each["of"] for each in searched)),
        "model": next(iter(answers.values()))["model"],
        "timing_ms": timing(watch.milliseconds()),
    }
