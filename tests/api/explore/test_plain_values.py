"""Values of NumPy, pandas and Python in queries and filters: notebooks, clients and a Searcher take the same ones."""

import datetime as dt
import math
import pickle
import re
from collections import UserDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from api.client import LikenessClient
from api.errors import ApiError, ClientError, RequestRefused
from api.explore import Likeness
from api.http.app import create_app
from api.local import running
from api.problems import Problem
from api.search.query import Matches
from index.errors import QueryError
from index.search import Searcher
from tests.support.collections.hand_made import of_fake_model
from tests.support.collections.small_collection import fake_service, png
from tests.support.fake_embedder import FakeEmbedder

ROWS = 6
HALF = "\ud800"  # of a character, as JSON and the names of files may have it
DAYS = [dt.datetime(2024, 5, day, 12, tzinfo=dt.UTC) for day in range(1, ROWS + 1)]
COLUMNS: dict[str, Any] = {
    "number": pa.array(range(ROWS)),
    "share": pa.array([number / 4 for number in range(ROWS)], pa.float32()),
    "price": pa.array([Decimal(f"{number}.10") for number in range(ROWS)], pa.decimal128(30, 20)),
    "flag": pa.array([True, False] * 3),
    "word": pa.array([*"abcde", None]),
    "nothing": pa.nulls(ROWS),
    "tags": pa.array([["x", str(number)] for number in range(ROWS)]),
    "taken": pa.array(DAYS, pa.timestamp("ns", "UTC")),
    "day": pa.array([day.date() for day in DAYS]),
    "opens": pa.array([dt.time(number, 30) for number in range(ROWS)], pa.time64("us")),
    "length": pa.array([dt.timedelta(seconds=number - 1.5) for number in range(ROWS)], pa.duration("us")),
}


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    ids = [str(number) for number in range(ROWS)]
    return Searcher.open(of_fake_model(tmp_path_factory.mktemp("values"), ids, metadata=COLUMNS))


@pytest.fixture(scope="module")
def client(searcher: Searcher) -> Iterator[LikenessClient]:
    with running(create_app(fake_service(searcher))) as url, LikenessClient(url) as client:
        yield client


