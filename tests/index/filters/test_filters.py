"""Filters: agreement with a plain evaluator, hand-made cases that it does not cover, and refusals."""

from __future__ import annotations

import json
import math
import operator
import pickle
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import CollectionError, FilterError, QueryError
from index.filters.filter import MAX_DEPTH, Filter

NOON = datetime(2024, 5, 31, 12, tzinfo=UTC)
BATCH = pa.record_batch(
    {
        "label": pa.array(["cat", "dog", None, "category"]),
        "large": pa.array(["cat", "dog", None, "category"], pa.large_string()),
        "view": pa.array(["cat", "dog", None, "category"], pa.string_view()),
        "kind": pa.array(["cat", "dog", None, "category"]).dictionary_encode(),
        "width": pa.array([1, 10, None, 11], pa.int32()),
        "tiny": pa.array([-128, 0, None, 127], pa.int8()),
        "huge": pa.array([0, 2**53 + 1, None, 2**64 - 1], pa.uint64()),
        "score": [0.0, -0.0, None, math.nan],
        "single": pa.array([0.1, math.inf, None, -1], pa.float32()),
        "half": pa.array([0.1, 2, None, -1], pa.float16()),
        "public": [True, False, None, True],
        "taken": pa.array([NOON, NOON + timedelta(microseconds=1), None, NOON], pa.timestamp("us", "UTC")),
        "nanos": pa.array([0, 1, None, 10**18], pa.timestamp("ns")),
        "seconds": pa.array([0, 1, None, 2], pa.timestamp("s", "Asia/Tokyo")),
        "day": [date(2024, 5, 30), date(2024, 5, 31), None, date(2024, 6, 1)],
        "day64": pa.array([date(2024, 5, 30), date(2024, 5, 31), None, date(2024, 6, 1)], pa.date64()),
        "tags": [["red", "blue"], [], None, [None, "green"]],
        "kinds": pa.array([["a", "b"], [], None, ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        "box": pa.array([[1, 5], [3, 3], None, [7, None]], pa.list_(pa.int16(), 2)),
        "times": pa.array([[NOON], [], None, [NOON, NOON]], pa.large_list(pa.timestamp("us", "UTC"))),
        "empty": pa.nulls(4),
        "exif": [{"iso": 100}, {"iso": None}, None, {"iso": 3}],
        "blob": [b"a", b"b", None, b"c"],
        "$odd": [1, 2, 3, 4],
    }
)


def matching(expression: Any, batch: pa.RecordBatch = BATCH) -> list[int]:
    """Positions of the rows that match."""
    mask = Filter.parse(expression, batch.schema).mask(batch)
    assert mask.dtype == bool
    assert mask.shape == (len(batch),)
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("column", ["large", "view"])
@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("cat", [0]),
        ({"$in": ["cat", None]}, [0, 2]),
        ({"$nin": ["cat", None]}, [1, 3]),
        ({"$gte": "cat", "$lt": "dog"}, [0, 3]),
        ({"$prefix": "cat"}, [0, 3]),
        ({"$exists": False}, [2]),
        ({"$not": {"$not": {"$eq": "dog"}}}, [1]),
        ({}, [0, 1, 2, 3]),
    ],
)
def test_other_text_types(column: str, condition: object, rows: list[int]) -> None:
    assert matching({column: condition}) == rows


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ({"width": 10.0}, [1]),
        ({"width": {"$in": [10.5, 11, 2**70, 1e400]}}, [3]),
        ({"huge": float(2**53)}, []),
        ({"huge": {"$gt": float(2**53)}}, [1, 3]),
        ({"huge": {"$gte": 2**64 - 1}}, [3]),
        ({"huge": {"$gt": -1}}, [0, 1, 3]),
        ({"score": {"$lt": 10**400}}, [0, 1]),
        ({"score": {"$gt": -(10**400)}}, [0, 1]),
        ({"single": 0.1}, [0]),
        ({"single": {"$in": [0.1, -1]}}, [0, 3]),
        ({"half": 0.1}, [0]),
        ({"half": {"$gte": 1e300}}, []),
        ({"taken": "2024-05-31T12:00:00Z"}, [0, 3]),
        ({"taken": "2024-05-31 14:00:00+02:00"}, [0, 3]),
        ({"taken": {"$gte": "2024-05-31", "$lt": "2024-06-01"}}, [0, 1, 3]),
        ({"taken": {"$in": ["2024-05-31T12:00:00.000001", None]}}, [1, 2]),
        ({"nanos": {"$gt": "1970-01-01"}}, [1, 3]),
        ({"nanos": {"$lt": "9999-12-31"}}, [0, 1, 3]),
        ({"nanos": {"$gte": "0001-01-01T00:00+14:00"}}, [0, 1, 3]),
        ({"seconds": "1970-01-01T00:00:01.5Z"}, []),
        ({"seconds": {"$gt": "1970-01-01T00:00:00.5Z"}}, [1, 3]),
        ({"day": "2024-05-31"}, [1]),
        ({"day": "2024-05-31T12:00"}, []),
        ({"day": {"$gte": "2024-05-31T12:00"}}, [3]),
        ({"day64": {"$in": ["2024-05-31", "2024-06-01T02:00+02:00"]}}, [1, 3]),
        ({"kinds": "b"}, [0, 3]),
        ({"box": 3}, [1]),
        ({"box": {"$gt": 2, "$lt": 2}}, [0]),
        ({"box": {"$gt": -(2**70)}}, [0, 1, 3]),
        ({"times": "2024-05-31T12:00Z"}, [0, 3]),
        ({"empty": None}, [0, 1, 2, 3]),
        ({"empty": "cat"}, []),
        ({"empty": {"$ne": 3}}, [0, 1, 2, 3]),
        ({"empty": {"$gt": True}}, []),
        ({"empty": {"$prefix": "c"}}, []),
        ({"exif": {"$exists": True}}, [0, 1, 3]),
        ({"exif": {"$not": {"$exists": True}}}, [2]),
        ({"blob": {"$exists": False}}, [2]),
    ],
)
def test_types_that_the_plain_evaluator_does_not_cover(expression: object, rows: list[int]) -> None:
    assert matching(expression) == rows


