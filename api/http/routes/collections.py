"""Routes that list the server's collections, and search several of them."""

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import TypeVar
from urllib.parse import quote

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import URL

from api.documents import CollectionOut, CollectionsOut, CollectionsSearchResponse
from api.http.merged_answers import document, have_one_model
from api.http.middleware.permissions import KEY, require_collection
from api.http.openapi import COLLECTIONS_BODY
from api.http.problem_responses import problem_docs
from api.http.query_runner import QueryRunner, all_of
from api.http.requests import COLLECTIONS_SEARCH
from api.http.responses import json_response, model_out
from api.observe.log import Stopwatch
from api.problems import BODY_PROBLEMS, SEARCH_PROBLEMS, CollectionNotFound, Problem, TextNotSupported, invalid
from api.search.engine import Engine
from api.search.page import editions_of
from api.search.query import Query, options_in
from api.search.service import Answered, SearchService, Vector, require_found
from index.collection.records.version_manifest import VersionManifest
from index.search_options import MAX_K, Place, columns_by_option, is_set

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
        states = await all_of(map(runner.collections.state, names))
        listed = [_collection_out(name, *state, runner) for name, state in zip(names, states, strict=True)]
        return CollectionsOut(collections=listed)

    @router.get("/collections/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:  # to a relative address: a proxy may add a prefix
        return RedirectResponse(str(URL(f"./{quote(name)}/").replace(query=request.url.query)))

    @router.post(
        "/search/collections",
        name="search_collections",
        summary="The nearest images in several collections as one; merged by rank if their models differ",
        response_model=CollectionsSearchResponse,
        responses=problem_docs(*BODY_PROBLEMS, *SEARCH_PROBLEMS, CollectionNotFound),
        openapi_extra={"requestBody": COLLECTIONS_BODY},
    )
    async def search(request: Request) -> Response:
        body = await bodies.json(request, COLLECTIONS_SEARCH.read)
        names = sorted({*body["collections"]})
        for name in names:
            require_collection(request.scope, name)
        opened = await all_of(runner.service_of(request, name) for name in names)
        services = dict(zip(names, opened, strict=True))
        query = await to_thread.run_sync(bodies.query_of, body)  # pictures in base64 may be large
        _require_no_ids(query)
        engines = await _engines(services, query)
        as_one, watch = have_one_model(engines) or not query.needs_vectors, Stopwatch()
        if not as_one:
            _require_mergeable(query, engines)
        runner.admit(request, query.parts, searches=1 if as_one else len(names), cost=len(names))
        if as_one:
            engine = await to_thread.run_sync(Engine.joined, [*engines.values()])  # 8 ms for forty collections
            answers = [await runner.answer(query, services[names[0]], engine, watch)]
        else:
            answers = await _answers(runner, query, services, engines, watch)
        require_found(answers)
        answer = await to_thread.run_sync(document, answers, engines, query, watch, runner.limits)
        if answer["cursor"] is not None:
            for name in names:  # also of those that have no more matches
                services[name].live.keep_for_pages(engines[name])
        return json_response(answer)

    return router


def _collection_out(
    name: str, manifest: VersionManifest | None, failure: str | None, runner: QueryRunner
) -> CollectionOut:
    is_open = name in runner.collections.open_services
    return {
        "name": name,
        "path": f"/collections/{quote(name)}/",
        "state": "open" if is_open else "closed" if failure is None else "unavailable",
        "ntotal": manifest.ntotal if manifest else None,
        "version": manifest.version if manifest else None,
        "model": model_out(manifest.model, runner.limits.show_locations) if manifest else None,
        "failure": failure and runner.redacted(failure, name),
    }


async def _answers(
    runner: QueryRunner,
    query: Query,
    services: Mapping[str, SearchService],
    engines: Mapping[str, Engine],
    watch: Stopwatch,
) -> list[Answered]:
    """The first matches of each collection, by words alone if its model takes no text."""
    k, start = min(query.place.seen + query.k, MAX_K), Place(seen=0, first=query.place.first)
    options = options_in({**query.options, "k": k, "offset": 0, "cursor": None})
    any_name = next(iter(engines))
    parts = await runner.fetched(query.parts, services[any_name], engines[any_name], watch)
    first = replace(query, options=options, start=start, parts=parts)
    vectors: dict[str, list[Vector] | None] = {}
    for name, engine in engines.items():
        if engine.fingerprint not in vectors:
            try:
                vectors[engine.fingerprint] = await runner.vectors(parts, services[name], engine, watch)
            except TextNotSupported:
                vectors[engine.fingerprint] = None
    answers = [
        _named(name, runner.answer(first, services[name], engine, Stopwatch(), vectors[engine.fingerprint]))
        for name, engine in engines.items()
    ]
    with watch.stage("search"):
        return await all_of(answers)


async def _named(name: str, answer: Awaitable[T]) -> T:
    """The answer. A Problem names the collection, because collections have different columns and versions."""
    try:
        return await answer
    except Problem as problem:
        raise problem.with_detail(f"in {name}: {problem.detail}") from problem


async def _engines(services: Mapping[str, SearchService], query: Query) -> dict[str, Engine]:
    """The engine of each collection: the current one, or that of the page before. Raises Problem."""
    editions = editions_of(query, services)
    if editions is None:
        return {name: service.engine for name, service in services.items()}
    return {
        name: await _named(name, to_thread.run_sync(service.live.engine_of, editions[name]))
        for name, service in services.items()
    }


def _require_no_ids(query: Query) -> None:
    """Raises Problem for an example that is the id of an image."""
    for part in query.parts:
        if part.image_id is not None:
            expected = "a picture, words or a vector, because an id belongs to one collection: search it there"
            raise invalid(part.field_path.format("id"), expected, part.image_id)


def _require_mergeable(query: Query, engines: Mapping[str, Engine]) -> None:
    """Raises Problem for a query whose matches in collections of different models cannot be merged: for a vector, for
    diversity, and for a column to sort, group or count by that has different types.
    """
    options = query.options
    if is_set(options, "diversity"):
        expected = "none, because these collections have different models, whose scores are not comparable"
        raise invalid("diversity", expected, options.get("diversity"))
    for part in query.parts:
        if part.vector is not None:
            expected = "a picture or words, because a vector is of one model, and these collections have several"
            raise invalid(part.field_path.format("embedding"), expected, f"{len(part.vector)} numbers")
    for option, names in columns_by_option(options).items():
        for name in names:
            types = {engine.searcher.filterable.get(name) for engine in engines.values()} - {None}
            if len({_family(each or "") for each in types}) > 1:
                raise invalid(option, "a column that has the same type in all collections", name)


def _family(type_name: str) -> str:
    """Types of one family compare with each other."""
    numbers = ("int", "uint", "float", "double", "halffloat", "decimal")
    return "number" if type_name.startswith(numbers) else "text" if "string" in type_name else type_name
