"""Filters: conditions on the columns of rows, written as in Mongo, evaluated by Arrow over whole batches.

    {"label": "cat", "width": {"$gte": 640}, "$or": [{"tags": {"$in": ["red", "blue"]}}, {"year": None}]}

Parsing checks everything against a schema and leaves a tree of functions from a batch to a mask.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.errors import FilterError
from index.rows import conform

MAX_DEPTH = 32
"""How deep `$and`, `$or` and `$not` may be nested."""

Mask = npt.NDArray[np.bool_]
_Test = Callable[[pa.RecordBatch], Mask]
_ArrayTest = Callable[[Any], Any]  # from an Arrow array to one of booleans, where null counts as false

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class Filter:
    """A condition on the columns of a row. Filters of one schema are equal when their keys are."""

    key: str
    """The expression as canonical JSON."""
    _test: _Test = field(compare=False, repr=False)

    @classmethod
    def parse(cls, expression: Mapping[str, object], schema: pa.Schema) -> Filter:
        """Read an expression on the columns of `schema`. FilterError says what is wrong with it.

        A column of lists matches when any element does. Times are ISO 8601, to the microsecond, UTC where no zone is
        given. Operands of a float column are rounded to its type, so that 0.1 finds a float32's 0.1.
        """
        columns = {each.name: _Column.of(each) for each in schema if not each.name.startswith("$")}
        test = _expression(expression, columns, depth=0)
        # Only now: what was parsed is neither too deep to be written nor cyclic.
        return cls(json.dumps(expression, sort_keys=True, default=dict), test)

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """Which rows match, `(len(batch),)`. A column that the batch lacks is null in all of its rows.

        CollectionError names a column of another type than the schema's that cannot be cast to it.
        """
        return self._test(batch)


class _Kind(NamedTuple):
    """What the elements of a column are compared with."""

    holds: Callable[[pa.DataType], bool]
    expected: str
    read: Callable[[Any, pa.DataType], Any]
    """The operand in terms of the type; None when it is of the wrong kind."""


@dataclass(frozen=True)
class _Column:
    name: str
    type: pa.DataType
    """The type in the schema, without dictionaries and fixed lengths."""
    element: pa.DataType
    kind: _Kind

    @classmethod
    def of(cls, column: pa.Field[Any]) -> _Column:
        unwrapped: Any = _unwrapped(column.type)
        element = unwrapped.value_type if _is_list(unwrapped) else unwrapped
        return cls(column.name, unwrapped, element, next(kind for kind in _KINDS if kind.holds(element)))

    def __str__(self) -> str:
        return f"{self.name} ({self.type}{', $exists alone' if self.kind is _OPAQUE else ''})"

    def value(self, operator: str, operand: object) -> Any:
        """The operand as the column's elements are compared with it."""
        value = self.kind.read(operand, self.element)
        if value is None:
            raise self.refusal(operator, self.kind.expected, operand)
        return value

    def refusal(self, operator: str, expected: str, operand: object) -> FilterError:
        return FilterError(f"column {self.name!r} ({self.type}): {operator} takes {expected}, got {_shown(operand)}")

    def read(self, batch: pa.RecordBatch) -> Any:
        """The column as an array of its type in the schema."""
        present = [self.name] if self.name in batch.schema.names else []
        table = conform(pa.Table.from_batches([batch.select(present)]), pa.schema([pa.field(self.name, self.type)]))
        chunks = table.column(0).chunks
        return chunks[0] if chunks else pa.array([], self.type)

    def missing(self, batch: pa.RecordBatch) -> Mask:
        return _mask(self.read(batch).is_null())

    def where(self, test: _ArrayTest) -> _Test:
        """Rows whose value, or any of whose elements, passes."""
        compared = _compared_as(self.element)

        def rows(batch: pa.RecordBatch) -> Mask:
            array = self.read(batch)
            if not _is_list(self.type):
                return _mask(test(array.cast(compared)))
            offsets = array.offsets.to_numpy()
            elements = array.values.slice(offsets[0], offsets[-1] - offsets[0])
            # Hits before each element: a list has one where their number rises from its start to its end.
            hits = np.concatenate([[0], np.cumsum(_mask(test(elements.cast(compared))))])[offsets - offsets[0]]
            matches: Mask = (hits[1:] > hits[:-1]) & _mask(array.is_valid())  # a null list may still hold elements
            return matches

        return rows