COMPARISONS = "$eq, $ne, $in, $nin, $gt, $gte, $lt, $lte, $prefix, $match, $exists, $not"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (None, "a filter takes an object, got null"),
        ({"$and": []}, "$and takes a list of one or more objects, got an empty list"),
        ({"$or": {"label": "cat"}}, "$or takes a list of one or more objects, got an object"),
        ({"$or": ["cat"]}, "a filter takes an object, got 'cat'"),
        ({"label": {"$not": "cat"}}, "column 'label' (string): $not takes an object, got 'cat'"),
        ({"$nor": []}, f"unknown operator '$nor'; on a column: {COMPARISONS}; on whole filters: $and, $or, $not"),
        ({"width": {"min": 3}}, f"unknown operator 'min'; on a column: {COMPARISONS}; on whole filters: $and,"),
        ({"width": {"$gt": True}}, "column 'width' (int32): $gt takes a number, got true"),
        ({"score": {"$lt": math.nan}}, "column 'score' (double): $lt takes a number, got NaN"),
        ({"label": {"$in": "cat"}}, "column 'label' (string): $in takes a list, got 'cat'"),
        ({"label": {"$nin": ["cat", ["dog"]]}}, "column 'label' (string): $nin takes text, got a list"),
        ({"label": ["cat", "dog"]}, "column 'label' (string): $eq takes text (for a list use $in), got a list"),
        ({"width": {"$ne": [1]}}, "column 'width' (int32): $ne takes a number (for a list use $nin), got a list"),
        ({"label": "\ud800"}, "column 'label' (string): $eq takes text, got '\\ud800'"),
        ({"label": {"$exists": 1}}, "column 'label' (string): $exists takes true or false, got 1"),
        ({"public": 1}, "column 'public' (bool): $eq takes true or false, got 1"),
        ({"day": "x" * 99}, "column 'day' (date32[day]): $eq takes a time such as '2024-05-31' or "),
        ({"day": 2024}, "'2024-05-31T12:00:00Z', got 2024"),
        ({"box": {"$gt": "a"}}, "column 'box' (list<item: int16>): $gt takes a number, got 'a'"),
        (
            {"exif": {"$in": []}},
            "column 'exif' (struct<iso: int64>): it holds nested values, which filters cannot look into: only $exists",
        ),
        ({"empty": []}, "$eq takes text, a number, true or false (for a list use $in), got an empty list"),
        ({"$or": [{"$and": [{"label": "cat"}] * 110}] * 110}, "at most 10,000 conditions and 100,000 values"),
        ({"label": {"$in": ["cat"] * 200_000}}, "at most 10,000 conditions and 100,000 values"),
    ],
)
def test_invalid_filters_are_refused(expression: Any, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        Filter.parse(expression, BATCH.schema)
    assert message in str(caught.value)
    assert caught.value.expected
    assert caught.value.got


@pytest.mark.parametrize(
    ("expression", "expected", "got"),
    [
        (["label"], "an object for a filter", "a list"),
        ({"$and": 3}, "a list of one or more objects for $and", "3"),
        ({"width": "a takes b, got c"}, "a number for $eq of column 'width' (int32)", "'a takes b, got c'"),
        ({"width": {"$prefix": "1"}}, "a column of text for $prefix", "column 'width' (int32)"),
        ({"blob": 1}, "only $exists of column 'blob' (binary)", "$eq"),
        ({"a takes b, got c": 1}, None, "unknown column 'a takes b, got c'"),
    ],
)
def test_an_error_has_what_was_expected_and_what_was_given(expression: Any, expected: str | None, got: str) -> None:
    with pytest.raises(FilterError) as caught:
        Filter.parse(expression, BATCH.schema)
    known = str(caught.value).rpartition("columns that can be filtered: ")[2]
    assert (caught.value.expected, caught.value.got) == (expected or f"one of the columns {known}", got)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.expected, copied.got) == (str(caught.value), caught.value.expected, got)


