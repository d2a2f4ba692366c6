"""Filters: conditions on the columns of rows, written as in MongoDB, evaluated by Arrow over whole batches.

    {"label": "cat", "width": {"$gte": 640}, "$or": [{"tags": {"$in": ["red", "blue"]}}, {"year": None}]}

Parsing checks everything against a schema and returns a tree of functions from a batch to a mask.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.rows import JSON, REJECT_COLUMNS
from index.errors import FilterError
from index.filters.columns import (
    OPAQUE,
    Column,
    ColumnError,
    Mask,
    Test,
    describe,
    has_steps,
    in_steps,
    int_limits,
    is_text,
    list_columns,
    of_steps,
)

Compare = Callable[[Any, Any], Any]

MAX_DEPTH = 32
"""Maximum nesting of `$and`, `$or` and `$not`."""
_MAX_CONDITIONS = 10_000
_MAX_VALUES = 100_000


@dataclass(frozen=True)
class Filter:
    """A condition on the columns of a row. Filters of one schema are equal if their keys are."""

    key: str
    """The expression as canonical JSON."""
    _test: Test = field(compare=False, repr=False)

    @classmethod
    def parse(cls, expression: Mapping[str, object], schema: pa.Schema) -> Filter:
        """Parse an expression on the columns of `schema`. FilterError says what is wrong with it.

        A column of lists matches if any element does. Times are ISO 8601, to the microsecond, and in UTC without a
        zone. Operands of a float column are rounded to its type, so 0.1 matches a float32's 0.1.
        """
        _check_length(expression)
        columns = {column.name: Column.of(column) for column in schema if not column.name.startswith("$")}
        try:
            test = _expression(expression, columns, depth=0)
        except ColumnError as error:
            known = list_columns(columns.values())
            message = f"{error}; columns that can be filtered: {known}"
            raise FilterError(message, error.expected or f"one of the columns {known}", error.got) from error
        # Only after parsing, which refuses expressions that are too deep for JSON, or cyclic.
        return cls(json.dumps(expression, sort_keys=True, default=dict), test)

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """Which rows match, `(len(batch),)`. Missing columns are null, others cast; CollectionError if that fails."""
        return self._test(batch)


def filterable(schema: pa.Schema) -> pa.Schema:
    """The columns that filters may name: not those with the reason of a reject, which are null in embedded rows."""
    return pa.schema([field for field in schema if field.name not in REJECT_COLUMNS])


def _check_length(expression: object) -> None:
    """FilterError for too many conditions, each of which reads a column of every row."""
    conditions = values = 0
    rest = [expression]
    while rest and conditions <= _MAX_CONDITIONS and values <= _MAX_VALUES:
        match rest.pop():
            case Mapping() as members:
                conditions += len(members)
                rest += members.values()
            case list() | tuple() as elements:
                values += len(elements)
                rest += elements
    if rest:
        expected = f"a filter of at most {_MAX_CONDITIONS:,} conditions and {_MAX_VALUES:,} values"
        advice = "list the values of a column in one $in, or split the search"
        raise FilterError(f"expected {expected}, got more: {advice}", f"{expected} ({advice})", "more")


def _expression(expression: object, columns: Mapping[str, Column], depth: int) -> Test:
    parts = _object(expression, "a filter", depth).items()
    return _all_of([_part(name, operand, columns, depth) for name, operand in parts])


def _part(name: str, operand: object, columns: Mapping[str, Column], depth: int) -> Test:
    if name in columns:
        return _conditions(columns[name], operand, depth)
    if name in ("$and", "$or"):
        if not isinstance(operand, list | tuple) or not operand:
            expected, got = "a list of one or more objects", describe(operand)
            raise FilterError(f"{name} takes {expected}, got {got}", f"{expected} for {name}", got)
        parts = [_expression(part, columns, depth + 1) for part in operand]
        return _all_of(parts) if name == "$and" else _any_of(parts)
    if name == "$not":
        return _negated(_expression(operand, columns, depth + 1))
    if str(name).startswith("$"):
        raise _unknown_operator(name)
    unknown = f"unknown column {describe(name)}"
    raise ColumnError(unknown, got=unknown)


def _conditions(column: Column, operand: object, depth: int) -> Test:
    """The test for a column's operand: a value, or operators that must all be true."""
    if not isinstance(operand, Mapping):
        return _condition(column, "$eq", operand)
    tests = []
    for operator, value in operand.items():
        if operator == "$not":
            if not isinstance(value, Mapping):
                raise column.refusal("$not", "an object", value)
            operators = _object(value, "$not", depth + 1)
            tests.append(_negated(_conditions(column, operators, depth + 1)))
        else:
            tests.append(_condition(column, operator, value))
    return _all_of(tests)