@pytest.fixture(scope="module")
def likeness(searcher: Searcher) -> Likeness:
    return Likeness(searcher, FakeEmbedder)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"number": np.int64(3)}, [3]),
        ({"number": np.uint8(3)}, [3]),
        ({"number": {"$in": np.array([1, 2])}}, [1, 2]),
        ({"number": {"$in": {1, 2}}}, [1, 2]),
        ({"number": {"$nin": frozenset({1, 2})}}, [0, 3, 4, 5]),
        ({"number": {"$in": range(2)}}, [0, 1]),
        ({"number": {"$in": pd.Series([4, 5])}}, [4, 5]),
        ({"number": {"$in": pd.Index([4, 5])}}, [4, 5]),
        ({"number": {"$in": pd.array([4, 5], dtype="Int64")}}, [4, 5]),
        ({"number": {"$in": pl.Series([4, 5])}}, [4, 5]),
        ({"number": {"$in": pa.array([4, None, 5])}}, [4, 5]),
        ({"word": {"$in": pa.chunked_array([["a", "e"]])}}, [0, 4]),
        ({"word": {"$in": {"a": 1, "e": 2}.keys()}}, [0, 4]),
        ({"word": {"$in": {1: "a", 2: "e"}.values()}}, [0, 4]),
        ({"number": {"$gte": Decimal(4)}}, [4, 5]),
        ({"number": {"$gt": Decimal("3.5")}}, [4, 5]),
        ({"share": np.float32(0.25)}, [1]),
        ({"share": {"$in": np.array([0.25, 0.5], np.float16)}}, [1, 2]),
        ({"share": {"$gte": np.longdouble("0.75")}}, [3, 4, 5]),
        ({"share": {"$lt": Decimal("0.3")}}, [0, 1]),
        ({"price": Decimal("3.10")}, [3]),
        ({"price": {"$gt": Decimal("3.09999999999999999999")}}, [3, 4, 5]),
        ({"price": {"$gt": Decimal("3.10000000000000000001")}}, [4, 5]),
        ({"flag": np.True_}, [0, 2, 4]),
        ({"word": np.str_("b")}, [1]),
        ({"word": {"$in": np.array(["a", "e"])}}, [0, 4]),
        ({"word": {"$in": pd.Series(["a", "e"], dtype="category")}}, [0, 4]),
        ({"word": {"$in": ("a", None)}}, [0, 5]),
        ({"tags": {"$in": {"2"}}}, [2]),
        ({"taken": DAYS[2]}, [2]),
        ({"taken": pd.Timestamp(DAYS[2])}, [2]),
        ({"taken": np.datetime64("2024-05-03T12:00")}, [2]),
        ({"taken": {"$gt": np.datetime64("2024-05-05T12:00:00", "ns")}}, [5]),
        ({"taken": {"$gt": np.datetime64(DAYS[4].replace(tzinfo=None), "ns") - np.timedelta64(1, "ns")}}, [4, 5]),
        ({"taken": {"$in": pd.to_datetime(["2024-05-02 12:00", "2024-05-03 12:00"])}}, [1, 2]),
        ({"taken": {"$gte": dt.date(2024, 5, 6)}}, [5]),
        ({"taken": {"$lt": np.datetime64("2024-05-02T13")}}, [0, 1]),
        ({"taken": {"$gt": np.datetime64("2024-05")}}, [0, 1, 2, 3, 4, 5]),
        ({"taken": {"$lt": np.datetime64("2024")}}, []),
        ({"taken": {"$gte": np.array("2024-05-06", "datetime64[D]")}}, [5]),
        ({"taken": {"$lt": dt.datetime(2024, 5, 2, 14, tzinfo=dt.timezone(dt.timedelta(hours=2)))}}, [0]),
        ({"day": dt.date(2024, 5, 4)}, [3]),
        ({"day": {"$in": np.array(["2024-05-01", "2024-05-09"], "datetime64[D]")}}, [0]),
        ({"opens": dt.time(2, 30)}, [2]),
        ({"length": dt.timedelta(seconds=-1.5)}, [0]),
        ({"length": {"$lt": np.timedelta64(0)}}, [0, 1]),
        ({"length": {"$gte": pd.Timedelta("2.5s")}}, [4, 5]),
        ({"length": {"$in": pd.to_timedelta([-0.5, 3.5], unit="s")}}, [1, 5]),
        ({"$or": ({"number": np.int8(1)}, {"word": "e"})}, [1, 4]),
        ({"$not": MappingProxyType({"number": {"$gt": np.int8(1)}})}, [0, 1]),
        (UserDict({"number": 1}), [1]),
    ],
)
def test_a_filter_may_have_values_of_other_libraries(
    likeness: Likeness, client: LikenessClient, where: Any, expected: list[int]
) -> None:
    vector, searcher = likeness.searcher.vector("0"), likeness.searcher
    found = [likeness.search(vector, filter=where), client.search(embedding=vector, filter=where).matches]
    found += [searcher.search(vector[np.newaxis], 10, filter=where)[0], searcher.within(vector, -1, filter=where)]
    assert [sorted(int(match.image_id) for match in matches) for matches in found] == [expected] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"k": np.int64(2), "offset": np.uint8(1), "min_score": np.float32(-1)},
        {"k": Decimal(2), "offset": Decimal(1), "min_score": Decimal("-0.5"), "distinct": np.True_},
        {"k": 2, "offset": 1, "allow_partial": np.False_, "diversity": Decimal("0.1")},
        {"k": 2, "offset": 1, "facets": pd.Series(["word"]), "fields": np.array(["word"])},
        {"k": 2, "offset": 1, "facets": pl.Series(["word"]), "fields": pd.Index(["word"])},
    ],
)
def test_options_may_have_values_of_other_libraries(
    likeness: Likeness, client: LikenessClient, options: dict[str, Any]
) -> None:
    vector = likeness.searcher.vector("0")
    pages = [likeness.search(vector, **options), client.search(embedding=vector, **options)]
    assert [(len(page.matches), page.first, page.total) for page in pages] == [(2, 2, ROWS)] * 2
    assert None not in [page.cursor for page in pages]
    assert [page.facets is not None for page in pages] == ["facets" in options] * 2


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"words": True}, "words"),
        ({"allow_partial": "x"}, "allow_partial(:| is 'x':) expected true or false"),
        ({"allow_partial": 1}, "allow_partial(:| is 1:) expected true or false"),
        ({"sort": ""}, "sort: expected one of the columns"),
        ({"group_by": ""}, "group_by: expected one of the columns"),
        ({"text": HALF}, "in UTF-8|hex escape"),
        ({"id": HALF}, "has no image|hex escape"),
        ({"image": png((1, 2, 3)), "sort": HALF}, "sort: expected one of the columns"),
        ({"words": "both"}, "words"),
        ({"facets": iter(["word"])}, "a list of columns|a value that JSON can hold"),
        ({"fields": 7}, "fields: expected a list"),
        ({"queries": pd.DataFrame({"id": ["1"]})}, "in queries: expected a list of examples"),
        *(
            ({"queries": [{"id": "1", "weight": weight}]}, "weight(:| is .*:) expected a (finite )?number")
            for weight in (math.nan, math.inf, "2", True, 101)
        ),
        ({"embedding": [math.nan] * 16}, "expected finite numbers|embedding.0: expected a finite number"),
    ],
)
def test_wrong_searches_are_refused_with_what_was_expected(
    likeness: Likeness, client: LikenessClient, search: dict[str, Any], message: str
) -> None:
    for each in (likeness.search, client.search):
        with pytest.raises((TypeError, ValueError, Problem, ClientError), match=message):
            each(**search)