def test_an_unknown_column_is_refused_with_the_known_ones() -> None:
    schema = BATCH.select(["label", "kind", "tags", "exif", "$odd"]).schema
    for name in ("width", "\ud800"):
        with pytest.raises(QueryError) as caught:
            Filter.parse({name: 1}, schema)
        assert str(caught.value) == (
            f"unknown column {name!r}; columns that can be filtered: label (string), kind (string), "
            "tags (list<item: string>), exif (struct<iso: int64>, $exists alone)"
        )
    with pytest.raises(FilterError, match="can be filtered: none"):
        Filter.parse({"label": 1}, pa.schema([]))


def test_a_message_is_short_even_with_many_columns() -> None:
    wide = pa.struct([(f"field{number}", pa.int64()) for number in range(100)])
    schema = pa.schema([("wide", wide), *((f"column{number}", pa.int64()) for number in range(1_500))])
    for expression in ({"colour": "red"}, {"wide": 1}):
        with pytest.raises(FilterError) as caught:
            Filter.parse(expression, schema)
        message = str(caught.value)
        assert "wide (struct<field0: int64" in message
        assert "..., $exists alone), column0 (int64), " in message
        assert message.endswith("column28 (int64) and 1,471 more")
        assert len(message) < 1_000


@pytest.mark.parametrize("deeper", [lambda inner: {"$not": inner}, lambda inner: {"$or": [{}, inner]}])
def test_nesting_has_a_limit(deeper: Callable[[object], object]) -> None:
    expression: object = {"label": "cat"}
    for _ in range(MAX_DEPTH):
        expression = deeper(expression)
    assert len(matching(expression)) in (1, 4)
    for more in (1, 50_000):
        for _ in range(more):
            expression = deeper(expression)
        with pytest.raises(FilterError, match=r"nested deeper than 32 levels|at most 10,000 conditions"):
            matching(expression)


