"""Metadata of every Arrow type, from a list to filters: what an answer shows finds the image again."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import datetime as dt
import decimal
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.documents import json_bytes
from index.builder.build_index import build_index
from index.collection import Collection
from index.errors import FilterError
from index.search import Searcher
from jobs.embedding.model_source import model_record
from jobs.embedding.placement import Place
from jobs.planning.changes import compare
from jobs.planning.decide import PlannedJob
from jobs.sources.stored_listing import Listing
from tests.support.collections.small_collection import png
from tests.support.listings import list_images
from tests.support.nights.fake_job import FAKE, embed

ROWS = 8
NOON = dt.datetime(2024, 5, 6, 12, 8, 9, 123456)
DAYS = [NOON + dt.timedelta(days=number) for number in range(ROWS)]
CENTS = [decimal.Decimal(f"{number}.10") for number in range(ROWS)]
CLOCK = [dt.time(number, 30, number, 1000 * number) for number in range(ROWS)]
SPANS = [dt.timedelta(seconds=90 * number - 100, milliseconds=number) for number in range(ROWS)]
COLUMNS: dict[str, pa.Array[Any]] = {
    "": pa.array(range(ROWS)),  # pandas' index in a CSV
    "u64": pa.array([2**64 - 1 - number for number in range(ROWS)], pa.uint64()),
    "i64": pa.array([2**53 + 1 + number for number in range(ROWS)], pa.int64()),
    "i8": pa.array([*range(-4, 3), None], pa.int8()),
    "f16": pa.array([number / 8 for number in range(ROWS)], pa.float16()),
    "f64": pa.array([number / 3 for number in range(ROWS)]),
    "nan": pa.array([float("nan") if number % 3 == 1 else number / 3 for number in range(ROWS)]),
    "decimal32": pa.array(CENTS, pa.decimal32(5, 2)),
    "decimal64": pa.array([*CENTS[1:], None], pa.decimal64(12, 3)),
    "decimal128": pa.array([-cent for cent in CENTS], pa.decimal128(12, 2)),
    "decimal256": pa.array([decimal.Decimal(10**40 + number) for number in range(ROWS)], pa.decimal256(50, 0)),
    "hundreds": pa.array([decimal.Decimal(100 * number) for number in range(ROWS)], pa.decimal128(5, 0)),
    "date32": pa.array([day.date() for day in DAYS], pa.date32()),
    "date64": pa.array([day.date() for day in DAYS], pa.date64()),
    "time32_s": pa.array([time.replace(microsecond=0) for time in CLOCK], pa.time32("s")),
    "time32_ms": pa.array(CLOCK, pa.time32("ms")),
    "time64": pa.array([None, *CLOCK[1:]], pa.time64("us")),
    "span_s": pa.array([dt.timedelta(seconds=90 * number) for number in range(ROWS)], pa.duration("s")),
    "span": pa.array(SPANS, pa.duration("us")),
    "stamp": pa.array(DAYS, pa.timestamp("us")),
    "zoned": pa.array([day.replace(tzinfo=dt.UTC) for day in DAYS], pa.timestamp("us", "Asia/Kathmandu")),
    "offset": pa.array([day.replace(tzinfo=dt.UTC) for day in DAYS], pa.timestamp("us", "-07:00")),
    "text": pa.array(["a", "b", None, "a", "", "B", "ü", "c d"]),
    "kind": pa.array(["a", "b", None, "a", "b", "a", "c", "c"]).dictionary_encode(),
    "flag": pa.array([True, None, False, True, None, False, True, True]),
    "texts": pa.array([["x", f"t{number}"] if number else None for number in range(ROWS)]),
    "numbers": pa.array([[number, number + 1] for number in range(ROWS)], pa.list_(pa.int32())),
    "fixed": pa.array([[number / 2, 1] for number in range(ROWS)], pa.list_(pa.float32(), 2)),
    "prices": pa.array([CENTS[:number] for number in range(ROWS)], pa.large_list(pa.decimal128(12, 2))),
    "clocks": pa.array([CLOCK[number:] for number in range(ROWS)], pa.list_(pa.time64("us"))),
    "spans": pa.array([[span] for span in SPANS], pa.list_(pa.duration("us"))),
    "days": pa.array([DAYS[:2], [], None, *([day] for day in DAYS[3:])], pa.list_(pa.timestamp("us"))),
    "kinds": pa.array([["a"], ["b", "a"]] * 4, pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "flags": pa.array([[True], [False, None], [], None] * 2, pa.list_(pa.bool_())),
}
NESTED: dict[str, pa.Array[Any]] = {
    "struct": pa.array([{"a": number, "b": {"c": [number]}} for number in range(ROWS)]),
    "map": pa.array([[("k", number)] for number in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    "objects": pa.array([[{"label": "cat"}]] * ROWS),
    "rows": pa.array([[[number], [2]] for number in range(ROWS)]),
}
Compare = Callable[[Any, Any], bool]
ORDERED: dict[str, Compare] = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def embed_list(folder: Path, path: Path) -> Collection:
    """A collection of the pictures of a list, indexed."""
    embed(path, folder / "collection", where=Place())
    collection = Collection.open(str(folder / "collection"))
    build_index(collection)
    return collection


def put_images(folder: Path) -> list[str]:
    names = [f"{number}.png" for number in range(ROWS)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(png((20 * number, 255 - 9 * number, 90)))
    return names


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    folder = tmp_path_factory.mktemp("types")
    names = put_images(folder)
    pq.write_table(pa.table({"uri": names, "id": names, **COLUMNS, **NESTED}), folder / "list.parquet")
    return Searcher.open(embed_list(folder, folder / "list.parquet"))


def found(searcher: Searcher, where: dict[str, Any]) -> list[int]:
    """The numbers of the rows that pass."""
    matches = searcher.search(FAKE.embed_texts(["red"]), k=100, filter=where)[0]
    return sorted(int(match.image_id.partition(".")[0]) for match in matches)


def elements(value: Any) -> list[Any]:
    """What a filter compares: a value, or those of a list; none for null."""
    return [each for each in (value if isinstance(value, list) else [value]) if each is not None]


def others(rows: list[int]) -> list[int]:
    return [row for row in range(ROWS) if row not in rows]


@pytest.mark.parametrize("name", COLUMNS)
def test_every_value_that_an_answer_shows_finds_its_image_again(searcher: Searcher, name: str) -> None:
    values: list[Any] = COLUMNS[name].to_pylist()
    shown = [json.loads(json_bytes(searcher.row(f"{row}.png")))[name] for row in range(ROWS)]
    missing = [row for row, value in enumerate(values) if value is None or value != value]  # NaN

    def rows(test: Compare, value: Any) -> list[int]:
        return [row for row, each in enumerate(values) if any(test(element, value) for element in elements(each))]

    for row in (0, 6):
        for value, operand in zip(elements(values[row]), elements(shown[row]), strict=True):
            equal = rows(operator.eq, value)
            assert row in equal
            assert found(searcher, {name: operand}) == equal
            assert found(searcher, {name: {"$ne": operand}}) == others(equal)
            assert found(searcher, {name: {"$in": [operand, None]}}) == sorted({*equal, *missing})
            assert found(searcher, {name: {"$nin": [operand, None]}}) == others([*equal, *missing])
            for condition, test in () if isinstance(value, bool) else ORDERED.items():
                assert found(searcher, {name: {condition: operand}}) == rows(test, value), condition
    assert found(searcher, {name: {"$exists": False}}) == missing
    assert found(searcher, {name: {"$exists": True}}) == others(missing)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({"decimal128": -3.1}, [3]), ({"decimal128": {"$lt": -6.105}}, [7]),
        ({"decimal128": {"$gt": -0.1000001}}, [0]),
        ({"decimal128": {"$in": ["-1.1", "-2.100", -3.1000001, 1e300]}}, [1, 2]), ({"decimal256": 10**40 + 5}, [5]),
        ({"decimal256": {"$gt": 1e308}}, []), ({"decimal32": {"$lte": "1e99"}}, list(range(ROWS))),
        ({"hundreds": {"$gte": 650}}, [7]), ({"time64": {"$gte": "06:30", "$lt": "07:30:07"}}, [6]),
        ({"time32_s": "02:30:02.5"}, []), ({"time32_s": {"$gt": "02:30:01.5", "$lt": "02:30:02.000001"}}, [2]),
        ({"span_s": 90}, [1]), ({"span_s": {"$gt": 89.5, "$lte": "00:03:00"}}, [1, 2]),
        ({"span_s": {"$gte": "P1D"}}, []), ({"span": {"$lt": "-PT1M40S"}}, []), ({"span": {"$lt": 0}}, [0, 1]),
        ({"prices": {"$gt": 6}}, [7]), ({"texts": {"$prefix": "t3"}}, [3]),
        ({"texts": {"$in": ["t1", "t7"]}}, [1, 7]), ({"texts": {"$ne": "x"}}, [0]),
        ({"$not": {"numbers": {"$lt": 6}}}, [6, 7]),
    ],
)  # fmt: skip
def test_values_between_those_that_are_stored(searcher: Searcher, where: dict[str, Any], rows: list[int]) -> None:
    assert found(searcher, where) == rows


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("condition", ["x", {"$in": ["x"]}, {"$gt": 3}, {"$prefix": "{"}])
def test_nested_values_are_refused(searcher: Searcher, name: str, condition: object) -> None:
    message = f"column '{name}' .*it holds nested values, which filters cannot look into: only \\$exists works"
    with pytest.raises(FilterError, match=message):
        found(searcher, {name: condition})
    assert found(searcher, {name: {"$exists": True}}) == list(range(ROWS))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"decimal128": "1,5"}, r"\$eq takes a number, or one as text, got '1,5'"),
        ({"decimal128": True}, r"\$eq takes a number, or one as text, got true"),
        ({"decimal128": {"$lt": "1e999999999"}}, r"\$lt takes a number, or one as text"),
        ({"decimal128": {"$prefix": "1"}}, r"\$prefix works only on text"),
        ({"time64": "noon"}, r"\$eq takes a time of day such as '12:30' or '12:30:59.5', got 'noon'"),
        ({"time64": "12:30Z"}, r"takes a time of day"),
        ({"time64": 12}, r"takes a time of day"),
        ({"span": "soon"}, r"\$eq takes seconds, or a duration such as 'PT1M30S', got 'soon'"),
        ({"texts": 1}, r"\$eq takes text, got 1"),
        ({"texts": ["x"]}, r"\$eq takes text \(for a list use \$in\), got a list"),
    ],
)
def test_operands_of_another_kind_are_refused(searcher: Searcher, where: dict[str, Any], message: str) -> None:
    with pytest.raises(FilterError, match=message):
        found(searcher, where)


def test_lists_have_facets_and_nested_values_have_none(searcher: Searcher) -> None:
    counts = searcher.facets(None).values
    assert counts["kinds"] == {"a": 8, "b": 4}
    assert not NESTED.keys() & counts.keys()


def test_nights_with_other_types_keep_what_can_be_filtered(tmp_path: Path) -> None:
    names = put_images(tmp_path)

    def night(*tags: Any) -> tuple[Collection, int]:
        path = tmp_path / "list.jsonl"
        rows = [{"uri": name, "id": name, "tags": tag} for name, tag in zip(names, tags, strict=False)]
        path.write_text("\n".join(map(json.dumps, rows)))
        before = Collection.create_or_open(str(tmp_path / "collection"))
        model, listing = model_record(FAKE.identity), list_images(str(path))
        change = compare(Listing.of([listing]), before.snapshot(), PlannedJob(source=str(path), model=model))
        return embed_list(tmp_path, path), change.counts.changed

    collection, changed = night(["x"], ["y"], [], None)
    assert changed == 0
    collection, changed = night(["x"], ["y"], [], None, ["x", 5])
    assert changed == 0
    assert found(Searcher.open(collection), {"tags": "x"}) == [0, 4]
    assert found(Searcher.open(collection), {"tags": "y"}) == [1]
    collection, changed = night("x", "z", [None], None, ["x", "5"], "x")
    assert changed == 2
    assert found(Searcher.open(collection), {"tags": "x"}) == [0, 4, 5]
    collection, changed = night("x", None, None, "y", None, None, "y")  # no list is left
    assert changed == 5
    assert found(Searcher.open(collection), {"tags": "y"}) == [3, 6]
    collection, _ = night("x", ["x", "y"], None, [], [1, "z"], 2, [None], [True])  # a column of lists
    searcher, rows = Searcher.open(collection), {"x": [0, 1], "y": [1], "1": [4], "z": [4], "2": [5], "true": [7]}
    assert {tag: found(searcher, {"tags": tag}) for tag in rows} == rows
    assert found(searcher, {"tags": None}) == [2]
    collection, _ = night("x", "y", None, None, "z", "x", "x", {})
    with pytest.raises(FilterError, match="nested values"):
        found(Searcher.open(collection), {"tags": "x"})


EXACT = pa.array([2**53 + 1])


PAIRS: list[tuple[Any, Any, list[Any]]] = [
    (EXACT, pa.array([1.5]), ["9007199254740993", "1.5"]),
    (pa.array([2**53]), pa.array([1.5]), [2.0**53, 1.5]),
    (EXACT.cast(pa.uint64()), pa.array([1.5], pa.float32()), ["9007199254740993", "1.5"]),
    (pa.array([2**24 + 1], pa.int32()), pa.array([1.5], pa.float32()), [2.0**24 + 1, 1.5]),
    (pa.array([2**64 - 1], pa.uint64()), pa.array([-1]), [decimal.Decimal(2**64 - 1), decimal.Decimal(-1)]),
    (pa.array([7], pa.uint32()), pa.array([-1]), [7, -1]),
    (pa.array([[2**53 + 1]]), pa.array([[1.5]]), [["9007199254740993"], ["1.5"]]),
    (pa.array([[1]]), pa.array([1.5]), [[1.0], [1.5]]),
    (pa.array([decimal.Decimal("1.10")]), pa.array([10**18]), [decimal.Decimal("1.10"), decimal.Decimal(10**18)]),
    (pa.array([dt.datetime(1000, 1, 1)], pa.timestamp("s")), pa.array([NOON], pa.timestamp("ns")),
     [dt.datetime(1000, 1, 1), NOON]),
    (pa.array([NOON]), pa.array([NOON], pa.timestamp("us", "Asia/Kathmandu")), [NOON.replace(tzinfo=dt.UTC)] * 2),
    (pa.array([NOON.date()]), pa.array([NOON]), [dt.datetime(NOON.year, NOON.month, NOON.day), NOON]),
    (pa.array([NOON.date()]), pa.array([[NOON]], pa.list_(pa.timestamp("us"))),
     [[dt.datetime(NOON.year, NOON.month, NOON.day)], [NOON]]),
    (pa.array([None], pa.string()), pa.array([7]), [None, 7]),
    (pa.array([True]), pa.array([None], pa.string()), [True, None]),
    (pa.array([None], pa.string()), pa.array([["x"]]), [None, ["x"]]),
    (pa.array([None], pa.string()), pa.nulls(1), [None, None]),
    (pa.array(["007"]), pa.array([7]), ["007", "7"]),
    (pa.array([{"deep": 1}]), pa.array(["text"]), ['{"deep": 1}', '"text"']),
]  # fmt: skip
"""A column in two lists, and its values in the listing."""


@pytest.mark.usefixtures("small_parts")
def test_lists_of_other_types_keep_their_values(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        columns = {f"v{each}": pair[number] for each, pair in enumerate(PAIRS)}
        pq.write_table(pa.table({"uri": [f"{name}.jpg"], **columns}), tmp_path / f"{name}.parquet")
    listing = list_images(str(tmp_path))
    for each, (*_, values) in enumerate(PAIRS):
        found = listing[f"v{each}"].to_pylist()
        assert [(type(value), value) for value in found] == [(type(value), value) for value in values]


@pytest.mark.usefixtures("small_parts")
def test_columns_whose_names_differ_in_case_alone_are_two(tmp_path: Path) -> None:
    for name, columns in (("a", {"X": [1], "x": ["a"]}), ("b", {"x": [4], "X": ["five"]})):
        pq.write_table(pa.table({"uri": [f"{name}.jpg"], **columns}), tmp_path / f"{name}.parquet")
    assert list_images(str(tmp_path)).select(["X", "x"]).to_pydict() == {"X": ["1", "five"], "x": ["a", "4"]}
