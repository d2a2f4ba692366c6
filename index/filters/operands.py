"""Operands of filters: which JSON values fit a column's type, and how they are converted to compare them with it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DECIMAL = re.compile(r"[+-]?(\d{1,99}(\.\d{0,99})?|\.\d{1,99})(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)
_DURATION: TypeAdapter[timedelta] = TypeAdapter(timedelta)


class Kind(NamedTuple):
    """Types whose values are compared alike."""

    includes: Callable[[pa.DataType], bool]
    expected: str
    read: Callable[[Any, pa.DataType], Any]
    """Converts an operand for the type; returns None for an operand of the wrong kind."""


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


def _decimal(operand: object, _: pa.DataType) -> Fraction | float | None:
    """The number as it is written: 0.1 is a tenth, as a number and as text."""
    if isinstance(operand, str):
        return Fraction(operand) if _DECIMAL.fullmatch(operand) else None
    number = _number(operand, _)
    return Fraction(repr(number)) if isinstance(number, float) and math.isfinite(number) else number


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
    seconds = _decimal(operand, kind)
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


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_time(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


OPAQUE = Kind(lambda kind: True, "nothing", lambda operand, kind: None)

KINDS = (
    Kind(is_text, "text", _text),
    Kind(pa.types.is_boolean, "true or false", lambda operand, _: operand if isinstance(operand, bool) else None),
    Kind(pa.types.is_integer, "a number", _number),
    Kind(pa.types.is_floating, "a number", _rounded),
    Kind(pa.types.is_decimal, "a number, or one as text", _decimal),
    Kind(is_time, "a time such as '2024-05-31' or '2024-05-31T12:00:00Z'", _instant),
    Kind(pa.types.is_time, "a time of day such as '12:30' or '12:30:59.5'", _time_of_day),
    Kind(pa.types.is_duration, "seconds, or a duration such as 'PT1M30S'", _duration),
    # The column has only nulls, so every operand can be the same text.
    Kind(
        pa.types.is_null,
        "text, a number, true or false",
        lambda operand, _: "" if isinstance(operand, str | int | float) else None,
    ),
    OPAQUE,
)


def has_steps(kind: pa.DataType) -> bool:
    """Whether values of the type have a fixed distance, a step, between them."""
    return pa.types.is_integer(kind) or pa.types.is_decimal(kind)


def in_steps(value: float | Fraction, kind: Any) -> float | Fraction:
    """The value in steps of an integer or decimal type."""
    return value * Fraction(10) ** kind.scale if pa.types.is_decimal(kind) else value


def of_steps(steps: int, kind: Any) -> int | Decimal:
    """The reverse of `in_steps`, exactly, which Decimal's arithmetic is not."""
    sign, digits, _ = Decimal(steps).as_tuple()
    return Decimal((sign, digits, -kind.scale)) if pa.types.is_decimal(kind) else steps


def int_limits(kind: Any) -> tuple[int, int]:
    """The limits of an integer type, or of a decimal one in its steps."""
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