def test_deep_operands_are_refused() -> None:
    inside: object = {"$eq": 1}
    operand: object = 1
    for _ in range(50_000):
        inside, operand = {"$not": inside}, [operand]
    with pytest.raises(FilterError, match=r"nested deeper than 32 levels|at most 10,000 conditions"):
        matching({"width": inside})
    with pytest.raises(FilterError, match="nested deeper than 32 levels"):
        matching({"width": operand})
    with pytest.raises(FilterError, match=r"\$eq takes a number \(for a list use \$in\), got a list"):
        matching({"width": [[[1]]]})
    endless: dict[str, Any] = {}
    endless["$not"] = endless
    with pytest.raises(FilterError, match="nested deeper than 32 levels"):
        matching(endless)


def test_filters_are_equal_if_their_canonical_json_is() -> None:
    one = Filter.parse({"width": {"$gt": 1, "$lt": 9}, "label": "é"}, BATCH.schema)
    other = Filter.parse({"label": "é", "width": {"$lt": 9, "$gt": 1}}, BATCH.schema)
    assert one == other
    assert len({one, other, Filter.parse({"label": "é"}, BATCH.schema)}) == 2
    assert json.loads(one.key) == {"width": {"$gt": 1, "$lt": 9}, "label": "é"}
    widths = [Filter.parse({"width": 1}, pa.schema({"width": kind})) for kind in (pa.int32(), pa.float64())]
    assert widths[0].key == widths[1].key
    assert widths[0].typed_key != widths[1].typed_key
    assert repr(one) == f"Filter(key={one.key!r})"


def test_a_filter_knows_its_columns() -> None:
    low, either = {"width": {"$gte": 1, "$lt": 11}}, {"$or": [{"label": "dog"}, {"$not": {"score": {"$exists": True}}}]}
    whole = Filter.parse({"$and": [low, {"$and": [either]}], "tags": {"$ne": "red"}}, BATCH.schema)
    assert whole.columns == {"width", "label", "score", "tags"}


def test_equal_sets_make_equal_filters() -> None:
    words = [f"{number}" for number in range(100)]
    keys = {Filter.parse({"label": {"$in": each}}, BATCH.schema).key for each in ({*words}, frozenset(reversed(words)))}
    assert keys == {json.dumps({"label": {"$in": sorted(words, key=repr)}})}


def test_a_filter_does_not_change_with_its_expression() -> None:
    expression: dict[str, Any] = {"label": {"$in": ["cat"]}}
    condition = Filter.parse(expression, BATCH.schema)
    expression["label"]["$in"].append("dog")
    expression["width"] = 3
    assert condition.mask(BATCH).tolist() == [True, False, False, False]


@pytest.mark.parametrize("name", [name for name in BATCH.schema.names if name != "$odd"])
def test_every_type_in_slices_empty_batches_and_missing_columns(name: str) -> None:
    batch = BATCH.select([name])
    for expression in ({name: {"$exists": True}}, {"$not": {name: {"$exists": False}}}):
        condition = Filter.parse(expression, batch.schema)
        present = [False] * 4 if name == "empty" else [True, True, False, name != "score"]  # NaN is no value
        assert condition.mask(batch).tolist() == present
        assert condition.mask(batch.slice(1, 2)).tolist() == present[1:3]
        assert condition.mask(batch.slice(4)).tolist() == []
        assert condition.mask(pa.record_batch({"other": [1, 2, 3, 4]})).tolist() == [False] * 4


