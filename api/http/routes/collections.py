"""Routes that list the server's collections, and search several of them."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
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
)
from api.errors import BODY_PROBLEMS, SEARCH_PROBLEMS, CollectionNotFound, Problem, invalid
from api.http.middleware.auth import KEY, require_collection
from api.http.openapi import COLLECTIONS_BODY
from api.http.problem_documents import problem_docs
from api.http.query_runner import QueryRunner
from api.http.requests import COLLECTIONS_SEARCH
from api.http.responses import index_out, json_response, match_out, model_out, timing
from api.observe.log import Stopwatch
from api.search.collections import CollectionState
from api.search.cursor import Cursor
from api.search.engine import Engine
from api.search.facets import facets_out
from api.search.page import naming_option
from api.search.query import Part, Query, options_in
from api.search.service import Answered, SearchService
from index.filters.facets import Counts
from index.matches import Match
from index.search.result_set import MAX_VALUES, Hit, merged_hits
from index.search_options import BEST_FIRST, Place


def collection_routes(runner: QueryRunner) -> APIRouter:
    """`GET /collections`, and `POST /search/collections`.

    All routes are below `/collections/NAME/` too: `api.http.middleware.every_request` strips this prefix.
    """
    router, bodies = APIRouter(tags=["collections"]), runner.bodies

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
        page = slice(query.place.seen, query.place.seen + query.k)
        with watch.stage("search"), naming_option():
            up_to_page = {"k": page.stop, "offset": 0, "cursor": None, "words": words}
            start = Place(seen=0, first=query.place.first)
            all_pages = replace(query, options=options_in({**query.options, **up_to_page}), start=start)
            answers = await asyncio.gather(
                *(
                    _named(name, runner.answer(all_pages, services[name], engines[name], vectors[name]))
                    for name in names
                )
            )
        return json_response(_merge(dict(zip(names, answers, strict=True)), query, page, watch, runner))

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


def _have_one_model(engines: Iterable[Engine]) -> bool:
    return len({engine.fingerprint for engine in engines}) == 1


def _require_any_model(parts: Sequence[Part], engines: Mapping[str, Engine]) -> None:
    """Raises Problem for a vector if the collections have different models."""
    for part in parts:
        if part.vector is not None and not _have_one_model(engines.values()):
            expected = "a picture or words, because a vector is of one model, and these collections have several"
            raise invalid(part.field_path.format("embedding"), expected, f"{len(part.vector)} numbers")


async def _named(name: str, answer: Awaitable[Answered]) -> Answered:
    """The answer. A Problem names the collection, because collections may have different columns."""
    try:
        return await answer
    except Problem as problem:
        raise problem.with_detail(f"in {name}: {problem.detail}") from problem


async def _engines(services: Mapping[str, SearchService], cursor: Cursor | None) -> dict[str, Engine]:
    """The engine of each collection: the current one, or that of the page before. Raises Problem."""
    if cursor is None:
        return {name: service.engine for name, service in services.items()}
    if cursor.editions.keys() != services.keys():
        raise invalid("cursor", "the cursor of an earlier answer of the same collections", str(cursor))
    editions = cursor.editions
    return {name: await to_thread.run_sync(services[name].live.engine_of, editions[name]) for name in services}


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


def _merge(
    answers: Mapping[str, Answered], query: Query, page: slice, watch: Stopwatch, runner: QueryRunner
) -> CollectionsSearchResponse:
    """One answer with a page of the matches, from the first ones of each collection."""
    sizes = sum((Counter(each.answer.group_sizes or {}) for each in answers.values()), Counter[Any]())
    grouped = query.options.get("group_by") is not None
    found = _ranked(answers, query, grouped=grouped)
    total = sum(each.answer.total for each in answers.values())
    is_last = page.stop >= (len(sizes) if grouped else total) or page.stop + query.k > runner.limits.max_k
    editions = {name: each.engine.searcher.manifest.edition for name, each in answers.items()}
    end = Place(seen=page.stop, first=query.place.first)
    cursor = Cursor(editions=editions, search=query.digest, place=end)
    facets = [each.answer.facets for each in answers.values() if each.answer.facets is not None]
    counts = Counts.total(facets, facets[0].values, MAX_VALUES) if facets else None
    first = next(iter(answers.values()))
    one_model = _have_one_model(each.engine for each in answers.values())
    return {
        "matches": [_match_out(name, match, sizes, runner) for name, match in found[page]],
        "first": page.start + 1,
        "total": total,
        "exact": all(each.answer.exact for each in answers.values()),
        "groups": len(sizes) if grouped else None,
        "facets": None if counts is None else facets_out(counts, first.searcher.filterable),
        "cursor": None if is_last else str(cursor),
        "indexes": {name: index_out(each.engine.searcher) for name, each in answers.items()},
        "searched": SearchedOut(
            rows=sum(each.searcher.searched for each in answers.values()),
            of=sum(each.searcher.ntotal for each in answers.values()),
        ),
        "model": model_out(first.engine.embedder.identity, runner.limits.show_locations) if one_model else None,
        "timing_ms": timing(watch.milliseconds()),
    }


def _ranked(answers: Mapping[str, Answered], query: Query, *, grouped: bool) -> list[tuple[str, Match]]:
    """All matches in order, each with the name of its collection; with groups the first of each.

    Scores of different models say nothing about each other: such matches are in the order of their ranks.
    """
    sort = query.options.get("sort") or (BEST_FIRST if query.parts else "")
    by_rank = sort in ("score", BEST_FIRST) and not _have_one_model(each.engine for each in answers.values())
    named = [(name, match) for name, each in sorted(answers.items()) for match in each.answer.matches]
    keys = [
        rank if by_rank else key
        for _, each in sorted(answers.items())
        for rank, key in enumerate(each.answer.keys, start=1)
    ]
    hits = [
        Hit(key, match.image_id, number, match.score, group=match.group)
        for number, (key, (_, match)) in enumerate(zip(keys, named, strict=True))
    ]
    descending = sort.startswith("-") and not by_rank
    return [named[hit.position] for hit in merged_hits(hits, descending=descending, grouped=grouped)]


def _match_out(name: str, match: Match, sizes: Mapping[Any, int], runner: QueryRunner) -> CollectionMatchOut:
    shown = vars(match_out(match, runner.limits.show_locations))
    in_collection = {"picture": f"/collections/{quote(name)}{shown['picture']}", "group_size": sizes.get(match.group)}
    return CollectionMatchOut(**{**shown, **in_collection}, collection=name)
