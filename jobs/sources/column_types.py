"""Types of the columns of lists.

A CSV has no types, and JSON has none for times. A column becomes numbers, booleans or times only if one way of writing
them gives back the text of each value, so codes such as 007, 1.10 or +49 stay text.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.rows import TEXT, text_array
from jobs.errors import SourceError
from jobs.sources.listing import REFUSED_STAGE, Column, Reason, as_text, refuse, with_columns
from jobs.sources.stored_listing import StoredTables
from jobs.values import ColumnType

Convert: TypeAlias = Callable[[Any], Any]

NAME: Final = b"column"
"""Metadata of a listing's field: the name of the list's column."""
WRITTEN: Final = b"written"
"""Metadata of a listing's field with values as they are written: in `CSV`, or as strings in `JSON`."""
CSV, JSON = b"csv", b"json"

_MISSING = text_array(["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "\\N"]).cast(TEXT)
_BOOLEANS = ("^(true|false)$", "^(True|False)$", "^(TRUE|FALSE)$")
_TIME = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?Z?$"


class TypedLists:
    """The listings of lists with a type for each column; all lists count, so that a column has the same type in each.

    `types` gives the types of the lists' columns; a row with a value that has another is refused as `bad_value`.
    Raises `SourceError` for a column that no list has.
    """

    def __init__(self, lists: StoredTables, types: Mapping[str, ColumnType]) -> None:
        self._lists = lists
        fields = {field.name: field for schema in lists.schemas for field in schema if NAME in (field.metadata or {})}
        known = {_of(field, NAME).decode(): name for name, field in fields.items()}
        if lists.schemas and (unknown := sorted(types.keys() - known.keys())):
            raise SourceError(
                f"--column-types names {', '.join(unknown)}: expected columns of the lists other than those of "
                f"addresses and ids, which are text: {', '.join(known) or 'there are none'}"
            )
        self._given = {name: types[column] for column, name in known.items() if column in types}
        self._inferred = {name: self._infer(name) for name in known.values() if name not in self._given}

    def _infer(self, name: str) -> Convert:
        """How to give a column a type, if its values as they are written in all lists can have one."""
        texts = [pa.chunked_array([], TEXT)]
        json = False
        for number, schema in enumerate(self._lists.schemas):
            if name in schema.names:
                values, written = self._lists.column(number, name), _of(schema.field(name), WRITTEN)
                if written:
                    texts.append(values)
                    json |= written == JSON
                elif values.type == TEXT and values.null_count < len(values):
                    return _unchanged
        return conversion(pa.chunked_array([chunk for values in texts for chunk in values.chunks], TEXT), json=json)

    def __iter__(self) -> Iterator[pa.Table]:
        for number, schema in enumerate(self._lists.schemas):
            table = self._lists.read(number)
            for name, kind in self._given.items():
                if name in schema.names:
                    table = _with_type(table, name, kind)
            for name, convert in self._inferred.items():
                if name in schema.names and _of(schema.field(name), WRITTEN):
                    table = with_columns(table, {name: convert(table[name])})
            yield pa.table(table.columns, schema=pa.schema([field.remove_metadata() for field in table.schema]))


def _of(field: pa.Field[Any], key: bytes) -> bytes:
    return (field.metadata or {}).get(key, b"")


def conversion(texts: pa.ChunkedArray[Any], *, json: bool = False) -> Convert:
    """How to make a column numbers, booleans, dates or times if that keeps every value's text; else it stays.

    One way of writing a missing value counts as null, such as NA. Strings in `json` can only be dates and times.
    """
    values, spellings = _without_missing(texts), pc.unique(texts.filter(pc.is_in(texts, value_set=_MISSING)))
    if values.null_count == len(values):
        return _without_missing if spellings.to_pylist() in ([], [""]) and not json else _unchanged
    if len(spellings) > 1:
        return _unchanged
    for pattern, convert in _CONVERSIONS[-2:] if json else _CONVERSIONS:
        with suppress(pa.ArrowInvalid):  # no such number or day
            matches = pc.all(pc.match_substring_regex(values, pattern)).as_py()
            if matches and (typed := convert(values)) is not None:
                return partial(_converted, convert=convert, kind=typed.type)
    return _unchanged


def _unchanged(texts: Column) -> Column:
    return texts


def _without_missing(texts: Column) -> Column:
    found: Column = pc.if_else(pc.is_in(texts, value_set=_MISSING), pa.scalar(None, TEXT), texts)
    return found


def _converted(texts: Column, *, convert: Convert, kind: pa.DataType) -> Column:
    """A part of a column that can be converted as a whole."""
    typed: Column = convert(_without_missing(texts)).cast(kind)
    return typed


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


_CONVERSIONS: tuple[tuple[str, Convert], ...] = (
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