def _expression(expression: object, columns: Mapping[str, _Column], depth: int) -> _Test:
    parts = _object(expression, "a filter", depth).items()
    return _every([_part(name, operand, columns, depth) for name, operand in parts])


def _part(name: str, operand: object, columns: Mapping[str, _Column], depth: int) -> _Test:
    if name in columns:
        return _conditions(columns[name], operand, depth)
    if name in ("$and", "$or"):
        if not isinstance(operand, list | tuple) or not operand:
            raise FilterError(f"{name} takes a list of one or more objects, got {_shown(operand)}")
        parts = [_expression(part, columns, depth + 1) for part in operand]
        return _every(parts) if name == "$and" else _some(parts)
    if name == "$not":
        return _complement(_expression(operand, columns, depth + 1))
    if str(name).startswith("$"):
        raise _unknown_operator(name)
    known = ", ".join(map(str, columns.values())) or "none"
    raise FilterError(f"unknown column {_shown(name)}; columns that can be filtered: {known}")


def _conditions(column: _Column, operand: object, depth: int) -> _Test:
    """What follows a column's name: a value, or operators that must all hold."""
    if not isinstance(operand, Mapping):
        return _condition(column, "$eq", operand)
    tests = []
    for operator, value in operand.items():
        if operator == "$not":
            operators = _object(value, f"column {column.name!r}: $not", depth + 1)
            tests.append(_complement(_conditions(column, operators, depth + 1)))
        else:
            tests.append(_condition(column, operator, value))
    return _every(tests)


def _condition(column: _Column, operator: str, operand: object) -> _Test:
    if operator not in _OPERATORS:
        raise _unknown_operator(operator)
    if column.kind is _OPAQUE and operator != "$exists":
        raise FilterError(f"column {column.name!r} ({column.type}): only $exists works on this type, got {operator}")
    return _OPERATORS[operator](column, operator, operand)


def _equal(column: _Column, operator: str, operand: object) -> _Test:
    return _among(column, operator, [operand])


def _among(column: _Column, operator: str, operands: object) -> _Test:
    if not isinstance(operands, list | tuple):
        raise column.refusal(operator, "a list", operands)
    values = [column.value(operator, operand) for operand in operands if operand is not None]
    stored = _compared_as(column.element)
    if pa.types.is_integer(stored):
        low, high = _limits(stored)
        values = [int(value) for value in values if low <= value <= high and value == int(value)]
    elif pa.types.is_floating(stored):
        values += [-value for value in values if value == 0]  # is_in tells 0.0 from -0.0
    value_set = pa.array(values, stored)
    test = column.where(lambda array: pc.is_in(array, value_set=value_set))
    return _some([test, column.missing]) if any(operand is None for operand in operands) else test


def _ordered(column: _Column, operator: str, operand: object) -> _Test:
    compare = _ORDER[operator]
    value = column.value(operator, operand)
    stored = _compared_as(column.element)
    if pa.types.is_integer(stored):
        # Between two integers `x > 10.5` is `x > 10`, and `x >= 10.5` is `x >= 11`.
        low, high = _limits(stored)
        value = min(max(value, low - 1), high + 1)  # finite, and still beyond the limits if it was
        value = math.floor(value) if operator in ("$gt", "$lte") else math.ceil(value)
        if not low <= value <= high:
            every = (value < low) == (operator in ("$gt", "$gte"))
            return column.where(lambda array: pc.and_(array.is_valid(), pa.scalar(every)))
    scalar = pa.scalar(value, stored)
    return column.where(lambda array: compare(array, scalar))


def _prefixed(column: _Column, operator: str, operand: object) -> _Test:
    if not _is_text(_compared_as(column.element)):
        raise FilterError(f"column {column.name!r} ({column.type}): {operator} works on text alone")
    prefix = column.value(operator, operand)
    return column.where(lambda array: pc.starts_with(array, pattern=prefix))


def _exists(column: _Column, operator: str, operand: object) -> _Test:
    if not isinstance(operand, bool):
        raise column.refusal(operator, "true or false", operand)
    return _complement(column.missing) if operand else column.missing


_ORDER: dict[str, Callable[[Any, Any], pa.Array[Any]]] = {
    "$gt": pc.greater,
    "$gte": pc.greater_equal,
    "$lt": pc.less,
    "$lte": pc.less_equal,
}

