"""Columns in filters: which values fit a column's type, and how Arrow compares with them."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from index.collection.rows import JSON, conform, is_list, is_text, is_time
from index.errors import CollectionError, FilterError, OptionError

Mask = npt.NDArray[np.bool_]

_MAX_LISTED = 30  # columns in a message
_MAX_SHOWN = 60  # characters of a type or a value in a message
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DECIMAL = re.compile(r"[+-]?(\d{1,99}(\.\d{0,99})?|\.\d{1,99})(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)
_DURATION: TypeAdapter[timedelta] = TypeAdapter(timedelta)


class ColumnError(FilterError):
    """A column, or a condition on it, is wrong. `Filter.parse` adds the known columns, which `expected` defaults to."""


class _Kind(NamedTuple):
    includes: Callable[[pa.DataType], bool]
    expected: str
    read: Callable[[Any, pa.DataType], Any]
    """Converts an operand for the type; returns None for an operand of the wrong kind."""


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    """The type in the schema, see `_unwrapped`."""
    element: pa.DataType
    kind: _Kind

    @classmethod
    def of(cls, column: pa.Field[Any]) -> Column:
        unwrapped: Any = _unwrapped(column.type)
        element = unwrapped.value_type if is_list(unwrapped) else unwrapped
        return cls(column.name, unwrapped, element, next(kind for kind in _KINDS if kind.includes(element)))

    def __reduce__(self) -> Any:
        return Column.of, (pa.field(self.name, self.type),)  # the functions of its kind cannot be pickled

    def __str__(self) -> str:
        return f"{self.name} ({_abbreviate(type_name(self.type))}{', $exists alone' if self.kind is OPAQUE else ''})"

    @property
    def title(self) -> str:
        return f"column {self.name!r} ({_abbreviate(type_name(self.type))})"

    @property
    def comparison_type(self) -> pa.DataType:
        """The type to which elements are cast for comparison, because Arrow lacks kernels for some types."""
        if pa.types.is_string_view(self.element) or pa.types.is_null(self.element):
            return pa.string()
        if pa.types.is_date32(self.element) or pa.types.is_time32(self.element):
            return pa.int32()
        if is_time(self.element) or pa.types.is_time64(self.element) or pa.types.is_duration(self.element):
            return pa.int64()
        if pa.types.is_decimal(self.element):
            return pa.decimal256(self.element.precision, self.element.scale)
        return pa.float32() if pa.types.is_float16(self.element) else self.element

    def value(self, operator: str, operand: object) -> Any:
        """The operand, converted for comparison with the column's elements."""
        value = self.kind.read(operand, self.element)
        if value is None:
            raise self.refusal(operator, self.kind.expected, operand)
        return value

    def refusal(self, operator: str, expected: str, operand: object) -> ColumnError:
        got = describe(operand)
        return self.error(f"{operator} takes {expected}, got {got}", f"{expected} for {operator} of {self.title}", got)

    def error(self, problem: str, expected: str, got: str) -> ColumnError:
        return ColumnError(f"{self.title}: {problem}", expected, got)

    def read(self, batch: pa.RecordBatch) -> Any:
        """The column as one array of `type`. OptionError for values that do not fit it: those of other rows have it."""
        present = [self.name] if self.name in batch.schema.names else []
        try:
            table = conform(pa.Table.from_batches([batch.select(present)]), pa.schema([pa.field(self.name, self.type)]))
        except CollectionError as error:
            expected = f"values that fit {type_name(self.type)}, as in other images; give it one type in the source"
            got = type_name(batch.schema.field(self.name).type)
            raise OptionError(f"column {self.name!r}", got, expected) from error
        chunks = table.column(0).chunks
        return chunks[0] if chunks else pa.array([], self.type)

    def sortable(self, batch: pa.RecordBatch) -> Any:
        """The column's values in a type that DuckDB sorts, and Python holds exactly; NaN is null."""
        array = self.read(batch)
        if pa.types.is_floating(array.type):
            array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
        return array if pa.types.is_decimal(array.type) else array.cast(self.comparison_type)

    def present(self, batch: pa.RecordBatch) -> Mask:
        """Which rows have a value; NaN is none, as an answer shows it as null."""
        return ~_mask_of(self.read(batch).is_null(nan_is_null=True))

    def any_element(self, batch: pa.RecordBatch, compare: Callable[[Any, Any], Any], value: object) -> Mask:
        """Which rows have a value, or any element of it, that passes. `compare` takes an Arrow array and `value`, and
        returns booleans, where null counts as false.
        """
        array = self.read(batch)
        if not is_list(self.type):
            return _mask_of(compare(array.cast(self.comparison_type), value))
        offsets = array.offsets.to_numpy()
        elements = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        # Counts the hits before each list's start and end; they differ if the list has a hit.
        passed = _mask_of(compare(elements.cast(self.comparison_type), value))
        hits = np.concatenate([[0], np.cumsum(passed)])[offsets - offsets[0]]
        matches: Mask = (hits[1:] > hits[:-1]) & _mask_of(array.is_valid())  # a null list may still have elements
        return matches


def type_name(kind: pa.DataType) -> str:
    return "json" if kind == JSON else str(kind)


