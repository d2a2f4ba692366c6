"""Routes that list the server's collections, and search several of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from urllib.parse import quote

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import URL

from api.documents import CollectionOut, CollectionsOut, CollectionsSearchResponse
from api.errors import BODY_PROBLEMS, SEARCH_PROBLEMS, CollectionNotFound, Problem, invalid
from api.http.merged_answers import have_one_model, merge, skipped
from api.http.middleware.auth import KEY, require_collection
from api.http.openapi import COLLECTIONS_BODY
from api.http.problem_documents import problem_docs
from api.http.query_runner import QueryRunner
from api.http.requests import COLLECTIONS_SEARCH
from api.http.responses import json_response, model_out
from api.observe.log import Stopwatch
from api.search.collections import CollectionState
from api.search.cursor import Cursor
from api.search.engine import Engine
from api.search.page import naming_option
from api.search.query import Part, Query, options_in
from api.search.service import Answered, SearchService
from index.search_options import MAX_K, Place

T = TypeVar("T")


def collection_routes(runner: QueryRunner) -> APIRouter:
    """`GET /collections`, and `POST /search/collections`. All routes are below `/collections/NAME/` too: the middleware
    `every_request` strips this prefix.
    """
    router, bodies = APIRouter(tags=["collections"]), runner.bodies

    @router.get("/collections", summary="The collections of this server that the caller may search")
    async def collections(request: Request) -> CollectionsOut:
        key = request.scope.get(KEY)
        names = [name for name in runner.collections.names if key is None or key.allows(name)]
        states = await asyncio.gather(*map(runner.collections.state, names))
        return CollectionsOut(collections=[_collection_out(state, runner) for state in states])

    @router.get("/collections/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:  # to a relative address: a proxy may add a prefix
        return RedirectResponse(str(URL(f"./{quote(name)}/").replace(query=request.url.query)))

    @router.post(
        "/search/collections",
        name="search_collections",
        summary="The nearest images in several collections, merged by score, or by rank if their models differ",
        response_model=CollectionsSearchResponse,
        responses=problem_docs(*BODY_PROBLEMS, *SEARCH_PROBLEMS, CollectionNotFound),
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
        with naming_option():
            cursor = query.cursor
        engines = await _engines(services, cursor)
        words = "only" if query.options.get("words") == "only" else "off"  # their ranks in several say little
        parts = query.parts if words == "off" else ()
        _require_any_model(parts, engines)
        _require_same_types(query, engines)
        runner.admit(request, query.parts, searches=len(names), cost=len(names))
        watch = Stopwatch()
        vectors = await runner.vectors(parts, services, engines, watch)
        starts = cursor.places if cursor else {name: Place(seen=0, first=query.place.first) for name in names}
        options = options_in({**query.options, "offset": 0, "cursor": None, "words": words})

        async def answer_of(name: str) -> Answered:
            ask = partial(runner.answer, service=services[name], engine=engines[name], vectors=vectors[name])
            of = replace(query, options=options, start=starts[name])
            return await _named(name, _first(skipped(query) + query.k, of, ask))

        with watch.stage("search"):
            answers = await asyncio.gather(*map(answer_of, names))
        document = merge(dict(zip(names, answers, strict=True)), query, starts, watch=watch, limits=runner.limits)
        if document["cursor"] is not None:
            for name in names:  # also of those that have no more matches
                services[name].live.keep_for_pages(engines[name])
        return json_response(document)

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


def _require_any_model(parts: Sequence[Part], engines: Mapping[str, Engine]) -> None:
    """Raises Problem for a vector if the collections have different models."""
    for part in parts:
        if part.vector is not None and not have_one_model(engines.values()):
            expected = "a picture or words, because a vector is of one model, and these collections have several"
            raise invalid(part.field_path.format("embedding"), expected, f"{len(part.vector)} numbers")


async def _first(count: int, query: Query, answer: Callable[[Query], Awaitable[Answered]]) -> Answered:
    """The first matches after the query's place, in parts, because an answer has no more than MAX_K."""
    parts = list[Answered]()
    for start in range(0, count, MAX_K):
        options = options_in({**query.options, "k": min(MAX_K, count - start)})
        place = replace(query.place, seen=query.place.seen + start)
        parts.append(await answer(replace(query, options=options, start=place)))
        if len(parts[-1].answer.matches) < MAX_K:
            break
    matches = [match for part in parts for match in part.answer.matches]
    keys = [key for part in parts for key in part.answer.keys]
    return parts[0]._replace(answer=replace(parts[0].answer, matches=matches, keys=keys))


async def _named(name: str, answer: Awaitable[T]) -> T:
    """The answer. A Problem names the collection, because collections have different columns and versions."""
    try:
        return await answer
    except Problem as problem:
        raise problem.with_detail(f"in {name}: {problem.detail}") from problem


async def _engines(services: Mapping[str, SearchService], cursor: Cursor | None) -> dict[str, Engine]:
    """The engine of each collection: the current one, or that of the page before. Raises Problem."""
    if cursor is None:
        return {name: service.engine for name, service in services.items()}
    if not cursor.editions.keys() == cursor.places.keys() == services.keys():
        raise invalid("cursor", "the cursor of an earlier answer of the same collections", str(cursor))
    return {
        name: await _named(name, to_thread.run_sync(service.live.engine_of, cursor.editions[name]))
        for name, service in services.items()
    }


def _require_same_types(query: Query, engines: Mapping[str, Engine]) -> None:
    """Raises Problem for a column to sort, group or count by that has different types, and cannot be merged."""
    options = query.options
    named = [("sort", (options.get("sort") or "").removeprefix("-")), ("group_by", options.get("group_by"))]
    for option, name in [*named, *(("facets", each) for each in options.get("facets") or ())]:
        types = {engine.searcher.filterable.get(name or "") for engine in engines.values()} - {None}
        if len({_family(each or "") for each in types}) > 1:
            raise invalid(option, "a column that has the same type in all collections", name)


def _family(type_name: str) -> str:
    """Types of one family compare with each other."""
    numbers = ("int", "uint", "float", "double", "halffloat", "decimal")
    return "number" if type_name.startswith(numbers) else "text" if "string" in type_name else type_name


def _require_mergeable(query: Query) -> None:
    """Raises Problem for a query whose matches in several collections cannot be merged."""
    if diversity := query.options.get("diversity"):
        raise invalid("diversity", "none, because matches of several collections are merged by score", diversity)
    for part in query.parts:
        if part.image_id is not None:
            expected = "a picture, words or a vector, because an id belongs to one collection: search it there"
            raise invalid(part.field_path.format("id"), expected, part.image_id)