def _condition(column: Column, operator: str, operand: object) -> Test:
    if operator not in _OPERATORS:
        raise _unknown_operator(operator)
    if column.kind is OPAQUE and operator != "$exists":
        nested = column.element == JSON or pa.types.is_nested(column.element)
        has = "holds nested values, which filters cannot look into" if nested else "has a type that cannot be compared"
        problem = f"it {has}: only $exists works, got {operator}"
        raise column.error(problem, f"only $exists of {column.title}", operator)
    return _OPERATORS[operator](column, operator, operand)


def _equal(column: Column, operator: str, operand: object) -> Test:
    return _among(column, operator, [operand])


def _among(column: Column, operator: str, operands: object) -> Test:
    if not isinstance(operands, list | tuple):
        raise column.refusal(operator, "a list", operands)
    values = [column.value(operator, operand) for operand in operands if operand is not None]
    stored = column.comparison_type
    if has_steps(stored):
        low, high = int_limits(stored)
        steps = (in_steps(value, stored) for value in values)
        values = [of_steps(int(step), stored) for step in steps if low <= step <= high and step == int(step)]
    elif pa.types.is_floating(stored):
        values += [-value for value in values if value == 0]  # is_in distinguishes 0.0 and -0.0
    value_set = pa.array(values, stored)
    test = column.where(lambda array: pc.is_in(array, value_set=value_set))
    return _any_of([test, column.missing]) if any(operand is None for operand in operands) else test


def _ordered(column: Column, operator: str, operand: object) -> Test:
    compare = _ORDER[operator]
    value = column.value(operator, operand)
    stored = column.comparison_type
    if has_steps(stored):
        # Between two integers `x > 10.5` is `x > 10`, and `x >= 10.5` is `x >= 11`.
        low, high = int_limits(stored)
        value = in_steps(value, stored)
        value = min(max(value, low - 1), high + 1)  # finite, and still beyond the limits if it was
        value = math.floor(value) if operator in ("$gt", "$lte") else math.ceil(value)
        if not low <= value <= high:
            all_pass = (value < low) == (operator in ("$gt", "$gte"))
            return column.where(lambda array: pc.and_(array.is_valid(), pa.scalar(all_pass)))
        value = of_steps(value, stored)
    scalar = pa.scalar(value, stored)
    return column.where(lambda array: compare(array, scalar))


def _prefixed(column: Column, operator: str, operand: object) -> Test:
    if not is_text(column.comparison_type):
        raise column.error(f"{operator} works only on text", f"a column of text for {operator}", column.title)
    prefix = column.value(operator, operand)
    return column.where(lambda array: pc.starts_with(array, pattern=prefix))


def _exists(column: Column, operator: str, operand: object) -> Test:
    if not isinstance(operand, bool):
        raise column.refusal(operator, "true or false", operand)
    return _negated(column.missing) if operand else column.missing


_ORDER: dict[str, Compare] = {"$gt": pc.greater, "$gte": pc.greater_equal, "$lt": pc.less, "$lte": pc.less_equal}

_OPERATORS: dict[str, Callable[[Column, str, object], Test]] = {
    "$eq": _equal,
    "$ne": lambda column, operator, operand: _negated(_equal(column, operator, operand)),
    "$in": _among,
    "$nin": lambda column, operator, operand: _negated(_among(column, operator, operand)),
    **dict.fromkeys(_ORDER, _ordered),
    "$prefix": _prefixed,
    "$exists": _exists,
}


def _all_of(tests: list[Test]) -> Test:
    return lambda batch: functools.reduce(np.logical_and, (test(batch) for test in tests), np.ones(len(batch), bool))


def _any_of(tests: list[Test]) -> Test:
    return lambda batch: functools.reduce(np.logical_or, (test(batch) for test in tests), np.zeros(len(batch), bool))


def _negated(test: Test) -> Test:
    return lambda batch: ~test(batch)


def _object(value: object, subject: str, depth: int) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        got = describe(value)
        raise FilterError(f"{subject} takes an object, got {got}", f"an object for {subject}", got)
    if depth > MAX_DEPTH:
        expected = "fewer of $and, $or and $not"
        raise FilterError(f"the filter is nested deeper than {MAX_DEPTH} levels: expected {expected}", expected, "more")
    return value


def _unknown_operator(name: object) -> FilterError:
    unknown = f"unknown operator {describe(name)}"
    known = f"on a column: {', '.join([*_OPERATORS, '$not'])}; on whole filters: $and, $or, $not"
    return FilterError(f"{unknown}; {known}", f"an operator {known}", unknown)
