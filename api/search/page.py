"""A page of the matches of a query, from the vectors of its parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import nsmallest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from api.documents import FacetOut, FacetValueOut, PageOut
from api.problems import abbreviate, invalid, invalid_fields
from api.search.cursor import Cursor
from api.search.query import NOT_OF_WORDS, Part, Query
from index.collection.rows import FIXED_COLUMNS
from index.errors import FilterError, OptionError, QueryError
from index.filters.facets import Counts, periods
from index.queries import QueryKind, mix
from index.search import VersionSearcher
from index.search.result_set import Answer
from index.search_options import MAX_DIVERSE, MAX_K, PICTURE_FIELDS, column_names, is_set
from index.words.text import any_terms

_MAX_VALUES: Final = 100  # of a column in facets


def page_of(searcher: VersionSearcher, query: Query, vectors: Sequence[NDArray[np.float32]]) -> Answer:
    """The page, of the mix of the vectors. Raises Problem."""
    ids = {part.image_id for part in query.parts if part.image_id is not None}
    options = query.search_options
    if (min_percentile := query.options.get("min_percentile")) is not None:
        lowest = _lowest_score(searcher, min_percentile, query.kind)
        min_score = options.get("min_score")
        options["min_score"] = lowest if min_score is None else max(lowest, min_score)
    direction = direction_of(query.parts, vectors) if vectors else None
    _check_words(query)
    with naming_option():
        answer = searcher.answer(
            direction,
            query.k,
            exclude=ids,
            kind=query.kind,
            after=query.place,
            words=query.words,
            hidden=query.hidden,
            **options,
        )
    percentiles = searcher.percentiles([match.score for match in answer.matches], query.kind)
    matches = [
        match if each is None else replace(match, percentile=each)
        for match, each in zip(answer.matches, percentiles, strict=True)
    ]
    return replace(answer, matches=matches)


def direction_of(parts: Sequence[Part], vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The mix of the vectors of the parts, `(dim,)`, unit norm. Raises Problem."""
    weights = [part.weight for part in parts]
    try:
        return mix(np.stack(vectors), weights)
    except QueryError as error:
        expected = "examples that do not cancel each other out: leave one out, or change a weight"
        raise invalid("queries", expected, weights) from error


def _check_words(query: Query) -> None:
    """Raises Problem for a search for words alone that has none, or options that it does not take."""
    if query.options.get("words") != "only":
        return
    if query.words is None:
        raise invalid("words", "auto or off, or a search by text alone", "only")
    if not any_terms(query.words):
        raise invalid(
            query.parts[0].field_path.format("text"),
            "words that say what to look for, of letters or digits",
            query.words,
        )
    for name in NOT_OF_WORDS:
        if is_set(query.options, name):
            expected = "none with words: only, which compares no vectors"
            raise invalid(name, expected, query.options.get(name))


def page_fields(query: Query, answer: Answer, editions: Mapping[str, str], types: Mapping[str, str]) -> PageOut:
    """What the answer says besides its matches. `editions` are of the index versions, by the names of the collections,
    and `types` the Arrow types of columns. There is no cursor if the next page is deeper than options allow.
    """
    end, deepest = answer.end, MAX_DIVERSE if is_set(query.options, "diversity") else MAX_K
    if end is not None and end.position is None and answer.group_sizes is None and end.seen + query.k > deepest:
        end = None
    return {
        "first": query.place.seen + 1,
        "total": answer.total,
        "exact": answer.exact,
        "groups": None if answer.group_sizes is None else len(answer.group_sizes),
        "facets": None if answer.facets is None else facets_out(answer.facets, types),
        "cursor": None if end is None else str(Cursor(editions={**editions}, search=query.digest, place=end)),
    }


def facets_out(counts: Counts, types: Mapping[str, str]) -> dict[str, FacetOut]:
    """The most frequent values of each column, whose Arrow types are `types`; equally frequent ones in their order."""
    columns: dict[str, FacetOut] = {}
    for name, counter in counts.values.items():
        best = nsmallest(_MAX_VALUES, counter.items(), key=lambda each: (-each[1], each[0]))
        values: list[FacetValueOut] = [{"value": value, "count": count} for value, count in best]
        known = len(counter)
        if types[name].startswith(("timestamp", "date")):
            spans = periods(counter)
            values = [{"value": at, "count": count, "filter": span} for at, count, span in spans[:_MAX_VALUES]]
            known = len(spans)
        columns[name] = FacetOut(values=values, others=known - len(values))
    return columns


def editions_of(query: Query, names: Iterable[str]) -> Mapping[str, str] | None:
    """The index versions that the page before was of, by the names of the collections; None for a first page. Raises
    Problem.
    """
    with naming_option():
        cursor = query.cursor
    if cursor is not None and cursor.editions.keys() != {*names}:
        raise invalid("cursor", "the cursor of an earlier answer of the same collections", str(cursor))
    return None if cursor is None else cursor.editions


@contextmanager
def naming_option() -> Iterator[None]:
    """Raises the Problem of an option that does not fit the index."""
    try:
        yield
    except FilterError as error:
        raise invalid_fields([{"field": "filter", "expected": error.expected, "got": error.got}]) from error
    except OptionError as error:
        raise invalid("cursor" if error.name == "after" else error.name, error.expected, error.got) from error


def _lowest_score(searcher: VersionSearcher, percentile: float, kind: QueryKind | None) -> float:
    """The lowest score of this percentile. Raises Problem."""
    if (score := searcher.lowest_score(percentile, kind)) is None:
        kinds = ", ".join(searcher.manifest.scores.random) or "none"
        expected = f"a query whose matches have percentiles (in this index of kind: {kinds}), or min_score instead"
        raise invalid("min_percentile", expected, percentile)
    return score


def check_fields(searcher: VersionSearcher, fields: Sequence[str] | None) -> None:
    """Raises Problem, which names the `fields` that no match can have. None stands for all metadata columns."""
    if fields is None:
        return
    with naming_option():
        names = column_names("fields", fields)
    known = sorted((searcher.filterable.keys() - FIXED_COLUMNS).union(PICTURE_FIELDS))
    wrong = [name for name in names if name not in known]
    if wrong:
        expected = f"only {', '.join(known)}"
        raise invalid_fields([{"field": "fields", "expected": expected, "got": abbreviate(name)} for name in wrong])
