"""Merges the answers of several collections to a page."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from api.documents import CollectionMatchOut, CollectionsSearchResponse, SearchedOut
from api.http.responses import index_out, match_out, model_out, timing
from api.observe.log import Stopwatch
from api.search.cursor import Cursor
from api.search.engine import Engine
from api.search.facets import facets_out
from api.search.query import Query
from api.search.service import Answered
from api.settings import RequestLimits
from index.filters.facets import Counts
from index.matches import Match
from index.search.result_set import MAX_VALUES, Hit, merged_hits
from index.search_options import BEST_FIRST, MAX_K, Place, is_set


def skipped(query: Query) -> int:
    """How many of the first matches are before the page. A group may be in other collections too, so all groups before
    the page are merged; other pages begin where in each collection the page before ended.
    """
    is_first = query.cursor is None or query.options.get("group_by") is not None
    return query.place.seen if is_first else 0


def have_one_model(engines: Iterable[Engine]) -> bool:
    return len({engine.fingerprint for engine in engines}) == 1


def merge(
    answers: Mapping[str, Answered],
    query: Query,
    starts: Mapping[str, Place],
    *,
    watch: Stopwatch,
    limits: RequestLimits,
) -> CollectionsSearchResponse:
    """One answer with a page of the matches, from the first ones of each collection after its place in `starts`."""
    sizes = sum((Counter(each.answer.group_sizes or {}) for each in answers.values()), Counter[Any]())
    grouped = query.options.get("group_by") is not None
    found = _ranked(answers, query, starts)[: skipped(query) + query.k]
    page = found[skipped(query) :]
    total = sum(each.answer.total for each in answers.values())
    end = replace(query.place, seen=query.place.seen + len(page))
    places = starts if grouped else _ends(answers, query, starts, Counter(name for name, _ in found))
    is_last = len(page) < query.k or end.seen >= (len(sizes) if grouped else total)
    if is_set(query.options, "distinct"):
        is_last |= any(place.seen + query.k > MAX_K for place in places.values())
    editions = {name: each.engine.searcher.manifest.edition for name, each in answers.items()}
    cursor = Cursor(editions=editions, places={**places}, search=query.digest, place=end)
    facets = [each.answer.facets for each in answers.values() if each.answer.facets is not None]
    counts = Counts.total(facets, facets[0].values, MAX_VALUES) if facets else None
    first = next(iter(answers.values()))
    one_model = have_one_model(each.engine for each in answers.values())
    return {
        "matches": [_match_out(name, match, sizes, limits) for name, match in page],
        "first": query.place.seen + 1,
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
        "model": model_out(first.engine.embedder.identity, limits.show_locations) if one_model else None,
        "timing_ms": timing(watch.milliseconds()),
    }


def _ends(
    answers: Mapping[str, Answered], query: Query, starts: Mapping[str, Place], taken: Mapping[str, int]
) -> dict[str, Place]:
    """Where the page ends in each collection, of which it has taken so many matches."""
    by_score, by_rank = _sort_of(query).removeprefix("-") == "score", is_set(query.options, "distinct")
    ends = {**starts}
    for name, count in taken.items():
        start, answer = starts[name], answers[name].answer
        image_id = None if by_rank else answer.matches[count - 1].image_id
        ends[name] = Place(start.seen + count, start.first, image_id, answer.keys[count - 1] if by_score else None)
    return ends


def _sort_of(query: Query) -> str:
    return query.options.get("sort") or (BEST_FIRST if query.parts else "")


def _ranked(answers: Mapping[str, Answered], query: Query, starts: Mapping[str, Place]) -> list[tuple[str, Match]]:
    """All matches in order, each with the name of its collection; with groups the first of each.

    Scores of different models say nothing about each other: such matches are in the order of their ranks.
    """
    sort, grouped = _sort_of(query), query.options.get("group_by") is not None
    by_rank = sort in ("score", BEST_FIRST) and not have_one_model(each.engine for each in answers.values())
    named = [(name, match) for name, each in sorted(answers.items()) for match in each.answer.matches]
    keys = [
        rank if by_rank else key
        for name, each in sorted(answers.items())
        for rank, key in enumerate(each.answer.keys, start=starts[name].seen)
    ]
    hits = [
        Hit(key, match.image_id, number, match.score, group=match.group)
        for number, (key, (_, match)) in enumerate(zip(keys, named, strict=True))
    ]
    descending = sort.startswith("-") and not by_rank
    return [named[hit.position] for hit in merged_hits(hits, descending=descending, grouped=grouped)]


def _match_out(name: str, match: Match, sizes: Mapping[Any, int], limits: RequestLimits) -> CollectionMatchOut:
    shown = vars(match_out(match, limits.show_locations))
    in_collection = {"picture": f"/collections/{quote(name)}{shown['picture']}", "group_size": sizes.get(match.group)}
    return CollectionMatchOut(**{**shown, **in_collection}, collection=name)
