"""Routes of the server's collections, and of a search in several of them."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
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
from api.errors import Problem, invalid
from api.http.answering import Answering
from api.http.body import BodyReader, names_of, search_of
from api.http.middleware.auth import KEY, require_collection
from api.http.openapi import COLLECTIONS_BODY
from api.http.problems import SEARCH_PROBLEMS, problem_docs
from api.http.requests import CollectionsSearchRequest
from api.http.responses import json_response, model_out, timing
from api.observe.log import Stopwatch
from api.search.collections import CollectionState
from api.search.engine import Engine
from api.search.query import Query


def collection_routes(answering: Answering) -> APIRouter:
    """`GET /collections`, and `POST /search/collections`.

    All routes of this app are below `/collections/NAME/` too: `api.http.middleware.every_request` takes the prefix off.
    """
    router = APIRouter(tags=["collections"])
    bodies = BodyReader(answering.limits)

    @router.get("/collections", summary="The collections of this server that the caller may search")
    async def collections(request: Request) -> CollectionsOut:
        key = request.scope.get(KEY)
        names = [name for name in answering.collections.names if key is None or key.allows(name)]
        states = await asyncio.gather(*map(answering.collections.state, names))
        return CollectionsOut(collections=[_document(state, answering) for state in states])

    @router.get("/collections/{name}", include_in_schema=False)
    async def page(name: str, request: Request) -> Response:
        # Relative, because a proxy may add a prefix of its own.
        return RedirectResponse(str(URL(f"./{quote(name)}/").replace(query=request.url.query)))

    @router.post(
        "/search/collections",
        summary="The nearest images in several collections with the same model, merged by score",
        response_model=CollectionsSearchResponse,
        responses=problem_docs(*SEARCH_PROBLEMS, "collection-not-found"),
        openapi_extra={"requestBody": COLLECTIONS_BODY},
    )
    async def search(request: Request) -> Response:
        body = await bodies.json(request, lambda document: document)
        names = names_of(body)
        for name in names:
            require_collection(request.scope, name)
        found = {name: await answering.named(name) for name in names}
        engines = {name: service.engine for name, service in found.items()}
        service, engine = found[names[0]], _of_one_model(engines)
        reading = partial(search_of, body, limits=answering.limits, model=CollectionsSearchRequest)
        query = _checked(await to_thread.run_sync(reading))
        answering.admit(request, [query.parts, *[()] * (len(names) - 1)], cost=len(names))
        watch = Stopwatch()
        vectors = await answering.vectors(query.parts, service, engine, watch)
        offset = query.options.get("offset", 0)
        last = offset + query.k
        first_ones = replace(query, k=last, options={**query.options, "offset": 0})
        with watch.stage("search"):
            answers = await asyncio.gather(
                *(_naming(name, answering.search(first_ones, found[name], engines[name], vectors)) for name in names)
            )
        merged = _merged(dict(zip(names, answers, strict=True)), watch)
        return json_response({**merged, "matches": merged["matches"][offset:last]})

    return router


def _document(state: CollectionState, answering: Answering) -> CollectionOut:
    manifest, failure = state.manifest, state.failure
    return {
        "name": state.name,
        "path": f"/collections/{quote(state.name)}/",
        "state": "open" if state.is_open else "closed" if failure is None else "unavailable",
        "ntotal": manifest.ntotal if manifest else None,
        "version": manifest.version if manifest else None,
        "model": model_out(manifest.model, answering.limits.show_locations) if manifest else None,
        "failure": failure and answering.shown(failure, state.name),
    }


def _of_one_model(engines: Mapping[str, Engine]) -> Engine:
    """The engine that embeds for all of them. Raises Problem when their vectors cannot be compared."""
    first, *others = engines.items()
    for name, engine in others:
        if engine.embedder.identity.fingerprint != first[1].embedder.identity.fingerprint:
            expected = "collections of one model, as scores of several cannot be compared"
            raise invalid("collections", expected, f"{first[0]} and {name}, which have different ones")
    return first[1]


async def _naming(name: str, searching: Awaitable[SearchResponse]) -> SearchResponse:
    """The answer. The Problem says of which collection it is: they may have different columns."""
    try:
        return await searching
    except Problem as problem:
        raise problem.saying(f"in {name}: {problem.detail}") from problem


def _checked(query: Query) -> Query:
    """Raises Problem for what cannot be merged."""
    if query.options.get("diversity"):
        raise invalid("diversity", "none, since matches of several collections are merged by score", "one")
    for part in query.parts:
        if part.image_id is not None:
            expected = "a picture, words or a vector, since an id belongs to one collection: search it there"
            raise invalid(part.field_path.format("id"), expected, part.image_id)
    return query


def _merged(answers: Mapping[str, SearchResponse], watch: Stopwatch) -> CollectionsSearchResponse:
    matches: list[CollectionMatchOut] = [
        {**match, "collection": name, "picture": f"/collections/{quote(name)}{match['picture']}"}
        for name, answer in answers.items()
        for match in answer["matches"]
    ]
    matches.sort(key=lambda match: (-match["score"], match["image_id"], match["collection"]))
    searched = [answer["searched"] for answer in answers.values()]
    return {
        "matches": matches,
        "indexes": {name: answer["index"] for name, answer in answers.items()},
        "searched": SearchedOut(rows=sum(each["rows"] for each in searched), of=sum(each["of"] for each in searched)),
        "model": next(iter(answers.values()))["model"],
        "timing_ms": timing(watch.milliseconds()),
    }
