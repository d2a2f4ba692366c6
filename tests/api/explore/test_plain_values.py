"""Values of NumPy, pandas and Python in queries and filters: notebooks, clients and a Searcher take the same ones."""

import datetime as dt
import math
import pickle
from collections import UserDict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from api.client import LikenessClient
from api.errors import ClientError, Problem, RequestRefused
from api.explore import Likeness
from api.http.app import create_app
from api.local import running
from index.collection import Collection
from index.errors import QueryError
from index.search import Searcher
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_version, rows, unit_vectors
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
    "tags": pa.array([["x", str(number)] for number in range(ROWS)]),
    "taken": pa.array(DAYS, pa.timestamp("ns", "UTC")),
    "day": pa.array([day.date() for day in DAYS]),
    "opens": pa.array([dt.time(number, 30) for number in range(ROWS)], pa.time64("us")),
    "length": pa.array([dt.timedelta(seconds=number - 1.5) for number in range(ROWS)], pa.duration("us")),
}


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("values")))
    model = model_record(FakeEmbedder().identity)
    vectors = unit_vectors(ROWS, dim=model.dim)
    add_version(collection, rows([str(number) for number in range(ROWS)], vectors, metadata=COLUMNS), model=model)
    return Searcher.open(collection)


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
        ({"queries": [{"id": "1", "weight": math.nan}]}, "weight is nan: expected a finite|without NaN and infinity"),
        ({"embedding": [math.nan] * 16}, "expected finite numbers|without NaN and infinity"),
    ],
)
def test_wrong_searches_are_refused_with_what_was_expected(
    likeness: Likeness, client: LikenessClient, search: dict[str, Any], message: str
) -> None:
    for each in (likeness.search, client.search):
        with pytest.raises((TypeError, ValueError, QueryError, Problem, ClientError), match=message):
            each(**search)


@pytest.mark.parametrize("value", [object(), pa.scalar(1), 1j, b"a", iter([1]), Path, bytearray(b"a"), pd.NA])
def test_other_values_are_refused_alike(likeness: Likeness, client: LikenessClient, value: Any) -> None:
    vector = likeness.searcher.vector("0")
    message = "expected a value that JSON can hold, a time, or one of NumPy or"
    for search in (likeness.search, client.search):
        with pytest.raises(TypeError, match=message):
            search(embedding=vector, filter={"number": value})
    with pytest.raises(TypeError, match=message):
        likeness.searcher.facets({"number": value})


@pytest.mark.parametrize(
    ("where", "got"),
    [
        ({"taken": pd.NaT}, "got 'NaT'"),
        ({"taken": {"$in": [np.datetime64("NaT")]}}, "got 'NaT'"),
        ({"length": np.timedelta64("NaT")}, "got 'NaT'"),
        ({"number": "3"}, "got '3'"),
        ({"number": np.float32("nan")}, "got NaN"),
        ({"share": {"$in": {math.nan}}}, "got NaN"),
        ({"price": Decimal("NaN")}, "got 'NaN'"),
    ],
)
def test_values_without_a_meaning_are_refused(likeness: Likeness, where: Any, got: str) -> None:
    with pytest.raises(Problem, match=got):
        likeness.search("0", filter=where)


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


def test_an_image_and_an_embedding_are_one_each(likeness: Likeness, client: LikenessClient) -> None:
    several: Any = ["a.png", "b.png"]
    for search in (likeness.search, client.search):
        with pytest.raises(TypeError, match=r"expected a vector, a list of numbers, got \['a.png', 'b.png'\]"):
            search(embedding=several)
        with pytest.raises(TypeError, match="expected a picture as a path, a file's bytes or a PIL image, got list"):
            search(image=several)
    for name in ("id", "text", "url"):
        query: Any = {name: several}
        with pytest.raises(TypeError, match=rf"got {name} \['a.png', 'b.png'\]: expected one string; search_batch"):
            likeness.search(**query)
    with pytest.raises(TypeError, match=r"got \['a\.png', 'b\.png'\] in queries: expected a list of examples"):
        likeness.search(queries=several)
    assert likeness.search(np.arange(16, dtype=np.int8) + 1, k=2)[0].score is not None  # any numbers are a vector


def test_half_a_character_is_no_id(likeness: Likeness, client: LikenessClient) -> None:
    for call in (likeness.thumbnail, client.image, client.picture, lambda image_id: likeness.mark([image_id], "x")):
        with pytest.raises((QueryError, RequestRefused), match=r"index version 000001 (has|holds) no image"):
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
