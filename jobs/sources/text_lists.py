"""Reads lists in text files: CSV and JSON lines. Values keep their text; `column_types` gives columns their types."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import csv
import io
import json
import math
import re
from collections.abc import Container, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from jobs.sources.listing import column_of, escaped

_SEPARATORS = (",", ";", "\t", "|")
_SEPARATOR_LINE = re.compile(rb'"?sep=([^\r\n"])"?\r?\n')
"""As Excel begins a CSV that it is to open with this separator."""
_BLOCK = 1 << 26  # bytes of a CSV that are parsed at a time
_MAX_HEADER = 1 << 16  # bytes of a CSV that are searched for its first line
_BETWEEN_OBJECTS = re.compile(r"[\s,\[\]]*")
"""Objects may be separated by newlines, or be the items of an array; each may span several lines."""
_EXACT = 2**53
"""Beyond this, a float may stand for another integer."""
_LONG_NUMBER = re.compile(rb"[0-9]{16}")


def read_csv(data: bytes, uri_columns: Sequence[str], bad: dict[int, str]) -> pa.Table:
    """All columns as text. `data` is UTF-8; `bad` gets a message for each line with too few or too many values, by
    line number. Raises `pa.ArrowInvalid`.
    """
    mark = _SEPARATOR_LINE.match(data)
    before = 1 if mark else 0

    def skip(row: pyarrow.csv.InvalidRow) -> Literal["skip"]:
        problem = f"expected {row.expected_columns} values, got {row.actual_columns}: {row.text[:200]}"
        bad[(row.number or 0) + before] = problem
        return "skip"

    data = data[mark.end() :] if mark else data
    separator = mark[1].decode("latin-1") if mark else _separator(data, uri_columns)
    return pyarrow.csv.read_csv(
        io.BytesIO(data),
        # With threads rows have no number; a value has to fit into two blocks.
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=skip),
        convert_options=pyarrow.csv.ConvertOptions(default_column_type=pa.string()),  # type: ignore[call-arg]  # new
    )


def _separator(data: bytes, uri_columns: Sequence[str]) -> str:
    """The separator that splits the header into names with one of `uri_columns` among them."""
    header = data[:_MAX_HEADER].decode("utf-8", "replace")

    def fits(separator: str) -> tuple[bool, int]:
        names = next(csv.reader(io.StringIO(header, newline=None), delimiter=separator), [])
        return any(name in names for name in uri_columns), len(names)

    return max(_SEPARATORS, key=fits)


def read_json(data: bytes, texts: Container[str], bad: dict[int, str]) -> pa.Table:
    """Strings as text, numbers as numbers unless that alters one. Numbers of the columns `texts` stay as written.

    `data` is UTF-8; `bad` gets a message for what is no object, by line number. Raises `pa.ArrowInvalid`.
    """
    try:
        table = pyarrow.json.read_json(io.BytesIO(data))
        as_written = pa.schema([field.with_type(_without_times(field.type)) for field in table.schema])
        if as_written != table.schema:
            options = pyarrow.json.ParseOptions(explicit_schema=as_written)
            table = pyarrow.json.read_json(io.BytesIO(data), parse_options=options)
    except pa.ArrowInvalid as error:
        rows = list(_objects(data, bad))
        if not rows:
            raise pa.ArrowInvalid(f"{error}") from error
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({escaped(name): _column(name, rows, texts) for name in names})
    altered = [name for name in table.column_names if _may_be_altered(name, table[name], texts, data)]
    if altered:
        rows = [{name: row.get(name) for name in altered} for row in _objects(data, {})]
        for name in altered:
            table = table.set_column(table.column_names.index(name), name, _column(name, rows, texts))
    return table


def _column(name: str, rows: list[dict[str, Any]], texts: Container[str]) -> Any:
    values = [row.get(name) for row in rows]
    try:
        array: Any = pa.array(values)
        if name not in texts and array.type != pa.uint64():  # as CSV, where such long codes are text
            return array
    except (pa.ArrowException, OverflowError, UnicodeError):
        pass
    numbers = _Number, int
    return column_of([str(each) if type(each) in numbers else each for each in values])


class _Number(float):
    """A float that remembers its text."""

    def __new__(cls, text: str) -> _Number:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str

    def __str__(self) -> str:
        return self.text


def _without_times(type_: pa.DataType) -> pa.DataType:
    """The type with text instead of times: pyarrow takes strings that look like times for times."""
    if pa.types.is_timestamp(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_without_times(field.type)) for field in type_.fields])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_without_times(type_.value_type)))
    return type_


def _may_be_altered(name: str, values: pa.ChunkedArray[Any], texts: Container[str], data: bytes) -> bool:
    """Whether numbers may be others than in the text: integers too large for a float, or any that are to be text."""
    if pa.types.is_floating(values.type):
        large = pc.greater_equal(pc.abs(values), pa.scalar(float(_EXACT)))
        return name in texts or pc.any(large).as_py() is True
    return pa.types.is_nested(values.type) and _has_floats(values.type) and _LONG_NUMBER.search(data) is not None


def _has_floats(type_: pa.DataType) -> bool:
    parts = [type_.field(number).type for number in range(type_.num_fields)]
    return pa.types.is_floating(type_) or any(map(_has_floats, parts))


def _objects(data: bytes, bad: dict[int, str]) -> Iterator[dict[str, Any]]:
    """The objects of a list, whatever separates them; `bad` gets a message for other lines."""
    text, at, line = data.decode(), 0, 1
    decoder = json.JSONDecoder(parse_float=_number)
    while (gap := _BETWEEN_OBJECTS.match(text, at)) and (start := gap.end()) < len(text):
        line += text.count("\n", at, start)
        end = text.find("\n", start) % (len(text) + 1)
        problem = ""
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            value, at, problem = None, end, f" ({error})"
        if isinstance(value, dict):
            yield value
        else:
            bad[line] = f"expected a JSON object, got {text[start:end][:200]!r}{problem}"
        line += text.count("\n", start, at)


def _number(text: str) -> float | str:
    """The number, or its text if it is too large for a float."""
    number = _Number(text)
    return number if math.isfinite(number) else text
