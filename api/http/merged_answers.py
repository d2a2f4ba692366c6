"""The document of a search of several collections, and how answers are merged if their models differ."""

from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any
from urllib.parse import quote

from api.documents import CollectionMatchOut, CollectionsSearchResponse, SearchedOut
from api.http.responses import index_out, match_out, model_out, timing
from api.observe.log import Stopwatch
from api.search.engine import Engine
from api.search.page import page_fields
from api.search.query import Query
from api.search.service import Answered
from api.settings import RequestLimits
from index.filters.facets import Counts
from index.matches import Match
from index.search.result_set import MAX_VALUES, Answer, Hit, merged_hits
from index.search_options import BEST_FIRST, MAX_K, Place, sort_of


def have_one_model(engines: Mapping[str, Engine]) -> bool:
    return len({engine.fingerprint for engine in engines.values()}) == 1


def document(
    answers: Sequence[Answered], engines: Mapping[str, Engine], query: Query, watch: Stopwatch, limits: RequestLimits
) -> CollectionsSearchResponse:
    """Of the answer of all collections as one, or of the answers of each, in the order of `engines`."""
    names, searchers = [*engines], [engine.searcher for engine in engines.values()]
    starts = [0, *accumulate(searcher.manifest.rows for searcher in searchers)]
    answer = answers[0].answer if len(answers) == 1 else _merged([each.answer for each in answers], starts, query)
    editions = {name: engine.searcher.manifest.edition for name, engine in engines.items()}
    model = next(iter(engines.values())).embedder.identity if have_one_model(engines) else None
    return {
        "matches": [
            _match_out(names[bisect(starts, position) - 1], match, limits.show_locations)
            for match, position in zip(answer.matches, answer.positions, strict=True)
        ],
        **page_fields(query, answer, editions, answers[0].searcher.filterable),
        "indexes": dict(zip(names, map(index_out, searchers), strict=True)),
        "searched": SearchedOut(
            rows=sum(each.searcher.searched for each in answers), of=sum(searcher.ntotal for searcher in searchers)
        ),
        "model": None if model is None else model_out(model, limits.show_locations),
        "timing_ms": timing(watch.milliseconds()),
    }


def _merged(answers: Sequence[Answer], starts: Sequence[int], query: Query) -> Answer:
    """The page of the first matches of several collections, whose positions begin at `starts`.

    Scores of different models say nothing about each other: such matches are in the order of their ranks.
    """
    column, descending = sort_of(query.options.get("sort") or BEST_FIRST)
    by_rank, grouped = column == "score", query.options.get("group_by") is not None
    hits, matches = list[Hit](), dict[int, Match]()
    for answer, start in zip(answers, starts, strict=False):
        for rank, match in enumerate(answer.matches):
            key, position = rank if by_rank else answer.keys[rank], start + answer.positions[rank]
            hits.append(Hit(key, match.image_id, position, match.score, group=match.group))
            matches[position] = match
    ranked = merged_hits(hits, descending=descending and not by_rank, grouped=grouped)
    page = ranked[query.place.seen :][: query.k]
    sizes = sum((Counter(answer.group_sizes or {}) for answer in answers), Counter[Any]())
    total, end = sum(answer.total for answer in answers), Place(query.place.seen + len(page), query.place.first)
    more = len(page) == query.k and end.seen < (len(sizes) if grouped else total) and end.seen + query.k <= MAX_K
    facets = [answer.facets for answer in answers if answer.facets is not None]
    return Answer(
        matches=[replace(matches[hit.position], group_size=sizes.get(hit.group)) for hit in page],
        keys=[hit.key for hit in page],
        positions=[hit.position for hit in page],
        total=total,
        exact=all(answer.exact for answer in answers),
        group_sizes=sizes if grouped else None,
        facets=Counts.total(facets, facets[0].values, MAX_VALUES) if facets else None,
        end=end if more else None,
    )


def _match_out(name: str, match: Match, show_locations: bool) -> CollectionMatchOut:
    shown = vars(match_out(match, show_locations))
    return CollectionMatchOut(**{**shown, "picture": f"/collections/{quote(name)}{shown['picture']}"}, collection=name)