def list_columns(columns: Collection[Column]) -> str:
    more = f" and {len(columns) - _MAX_LISTED:,} more" if len(columns) > _MAX_LISTED else ""
    return (", ".join(map(str, itertools.islice(columns, _MAX_LISTED))) or "none") + more


def _mask_of(booleans: Any) -> Mask:
    mask: Mask = booleans.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _text(operand: object, _: pa.DataType) -> str | None:
    # Half of a surrogate pair is valid in JSON, but not in Arrow's text.
    return operand if isinstance(operand, str) and not re.search("[\ud800-\udfff]", operand) else None


def _number(operand: object, _: pa.DataType) -> float | None:
    valid = isinstance(operand, int | float) and not isinstance(operand, bool) and operand == operand  # not NaN
    return operand if valid else None  # type: ignore[return-value]


def _rounded(operand: object, kind: pa.DataType) -> float | None:
    number = _number(operand, kind)
    if number is None:
        return None
    try:
        return float(pa.scalar(float(number), kind).as_py())
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _as_written(operand: object, kind: pa.DataType) -> Fraction | float | None:
    """The number as it is written: 0.1 is a tenth, as a number and as text."""
    if isinstance(operand, str):
        return Fraction(operand) if _DECIMAL.fullmatch(operand) else None
    number = _number(operand, kind)
    return Fraction(repr(number)) if isinstance(number, float) and math.isfinite(number) else number


def _decimal(operand: object, kind: Any) -> Fraction | float | None:
    """The number in units of the type's last digit."""
    number = _as_written(operand, kind)
    return None if number is None else number * Fraction(10) ** kind.scale


def _instant(operand: object, kind: pa.DataType) -> Fraction | None:
    """Time since 1970 in units of the type, which need not be a whole number."""
    try:
        moment = datetime.fromisoformat(operand)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return _ticks((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH, operand, kind)


def _time_of_day(operand: object, kind: pa.DataType) -> Fraction | None:
    """Time since midnight in units of the type."""
    try:
        at = time.fromisoformat(operand)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    since = timedelta(hours=at.hour, minutes=at.minute, seconds=at.second, microseconds=at.microsecond)
    return None if at.tzinfo else _ticks(since, operand, kind)


def _duration(operand: object, kind: pa.DataType) -> Fraction | float | None:
    """Seconds, or a duration in ISO 8601, in units of the type."""
    if isinstance(operand, str):
        try:
            return _ticks(_DURATION.validate_python(operand), operand, kind)
        except ValidationError:
            return None
    seconds = _as_written(operand, kind)
    return None if seconds is None else seconds * _ticks_per_second(kind)


def _ticks(span: timedelta, operand: object, kind: pa.DataType) -> Fraction:
    """The span in units of the type. Python's times drop what their text says beyond microseconds."""
    seconds = Fraction(span // timedelta(microseconds=1), 10**6)
    if rest := re.search(r"[.,]\d{6}(\d{1,9})", str(operand)):
        nanoseconds = Fraction(int(rest[1]), 10 ** (6 + len(rest[1])))
        seconds += -nanoseconds if str(operand).startswith("-") else nanoseconds
    return seconds * _ticks_per_second(kind)


def _ticks_per_second(kind: Any) -> Fraction:
    return Fraction(1, 86_400) if pa.types.is_date32(kind) else Fraction(_TICKS[getattr(kind, "unit", "ms")])


OPAQUE = _Kind(lambda kind: True, "nothing", lambda operand, kind: None)

_KINDS = (
    _Kind(is_text, "text", _text),
    _Kind(pa.types.is_boolean, "true or false", lambda operand, _: operand if isinstance(operand, bool) else None),
    _Kind(pa.types.is_integer, "a number", _number),
    _Kind(pa.types.is_floating, "a number", _rounded),
    _Kind(pa.types.is_decimal, "a number, or one as text", _decimal),
    _Kind(is_time, "a time such as '2024-05-31' or '2024-05-31T12:00:00Z'", _instant),
    _Kind(pa.types.is_time, "a time of day such as '12:30' or '12:30:59.5'", _time_of_day),
    _Kind(pa.types.is_duration, "seconds, or a duration such as 'PT1M30S'", _duration),
    # The column has only nulls, so every operand can be the same text.
    _Kind(
        pa.types.is_null,
        "text, a number, true or false",
        lambda operand, _: "" if isinstance(operand, str | int | float) and operand == operand else None,
    ),
    OPAQUE,
)


def _unwrapped(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries and fixed lengths; Arrow can cast to it."""
    inner: Any = kind
    if pa.types.is_dictionary(kind):
        return inner.value_type  # type: ignore[no-any-return]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_unwrapped(inner.value_type))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_unwrapped(inner.value_type))
    return kind


def step_limits(kind: Any) -> tuple[int, int] | None:
    """The limits of an integer type, or of a decimal one in units of its last digit; None for other types."""
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1) if pa.types.is_integer(kind) else None


def of_steps(steps: int, kind: Any) -> int | Decimal:
    """The value of these units, exactly, which Decimal's arithmetic is not."""
    return Decimal(f"{steps}e{-kind.scale}") if pa.types.is_decimal(kind) else steps


def describe(value: object) -> str:
    """A JSON value in a message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list" if value else "an empty list"
    return _abbreviate(repr(value) if isinstance(value, str) else json.dumps(value))


def _abbreviate(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
