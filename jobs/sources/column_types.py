"""Types of the columns of lists.

A CSV has no types, and JSON has none for times. A column becomes numbers, booleans or times only if one way of writing
them gives back the text of each value, so codes such as 007, 1.10 or +49 stay text.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.rows import TEXT
from jobs.errors import SourceError
from jobs.sources.listing import REFUSED_STAGE, Column, Reason, as_text, refuse, with_columns
from jobs.values import ColumnType

NAME: Final = b"column"
"""Metadata of a listing's field: the name of the list's column."""
WRITTEN: Final = b"written"
"""Metadata of a listing's field with values as they are written: in `CSV`, or as strings in `JSON`."""
CSV, JSON = b"csv", b"json"

_MISSING = pa.array(["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "\\N"], TEXT)
_BOOLEANS = ("^(true|false)$", "^(True|False)$", "^(TRUE|FALSE)$")
_TIME = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?Z?$"


def with_types(tables: Sequence[pa.Table], types: Mapping[str, ColumnType]) -> list[pa.Table]:
    """The listings of lists with a type for each column; all lists count, so that a column has the same type in each.

    `types` gives the types of the lists' columns; a row with a value that has another is refused as `bad_value`.
    Raises `SourceError` for a column that no list has.
    """
    tables = list(tables)
    fields = {field.name: field for table in tables for field in table.schema if NAME in (field.metadata or {})}
    known = {_of(field, NAME).decode(): name for name, field in fields.items()}
    if tables and (unknown := sorted(types.keys() - known.keys())):
        raise SourceError(
            f"--column-types names {', '.join(unknown)}: expected columns of the lists other than those of addresses "
            f"and ids, which are text: {', '.join(known) or 'there are none'}"
        )
    for column, name in known.items():
        having = [number for number, table in enumerate(tables) if name in table.column_names]
        if column in types:
            for number in having:
                tables[number] = _with_type(tables[number], name, types[column])
        else:
            typed = _infer([tables[number] for number in having], name)
            for number, values in zip(having, typed, strict=True):
                tables[number] = with_columns(tables[number], {name: values})
    plain = [pa.schema([field.remove_metadata() for field in table.schema]) for table in tables]
    return [pa.table(table.columns, schema=schema) for table, schema in zip(tables, plain, strict=True)]


def _of(field: pa.Field[Any], key: bytes) -> bytes:
    return (field.metadata or {}).get(key, b"")


def _infer(tables: Sequence[pa.Table], name: str) -> list[Column]:
    """The column of each table, with a type if its values as they are written in all of them can have one."""
    columns: list[Any] = [table[name] for table in tables]
    written = [_of(table.schema.field(name), WRITTEN) for table in tables]
    others = [column for column, how in zip(columns, written, strict=True) if not how]
    if any(column.type == TEXT and column.null_count < len(column) for column in others):
        return columns
    chunks = [chunk for column, how in zip(columns, written, strict=True) if how for chunk in column.chunks]
    typed, at = inferred(pa.chunked_array(chunks, TEXT), json=JSON in written), 0
    for number, how in enumerate(written):
        if how:
            rows = len(columns[number])
            columns[number] = typed.slice(at, rows)
            at += rows
    return columns


def inferred(texts: pa.ChunkedArray[Any], *, json: bool = False) -> pa.ChunkedArray[Any]:
    """The column as numbers, booleans, dates or times if that keeps every value's text; else unchanged.

    One way of writing a missing value counts as null, such as NA. Strings in `json` can only be dates and times.
    """
    missing = pc.is_in(texts, value_set=_MISSING)
    values = pc.if_else(missing, pa.scalar(None, TEXT), texts)
    spellings = pc.unique(texts.filter(missing))
    if values.null_count == len(values):
        return values if spellings.to_pylist() in ([], [""]) and not json else texts
    if len(spellings) > 1:
        return texts
    for pattern, convert in _CONVERSIONS[-2:] if json else _CONVERSIONS:
        with suppress(pa.ArrowInvalid):  # no such number or day
            matches = pc.all(pc.match_substring_regex(values, pattern)).as_py()
            if matches and (typed := convert(values)) is not None:
                return typed
    return texts


def _as_numbers(values: Any) -> Any:
    numbers = values.cast(pa.float64())
    # Arrow and JavaScript write 3, Python and pandas 3.0; a list has the one or the other.
    if pc.all(pc.equal(numbers.cast(TEXT), values)).as_py():
        return numbers
    pairs = zip(numbers.to_pylist(), values.to_pylist(), strict=True)
    return numbers if all(number is None or repr(number) == text for number, text in pairs) else None


def _as_times(values: Any) -> Any:
    shapes = (pc.utf8_length(values), pc.match_substring(values, "T"), pc.match_substring(values, "Z"))
    if any(len(pc.unique(shape.drop_null())) > 1 for shape in shapes):
        return None
    return values.cast(pa.timestamp("us", "UTC" if pc.any(shapes[2]).as_py() else None))


_CONVERSIONS: tuple[tuple[str, Callable[[Any], pa.ChunkedArray[Any] | None]], ...] = (
    (r"^(0|-?[1-9][0-9]{0,18})$", lambda values: values.cast(pa.int64())),
    (r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]+)?$", _as_numbers),
    *((spelling, lambda values: values.cast(pa.bool_())) for spelling in _BOOLEANS),
    (r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}$", lambda values: values.cast(pa.date32())),
    (_TIME, _as_times),
)
"""How values are written, and how they are converted; to None if that would not keep their text."""


def _with_type(table: pa.Table, name: str, kind: ColumnType) -> pa.Table:
    """The table with the column as this type; rows whose value has another are refused."""
    texts = as_text(table[name]).cast(TEXT)
    if kind == "text":
        return with_columns(table, {name: texts})
    type_, parse = _PARSERS[kind]
    values, reasons = list[Any](), dict[int, Reason]()
    column = _of(table.schema.field(name), NAME).decode()
    missing = set(_MISSING.to_pylist())
    for row, text in enumerate(texts.to_pylist()):
        try:
            values.append(None if text is None or text in missing else parse(text.strip()))
        except ValueError:
            values.append(None)
            message = f"expected {kind} in column `{column}`, as --column-types says, got {str(text)[:200]!r}"
            reasons[row] = (REFUSED_STAGE, "bad_value", message, False)
    typed = with_columns(table, {name: pa.chunked_array([pa.array(values, type_)])})
    return refuse(typed, reasons) if reasons else typed


def _parse_integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+(\.0+)?", text) or not -(2**63) <= (number := int(text.partition(".")[0])) < 2**63:
        raise ValueError(text)
    return number


def _parse_number(text: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) or math.isinf(float(text)):
        raise ValueError(text)
    return float(text)


def _parse_boolean(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _parse_time(text: str) -> dt.datetime:
    time = dt.datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=dt.UTC)


_PARSERS: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "integer": (pa.int64(), _parse_integer),
    "number": (pa.float64(), _parse_number),
    "boolean": (pa.bool_(), _parse_boolean),
    "date": (pa.date32(), dt.date.fromisoformat),
    "time": (pa.timestamp("us", "UTC"), _parse_time),
}
