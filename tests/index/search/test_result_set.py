"""Answers as sets: totals, orders, groups, facets and pages, against plain Python over the same rows."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.errors import OptionError
from index.search import Searcher, VersionSearcher
from index.search.result_set import Answer
from tests.support.collections.hand_made import add_version, rows, unit_vectors
from tests.support.collections.sharded import InProcessShards

COUNT = 300
START = datetime(1969, 12, 30, 22, tzinfo=UTC)
TYPES = {
    "label": pa.string(),
    "number": pa.int32(),
    "ratio": pa.float32(),
    "taken": pa.timestamp("ms", "Europe/Berlin"),
    "tags": pa.list_(pa.string()),
}


def values(number: int) -> dict[str, Any]:
    return {
        "label": None if number % 11 == 0 else ("cat", "Dog", "éclair", "owl")[number % 4],
        "number": None if number % 7 == 0 else (number * 37) % 50 - 25,
        "ratio": float("nan") if number % 5 == 0 else round(((number * 29) % 40) / 8 - 2, 3),
        "taken": None if number % 13 == 0 else START + timedelta(hours=5 * (number % 60)),
        "tags": ["a", "b"] if number % 2 else ["b"],
    }


class Images:
    """The live rows, in plain Python."""

    def __init__(self, searcher: Searcher) -> None:
        positions = searcher.segments.live_positions()
        names = ["image_id", *TYPES]
        self.rows = searcher.segments.rows(positions, names)
        self.vectors = searcher.segments.vectors(positions).astype(np.float64)

    def members(self, query: Any, min_score: float | None, label: str | None) -> list[dict[str, Any]]:
        scores = [None] * len(self.rows) if query is None else np.round(self.vectors @ query, 6).tolist()
        scored = [{**row, "score": score} for row, score in zip(self.rows, scores, strict=True)]
        return [
            row
            for row in scored
            if (label is None or row["label"] == label) and (min_score is None or row["score"] >= min_score)
        ]


def sorted_rows(members: Sequence[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    name = sort.removeprefix("-")
    by_id = sorted(members, key=lambda row: str(row["image_id"]))
    known = [row for row in by_id if row[name] is not None and row[name] == row[name]]
    known.sort(key=lambda row: row[name].encode() if isinstance(row[name], str) else row[name], reverse=sort[0] == "-")
    return known + [row for row in by_id if row[name] is None or row[name] != row[name]]


def group_of(row: dict[str, Any], by: str) -> Any:
    value = row[by]
    return value.astimezone(UTC).date().isoformat() if isinstance(value, datetime) else value


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Several segments with tombstones, and a column that the first of them lack."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("collection")))
    limits = IndexSettings(segment_rows=85, factory="Flat")
    ids = [f"{number:04d}" for number in np.random.default_rng(3).permutation(COUNT)]
    for first, names in ((0, [*TYPES][:-2]), (200, [*TYPES])):
        numbers = range(first, 200 if first == 0 else COUNT)
        columns = {name: pa.array([values(number)[name] for number in numbers], TYPES[name]) for name in names}
        table = rows([ids[number] for number in numbers], unit_vectors(len(numbers), seed=first), metadata=columns)
        add_version(collection, table, deletes=ids[5:170:17] if first else [], settings=limits)
    return collection


@pytest.fixture(scope="module")
def searchers(collection: Collection) -> list[VersionSearcher]:
    return [Searcher.open(collection), InProcessShards(collection, 3).searcher()]


@pytest.fixture(scope="module")
def images(searchers: list[VersionSearcher]) -> Images:
    assert isinstance(searchers[0], Searcher)
    return Images(searchers[0])


def all_pages(searcher: VersionSearcher, query: Any, k: int, **options: Any) -> list[Answer]:
    pages = [searcher.answer(query, k, **options)]
    while pages[-1].end is not None:
        pages.append(searcher.answer(query, k, after=pages[-1].end, **options))
        assert len(pages) < 100
    return pages


SORTS = st.sampled_from(
    ["label", "-label", "number", "-number", "ratio", "-ratio", "taken", "-taken", "image_id", None]
)
requests = st.fixed_dictionaries(
    {
        "query": st.sampled_from([None, 0, 1]),
        "cut": st.sampled_from([None, -1.0, 0.0, 0.2, 0.45]),
        "label": st.sampled_from([None, "cat", "éclair", "none"]),
        "sort": st.one_of(SORTS, st.sampled_from(["score", "-score"])),
        "group_by": st.sampled_from([None, None, "label", "number", "taken"]),
        "k": st.sampled_from([12, 60, 1_000]),
    }
)


@given(requests)
def test_a_set_is_what_plain_python_finds(
    searchers: list[VersionSearcher], images: Images, request: dict[str, Any]
) -> None:
    query = None if request["query"] is None else unit_vectors(2, seed=9)[request["query"]].astype(np.float64)
    cut = request["cut"] if query is not None else None
    sort = request["sort"]
    if query is None and sort in ("score", "-score"):
        sort = None
    options = {"min_score": cut, "sort": sort, "group_by": request["group_by"], "facets": ["label", "tags"]}
    options |= {"filter": {"label": request["label"]}} if request["label"] else {}
    members = images.members(query, cut, request["label"])
    expected = sorted_rows(members, sort or ("image_id" if query is None else "-score"))
    sizes = Counter(group_of(row, request["group_by"]) for row in members) if request["group_by"] else None
    if sizes is not None:
        first: dict[Any, dict[str, Any]] = {}
        for row in expected:
            first.setdefault(group_of(row, request["group_by"]), row)
        expected = [*first.values()]
    for searcher in searchers:
        pages = all_pages(searcher, query, request["k"], **options)
        matches = [match for page in pages for match in page.matches]
        assert [match.image_id for match in matches] == [row["image_id"] for row in expected]
        assert [match.score for match in matches] == pytest.approx([row["score"] for row in expected], abs=2e-6)
        assert {page.total for page in pages} == {len(members)}
        assert all(page.exact for page in pages)
        facets = pages[0].facets
        assert facets is not None
        assert facets.rows == len(members)
        assert facets.values["label"] == Counter(row["label"] for row in members if row["label"] is not None)
        assert facets.values["tags"] == Counter(tag for row in members for tag in row["tags"] or [])
        assert all(page.group_sizes == sizes for page in pages)
        if sizes is not None:
            groups = {match.group: match.group_size for match in matches}
            assert groups == sizes
            assert len(groups) == len(matches)


def test_an_excluded_image_is_not_of_the_set(searchers: list[VersionSearcher]) -> None:
    for searcher in searchers:
        vector = searcher.vector("0001")
        everything = searcher.answer(vector, 5, sort="label", min_score=0.0)
        without = searcher.answer(vector, 5, sort="label", min_score=0.0, exclude={"0001"})
        assert without.total == everything.total - 1
        assert searcher.answer(vector, 5, exclude={"0001"}).total == searcher.ntotal - 1
        label = searcher.answer(None, 1, filter={"image_id": "0001"}).matches[0].metadata["label"]
        for where, counted in (({"label": label}, 1), ({"label": {"$ne": label}}, 0)):
            found = searcher.answer(vector, 5, filter=where)
            assert searcher.answer(vector, 5, filter=where, exclude={"0001"}).total == found.total - counted


@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [
        (True, {"sort": "tags"}, "one of the columns image_id"),
        (True, {"sort": "nothing"}, "one of the columns image_id"),
        (True, {"sort": ""}, "one of the columns image_id"),
        (True, {"sort": ["label"]}, "the name of a column"),
        (True, {"group_by": "ratio"}, "one of the columns"),
        (True, {"facets": ["ratio"]}, "one of the columns"),
        (True, {"facets": "label"}, "a list of columns"),
        (True, {"sort": "label", "distinct": True}, "none with sort"),
        (True, {"group_by": "label", "diversity": 0.5}, "none with group_by"),
        (False, {"sort": "-score"}, "without a query"),
        (False, {"min_score": 0.1}, "without one"),
        (False, {"distinct": 0.9}, "without one"),
    ],
)
def test_wrong_options_are_refused(
    searchers: list[VersionSearcher], query: bool, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(OptionError, match=expected):
        searchers[0].answer(unit_vectors(1)[0] if query else None, 5, **options)


def test_approximate_sets_miss_little(tmp_path: Path) -> None:
    count = 1_500
    vectors = unit_vectors(count, seed=1)
    ids = [f"{number:05d}" for number in range(count)]
    table = rows(ids, vectors, metadata={"label": pa.array([f"{number % 30}" for number in range(count)])})
    collection = Collection.create_or_open(str(tmp_path))
    add_version(collection, table, settings=IndexSettings(factory="IVF32,PQ8x4fs,Refine(SQ8)"))
    searcher = Searcher.open(collection)
    for query in unit_vectors(10, seed=2):
        scores = np.round((vectors.astype(np.float64) @ query), 6)
        for cut in (0.7, 0.3):
            answer = searcher.answer(query, 10_000, min_score=cut, sort="label")
            expected = {ids[row] for row in np.flatnonzero(scores >= cut)}
            found = {match.image_id for match in answer.matches}
            assert found <= expected
            assert len(found) >= 0.99 * len(expected)
            assert answer.total == len(found)
        worst = searcher.answer(query, 5, sort="score")
        assert [match.score for match in worst.matches] == pytest.approx(np.sort(scores)[:5].tolist(), abs=2e-6)
        best = searcher.answer(query, 10, group_by="label")
        assert sum(match.group_size or 0 for match in best.matches) == 10 * count // 30


@pytest.fixture(scope="module", params=["different", "equal"])
def coarse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[VersionSearcher]:
    """1,500 images, of which 750 may be equal, whole and in shards, with a search that finds few of the nearest."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("coarse")))
    vectors = unit_vectors(1_500, seed=4)
    if request.param == "equal":
        vectors[100:850] = vectors[0]
    ids = [f"{number:04d}" for number in np.random.default_rng(5).permutation(len(vectors))]
    table = rows(ids, vectors, metadata={"label": pa.array([f"{row % 200}" for row in range(len(vectors))])})
    add_version(collection, table, settings=IndexSettings(segment_rows=500, factory="IVF16,PQ8x4fs,Refine(SQ8)"))
    whole, shards = Searcher.open(collection), InProcessShards(collection, 3)
    segments = [
        part for index in (whole.segments, *(each._segments for each in shards.shards.values())) for part in index.parts
    ]
    for segment in segments:
        segment.tune({"nprobe": 1, "rescore": 1.0, "crowd": 2.0})
    return [whole, shards.searcher()]