@pytest.mark.parametrize(
    "search",
    [
        {"id": "0", "k": 0},
        {"id": "0", "offset": -1},
        {"id": "0", "min_score": 7},
        {"id": "0", "words": "both"},
        {"id": "0", "sort": "nowhere"},
        {"id": "0", "filter": {"nowhere": 1}},
        {"queries": [{"id": "0"}, {"id": "0", "weight": -1}]},
        {"queries": [{"id": "0", "weight": 101}]},
        {"id": "none"},
        {"text": " "},
        {"image": b"no picture"},
    ],
)
def test_a_wrong_query_is_one_kind_of_error_with_the_type_that_the_server_gives(
    likeness: Likeness, client: LikenessClient, search: dict[str, Any]
) -> None:
    with pytest.raises(Problem) as ours:
        likeness.search(**search)
    with pytest.raises(RequestRefused) as theirs:
        client.search(**search)
    assert (ours.value.type, ours.value.status) == (theirs.value.type, theirs.value.status)


@pytest.mark.parametrize(
    "value", [object(), pa.scalar(1), pd.Period("2024"), 1j, b"a", iter([1]), Path, bytearray(b"a")]
)
def test_other_values_are_refused_alike(likeness: Likeness, client: LikenessClient, value: Any) -> None:
    vector = likeness.searcher.vector("0")
    message = "expected a value that JSON can hold, a time, a duration, or a list or set of them, got "
    for search in (likeness.search, client.search):
        with pytest.raises(TypeError, match=message):
            search(embedding=vector, filter={"number": value})
    with pytest.raises(TypeError, match=message):
        likeness.searcher.facets({"number": value})


@pytest.mark.parametrize(
    ("where", "refusal"),
    [
        ({"number": "3"}, "a number for $eq of column 'number' (int64), got '3'"),
        ({"number": {"$gt": pd.NA}}, "a number for $gt of column 'number' (int64), got NaN"),
        *(
            ({column: {operator: [value] if operator == "$in" else value}}, f"{operator} of column '{column}' ({kind})")
            for value in (pd.NaT, pd.NA, math.nan, np.float32("nan"), np.datetime64("NaT"), Decimal("NaN"))
            for operator in ("$ne", "$in")
            for column, kind in (("word", "string"), ("number", "int64"), ("taken", "timestamp[us, tz=UTC]"))
        ),
        ({"length": np.timedelta64("NaT")}, "$eq of column 'length' (duration[us])"),
        ({"share": {"$in": {math.nan}}}, "$in of column 'share' (float)"),
        ({"number": {"$nin": pd.array([1, None], dtype="Int64")}}, "$nin of column 'number' (int64)"),
        ({"nothing": {"$ne": pd.NaT}}, "$ne of column 'nothing' (null)"),
    ],
)
def test_values_without_a_meaning_are_refused(
    likeness: Likeness, client: LikenessClient, where: Any, refusal: str
) -> None:
    """Missing ones of other libraries too, of which only None is a value, by their column and in all ways to search."""
    if ", got " not in refusal:
        refusal = f"(for a missing value use null, in Python None) for {refusal}, got NaN"
    queries: list[tuple[Callable[..., object], dict[str, Any]]]
    queries = [(likeness.search, {"id": "0"}), (client.search, {"id": "0"}), (client.search, {"image": PNG})]
    for search, query in queries:
        with pytest.raises((Problem, RequestRefused), match=re.escape(refusal)):
            search(**query, filter=where)


PNG = png((1, 2, 3))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (["a.png", "b.png"], "got a list of str: expected one query, or a vector"),
        (("a.png",), r"use search_batch\(…\) for a result for each query, and queries=\[{"),
        ([Path("a.png")], "got a list of PosixPath"),
        ([PNG, PNG], "got a list of bytes"),
        ([{"id": "0"}], "got a list of dict"),
        ([None], "got a list of NoneType"),
        ([1.0, "a"], "expected a vector, a list of numbers, got"),
        ([[1.0], [1.0, 2.0]], "expected a vector, got lists of different lengths"),
        (np.array(["a", "b"]), "expected a vector, a list of numbers"),
        (np.array([None]), "expected a vector, a list of numbers"),
    ],
)
def test_several_queries_are_no_vector(likeness: Likeness, query: Any, message: str) -> None:
    for call in (likeness.search, likeness.vector, likeness.explore):
        with pytest.raises(TypeError, match=message):
            call(query)