@pytest.mark.parametrize(
    ("declared", "stored", "condition", "rows"),
    [
        (pa.float64(), pa.array([1, 2, None]), {"$gt": 1.5}, [1]),
        (pa.string(), pa.array([1, 2, None]), "2", [1]),
        (pa.string(), pa.array(["1", "2", None]).dictionary_encode(), "2", [1]),
        (pa.dictionary(pa.int8(), pa.string()), pa.array(["1", "2", None]), "2", [1]),
        (pa.int64(), pa.array([1, 2, None], pa.int8()), {"$gte": 2}, [1]),
        (pa.int64(), pa.nulls(3), {"$ne": 2}, [0, 1, 2]),
        (pa.list_(pa.float64()), pa.array([[1], [2, 3], None]), 3.0, [1]),
        (pa.large_list(pa.string()), pa.array([["a"], ["b"], None]), "b", [1]),
        (pa.timestamp("ns", "UTC"), pa.array([0, 10**6, None], pa.timestamp("us")), "1970-01-01T00:00:01", [1]),
    ],
)
def test_other_types_are_cast(declared: pa.DataType, stored: pa.Array[Any], condition: object, rows: list[int]) -> None:
    found = Filter.parse({"x": condition}, pa.schema([("x", declared)]))
    batch = pa.record_batch({"x": stored})
    assert np.flatnonzero(found.mask(batch)).tolist() == rows
    assert found.mask(batch.slice(3)).tolist() == []
    without = found.mask(pa.record_batch({"y": [1, 2]}))
    assert without.tolist() == [isinstance(condition, dict) and "$ne" in condition] * 2


@pytest.mark.parametrize(("declared", "stored"), [(pa.int64(), pa.array(["a"])), (pa.string(), pa.array([["a"]]))])
def test_a_column_that_cannot_be_cast_is_named(declared: pa.DataType, stored: pa.Array[Any]) -> None:
    condition = Filter.parse({"year": {"$ne": None}}, pa.schema([("year", declared)]))
    with pytest.raises(
        CollectionError, match=re.escape(f"column 'year' is '{stored.type}': expected values that fit {declared},")
    ):
        condition.mask(pa.record_batch({"year": stored}))


def test_a_null_list_with_elements_does_not_match() -> None:
    items: Any = pa.array([1, 2, 3])
    nulls: Any = pa.array([True, False, False])
    batch = pa.record_batch({"x": pa.ListArray.from_arrays(pa.array([0, 2, 3, 3], pa.int32()), items, mask=nulls)})
    assert matching({"x": {"$gt": 0}}, batch) == [1]
    assert matching({"x": {"$gt": 0}}, batch.slice(1)) == [0]


# Comparison with a plain evaluator, on random rows and expressions

Row = dict[str, Any]
ORDER: dict[str, Callable[[Any, Any], bool]]
ORDER = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
TYPES: dict[str, pa.DataType] = {
    "text": pa.string(),
    "kind": pa.dictionary(pa.int8(), pa.string()),
    "tiny": pa.int8(),
    "long": pa.int64(),
    "real": pa.float64(),
    "flag": pa.bool_(),
    "time": pa.timestamp("ms", "UTC"),
    "tags": pa.list_(pa.string()),
    "list": pa.large_list(pa.int16()),
}

words = st.text("ab", max_size=3)
numbers = st.sampled_from([0, 1, -1, 2, 127, -128, 2**53, 2**53 + 1])
moments = st.integers(-3, 3).map(lambda half_days: NOON + timedelta(hours=12 * half_days))
lists = {"tags": words, "list": st.integers(-3, 3)}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": words,
    "kind": words,
    "tiny": st.sampled_from([0, 1, -1, 127, -128]),
    "long": numbers,
    "real": st.sampled_from([0.0, -0.0, 0.5, -1.0, 1.0, math.inf, -math.inf, math.nan, 2.0**53]),
    "flag": st.booleans(),
    "time": moments,
    **{name: st.lists(st.none() | items, max_size=3) for name, items in lists.items()},
}
# Floats cannot represent 2**53 + 1, so it is not an operand for them.
real_operands = numbers.filter(lambda number: number != 2**53 + 1) | st.sampled_from([0.5, -0.5, math.inf, -math.inf])
whole_operands = numbers | st.sampled_from([0.5, -0.5, 127.5, -128.5, 2**70, -(2**70), math.inf, -math.inf, 2.0**53])
zones = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30))])
OPERANDS: dict[str, st.SearchStrategy[Any]] = {
    **VALUES,
    "tiny": whole_operands,
    "long": whole_operands,
    "real": real_operands,
    "time": st.builds(
        lambda moment, zone: moment.astimezone(zone or UTC).replace(tzinfo=zone).isoformat(), moments, zones
    ),
    "tags": words,
    "list": whole_operands,
}