SIZES: list[tuple[dict[str, Any], int]] = [
    ({}, 1_500),
    ({"filter": {"label": {"$ne": "7"}}}, 1_492),
    ({"group_by": "label"}, 200),
    ({"words": "7 8 9"}, 1_500),
    ({"distinct": 0.9999}, 1_500),
    ({"diversity": 0.3}, 1_000),  # as deep as the option goes
    ({"diversity": 0.3, "distinct": 0.9999}, 1_000),
]
"""Options, and how many matches all pages have, if there are as many different vectors."""


@pytest.mark.parametrize(("options", "size"), SIZES, ids=str)
def test_pages_of_a_poor_search_are_disjoint_and_complete(
    coarse: list[VersionSearcher], options: dict[str, Any], size: int
) -> None:
    assert isinstance(coarse[0], Searcher)
    different = len(np.unique(coarse[0].segments.vectors(np.arange(1_500)), axis=0))
    count = min(size, different) if "distinct" in options else size
    query, k = coarse[0].vector("0000") + 0.1 * unit_vectors(1, seed=6)[0], 10
    for searcher in coarse:
        pages = [searcher.answer(query, k, **options)]
        while (end := pages[-1].end) is not None and end.seen < count:
            further = min(k if len(pages) < 8 else 1_000, count - end.seen)
            pages.append(searcher.answer(query, further, after=end, **options))
        matches = [match for page in pages for match in page.matches]
        shown = [match.group if "group_by" in options else match.image_id for match in matches]
        assert len({*shown}) == len(shown) == count
        assert {page.total for page in pages} == {1_492 if "filter" in options else 1_500}
        if options.keys().isdisjoint({"words", "diversity"}):
            assert pages[0].keys == sorted(pages[0].keys, reverse=True) == [match.score for match in pages[0].matches]
        if "words" in options:
            ranks = [match.vector_rank for match in matches if match.vector_rank is not None]
            assert len({*ranks}) == len(ranks) >= count - 3 * 8
            assert {match.metadata["label"] for match in matches if match.words} <= {"7", "8", "9"}