@pytest.mark.parametrize("value", ["blue", None])
def test_keywords_that_would_have_no_effect_are_refused_alike(
    likeness: Likeness, client: LikenessClient, value: str | None
) -> None:
    unknown: dict[str, Any] = {"id": "0", "txt": value}
    each: Any
    for each in (likeness, client):
        calls: list[Callable[[], object]] = [
            partial(each.search, **unknown),
            partial(each.search, queries=[unknown]),
            partial(each.search_batch, [{"id": "0"}], txt=value),
        ]
        for call in calls:
            with pytest.raises(TypeError, match="got txt: expected keywords among"):
                call()


def test_a_wrong_search_of_a_batch_has_its_error_in_its_place(likeness: Likeness, client: LikenessClient) -> None:
    expected: list[tuple[Any, type[Exception] | None, str]] = [
        ({"id": "0"}, None, ""),
        ({"text": ""}, ApiError, "text: expected words that say what to look for"),
        ({"image": "/nowhere.png"}, FileNotFoundError, "/nowhere.png"),
        ({"id": "none"}, ApiError, 'has no image "none"'),
        ({"id": "1", "k": 0}, ApiError, "k: expected a whole number from 1 to"),
        ({"id": "1", "txt": None}, TypeError, "got txt: expected keywords among"),
        ({"image": "http://a.example/"}, ValueError, "use url="),
        (None, TypeError, 'got None: expected a search, such as {"text": "a red star"}'),
        ({"id": "2"}, None, ""),
    ]
    searches: Any = [search for search, _, _ in expected]
    for found in (likeness.search_batch(searches, k=3), client.search_batch(iter(searches), k=3)):
        for outcome, (search, error, message) in zip(found, expected, strict=True):
            if error is None:
                assert isinstance(outcome, Matches)
                nearest = [match.image_id for match in likeness.search(id=search["id"], k=3)]
                assert [match.image_id for match in outcome] == nearest
            else:
                assert isinstance(outcome, error)
                assert message in str(outcome)
    for found in (likeness.search_batch([]), client.search_batch([]), client.search_batch([{"image": "/nowhere.png"}])):
        assert all(isinstance(outcome, FileNotFoundError) for outcome in found)


def test_an_image_and_an_embedding_are_one_each(likeness: Likeness, client: LikenessClient) -> None:
    several: Any = ["a.png", "b.png"]
    for search in (likeness.search, client.search):
        with pytest.raises(TypeError, match=r"expected a vector, a list of numbers, got \['a.png', 'b.png'\]"):
            search(embedding=several)
        with pytest.raises(TypeError, match=r"expected a vector, \(dim,\), got \(1, 16\): give one row of it"):
            search(embedding=np.ones((1, 16)))
        with pytest.raises(TypeError, match=r"expected a vector, \(dim,\), got \(\)$"):
            search(embedding=0.5)
        with pytest.raises(TypeError, match=r"expected a picture as a path, .* or a PIL image, got list"):
            search(image=several)
        with pytest.raises(ValueError, match=r"expected a picture as .*b\.png': in a search use url="):
            search(image="http://a.example/b.png")
    for name in ("id", "text", "url"):
        query: Any = {name: several}
        with pytest.raises(TypeError, match=rf"got {name} \['a.png', 'b.png'\]: expected one string; search_batch"):
            likeness.search(**query)
    with pytest.raises(TypeError, match=r"got \['a\.png', 'b\.png'\] in queries: expected a list of examples"):
        likeness.search(queries=several)
    assert likeness.search(np.arange(16, dtype=np.int8) + 1, k=2)[0].score is not None  # any numbers are a vector


def test_half_a_character_is_no_id(likeness: Likeness, client: LikenessClient) -> None:
    for call in (likeness.thumbnail, client.image, client.picture, lambda image_id: likeness.mark([image_id], "x")):
        with pytest.raises(
            (QueryError, RequestRefused), match=r"version 000001 (has|holds) no image|id: expected UTF-8"
        ):
            call(HALF)
    with pytest.raises(Problem, match="text: expected words that say what to look for, in UTF-8"):
        likeness.search(HALF)


def test_no_query_has_no_vector(likeness: Likeness) -> None:
    nothing: Any = None
    for call in (likeness.vector, lambda: likeness.understands(nothing), lambda: likeness.vector(queries=None)):
        with pytest.raises(TypeError, match="got no query: expected one"):
            call()


def test_a_pickle_of_a_result_says_what_to_pickle(likeness: Likeness) -> None:
    found = likeness.search("0", k=2)
    for each in (likeness, found, likeness.show(["0"])):
        with pytest.raises(TypeError, match=r"a Likeness cannot be pickled, nor a grid .*, as in list\(found\)"):
            pickle.dumps(each)
    assert pickle.loads(pickle.dumps(list(found))) == list(found)