def conditions(name: str) -> st.SearchStrategy[Any]:
    operand = OPERANDS[name]
    maybe = st.none() | operand
    operators = {
        **dict.fromkeys(("$eq", "$ne"), maybe),
        **dict.fromkeys(("$in", "$nin"), st.lists(maybe, max_size=4)),
        **dict.fromkeys(ORDER, operand),
        "$exists": st.booleans(),
        **({"$prefix": words} if name in ("text", "kind", "tags") else {}),
    }
    several = st.fixed_dictionaries({}, optional=operators)
    return maybe | several | st.fixed_dictionaries({"$not": several}, optional=operators)


def joined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries({}, optional={"$and": some, "$or": some, "$not": inner, "text": st.none() | words})


on_columns = st.lists(st.sampled_from(list(TYPES)), max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: conditions(name) for name in names})
)
expressions = st.recursive(on_columns, joined, max_leaves=4)
rows = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), max_size=6)


@given(rows, expressions, st.integers(0, 3))
def test_masks_equal_a_plain_evaluator(rows: list[Row], expression: Row, start: int) -> None:
    schema = pa.schema(list(TYPES.items()))
    batch = pa.RecordBatch.from_pylist(rows, schema=schema).slice(start)
    expected = [matches(row, expression) for row in rows[start:]]
    found = Filter.parse(expression, schema)
    assert found.mask(batch).tolist() == expected
    assert pickle.loads(pickle.dumps(found)).mask(batch).tolist() == expected


def matches(row: Row, expression: Row) -> bool:
    joins: dict[str, Callable[[Any], bool]] = {
        "$and": lambda parts: all(matches(row, part) for part in parts),
        "$or": lambda parts: any(matches(row, part) for part in parts),
        "$not": lambda inner: not matches(row, inner),
    }
    return all(
        joins[name](operand) if name in joins else holds(row[name], operand) for name, operand in expression.items()
    )


def holds(value: Any, condition: Any) -> bool:
    value = None if value != value else value  # NaN
    if not isinstance(condition, dict):
        return compares(value, "$eq", condition)
    return all(compares(value, name, operand) for name, operand in condition.items())


def compares(value: Any, name: str, operand: Any) -> bool:
    if name in ("$ne", "$nin"):
        return not compares(value, {"$ne": "$eq", "$nin": "$in"}[name], operand)
    if name == "$not":
        return not holds(value, operand)
    if name == "$in":
        return any(compares(value, "$eq", each) for each in operand)
    if name == "$exists":
        return (value is not None) is operand
    if operand is None or value is None:
        return name == "$eq" and operand is value
    if isinstance(value, list):
        return any(each is not None and compares(each, name, operand) for each in value)
    if isinstance(value, datetime):
        moment = datetime.fromisoformat(operand)
        operand = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if name == "$prefix":
        return bool(value.startswith(operand))
    return bool({"$eq": operator.eq, **ORDER}[name](value, operand))


KEYS = [*BATCH.schema.names, *COMPARISONS.split(", "), "$and", "$or", "", "\ud800"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", 2**70, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=3) | json_values)
def test_any_json_gives_a_mask_or_a_filter_error(expression: Any) -> None:
    try:
        condition = Filter.parse(expression, BATCH.schema)
    except FilterError:
        return
    assert condition.mask(BATCH).shape == (4,)