_OPERATORS: dict[str, Callable[[_Column, str, object], _Test]] = {
    "$eq": _equal,
    "$ne": lambda column, operator, operand: _complement(_equal(column, operator, operand)),
    "$in": _among,
    "$nin": lambda column, operator, operand: _complement(_among(column, operator, operand)),
    **dict.fromkeys(_ORDER, _ordered),
    "$prefix": _prefixed,
    "$exists": _exists,
}


def _every(tests: list[_Test]) -> _Test:
    return lambda batch: functools.reduce(np.logical_and, (test(batch) for test in tests), np.ones(len(batch), bool))


def _some(tests: list[_Test]) -> _Test:
    return lambda batch: functools.reduce(np.logical_or, (test(batch) for test in tests), np.zeros(len(batch), bool))


def _complement(test: _Test) -> _Test:
    return lambda batch: ~test(batch)


def _mask(booleans: Any) -> Mask:
    mask: Mask = booleans.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _text(operand: object, _: pa.DataType) -> str | None:
    # Half of a surrogate pair is valid in JSON, but no text holds it.
    return operand if isinstance(operand, str) and not re.search("[\ud800-\udfff]", operand) else None


def _boolean(operand: object, _: pa.DataType) -> bool | None:
    return operand if isinstance(operand, bool) else None


def _number(operand: object, _: pa.DataType) -> float | None:
    good = isinstance(operand, int | float) and not isinstance(operand, bool) and operand == operand  # not NaN
    return operand if good else None  # type: ignore[return-value]


def _rounded(operand: object, kind: pa.DataType) -> float | None:
    number = _number(operand, kind)
    if number is None:
        return None
    try:
        return float(pa.scalar(float(number), kind).as_py())
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _instant(operand: object, kind: pa.DataType) -> Fraction | None:
    """Units of the type since 1970, not necessarily whole."""
    try:
        moment = datetime.fromisoformat(operand)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    per_second = Fraction(1, 86_400) if pa.types.is_date32(kind) else _TICKS[getattr(kind, "unit", "ms")]
    return Fraction(since // timedelta(microseconds=1), 10**6) * per_second


def _scalar(operand: object, _: pa.DataType) -> str | None:
    """Any text: nothing but nulls is compared with it."""
    return "" if isinstance(operand, str | int | float) else None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


_OPAQUE = _Kind(lambda kind: True, "nothing", lambda operand, kind: None)

_KINDS = (
    _Kind(_is_text, "text", _text),
    _Kind(pa.types.is_boolean, "true or false", _boolean),
    _Kind(pa.types.is_integer, "a number", _number),
    _Kind(pa.types.is_floating, "a number", _rounded),
    _Kind(_is_time, "a time such as '2024-05-31' or '2024-05-31T12:00:00Z'", _instant),
    _Kind(pa.types.is_null, "text, a number, true or false", _scalar),
    _OPAQUE,
)


def _unwrapped(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries and fixed lengths, to which Arrow casts it."""
    inner: Any = kind
    if pa.types.is_dictionary(kind):
        return inner.value_type  # type: ignore[no-any-return]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_unwrapped(inner.value_type))
    return pa.large_list(_unwrapped(inner.value_type)) if pa.types.is_large_list(kind) else kind


def _compared_as(kind: pa.DataType) -> pa.DataType:
    """The type to which elements are cast before they are compared: one for which Arrow has all kernels."""
    if pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_date32(kind):
        return pa.int32()
    if _is_time(kind):
        return pa.int64()
    return pa.float32() if pa.types.is_float16(kind) else kind


def _limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _object(value: object, what: str, depth: int) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise FilterError(f"{what} takes an object, got {_shown(value)}")
    if depth > MAX_DEPTH:
        raise FilterError(f"the filter is nested deeper than {MAX_DEPTH} levels: expected fewer of $and, $or and $not")
    return value


def _unknown_operator(name: object) -> FilterError:
    return FilterError(
        f"unknown operator {_shown(name)}; on a column: {', '.join([*_OPERATORS, '$not'])}; "
        "on whole filters: $and, $or, $not"
    )


def _shown(value: object) -> str:
    if isinstance(value, Mapping | list | tuple):
        return "an object" if isinstance(value, Mapping) else "a list" if value else "an empty list"
    shown = repr(value) if isinstance(value, str) else json.dumps(value, default=repr)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
