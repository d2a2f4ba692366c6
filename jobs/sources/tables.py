"""Tables of image addresses (Parquet, CSV, TSV, JSONL), and Parquet files with image bytes."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from index.collection.rows import TEXT
from jobs.errors import NotAListError, SourceError
from jobs.sources.files import SourceFile, extension
from jobs.sources.listing import Column, Refused, as_text, column_of, escaped, listing_table

URI_COLUMNS = ("uri", "url", "file_name")
"""The names of a list's column of addresses; Hugging Face's metadata files call it `file_name`."""
ID_COLUMN = "id"

_SEPARATORS = (",", ";", "\t")
_MAX_HEADER = 1 << 16  # bytes of a CSV that are searched for its first line


def list_table(file: SourceFile, uri_columns: Sequence[str]) -> tuple[pa.Table, list[Refused]]:
    """The images of a table, and its unreadable lines. The first of `uri_columns` that the table has is used."""
    lines: dict[int, str] = {}
    if extension(file.name) == "parquet":
        schema = _read(file, pq.read_schema)
        check_names(file, schema.names)
        images = [field.name for field in schema if field.name != ID_COLUMN and holds_images(field.type)]
        # Image bytes are not metadata and stay in the file.
        others = [name for name in schema.names if name not in images]
        table = _read(file, lambda source: pq.read_table(source, columns=others))
        if images and uri_columns == URI_COLUMNS and not any(name in others for name in ("uri", "url")):
            return _list_cells(file, images[0], table, rows=_read(file, pq.read_metadata).num_rows), []
    else:
        reader = partial(_read_csv, uri_columns) if extension(file.name) in ("csv", "tsv") else _read_json
        table = _read(file, lambda source: reader(source.read(), lines))
        check_names(file, table.column_names)
    return _list_uris(file, table, uri_columns), [
        Refused(image_id=f"{file.name}#line={line}", uri=None, reason="bad_line", message=problem)
        for line, problem in lines.items()
    ]


def _list_uris(file: SourceFile, table: pa.Table, uri_columns: Sequence[str]) -> pa.Table:
    uri_column = next((name for name in uri_columns if name in table.column_names), None)
    if uri_column is None:
        or_bytes = ", nor one of image bytes" if extension(file.name) == "parquet" else ""
        raise NotAListError(
            f"{file.uri} has no column {' or '.join(f'`{name}`' for name in uri_columns)}{or_bytes}; its columns are "
            f"{', '.join(table.column_names) or 'none'}. Name the one with paths or URLs of images with --uri-column"
        )
    require_texts(file, uri_column, table[uri_column].type)
    uris = absolute_uris(file, table[uri_column].cast(TEXT))
    metadata = {name: table[name] for name in table.column_names if name not in (uri_column, ID_COLUMN)}
    numbers = pa.array([f"{file.name}#row={i}" for i in range(table.num_rows)], TEXT)
    return listing_table({"image_id": pc.coalesce(_ids(table), uris, numbers), "uri": uris}, metadata)


def _list_cells(file: SourceFile, column: str, table: pa.Table, *, rows: int) -> pa.Table:
    """Rows of a Parquet file that contains the images; each `uri` names a cell."""
    numbers = pa.array([f"{file.name}#{i}" for i in range(rows)], TEXT)
    columns: dict[str, Column | list[Any]] = {
        "image_id": pc.coalesce(_ids(table), numbers) if ID_COLUMN in table.column_names else numbers,
        "uri": [f"{file.uri}#row={i}&column={column}" for i in range(rows)],
        "modified": [file.modified] * rows,
    }
    return listing_table(columns, {name: table[name] for name in table.column_names if name != ID_COLUMN})


def holds_images(type_: pa.DataType) -> bool:
    """Whether a column is plain binary, or a struct with `bytes`, as Hugging Face datasets write images."""
    if pa.types.is_struct(type_):
        return "bytes" in [type_.field(i).name for i in range(type_.num_fields)]
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_))


def check_names(file: SourceFile, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SourceError(f"{file.uri} has more than one column named {', '.join(repeated)}: rename them")


def _ids(table: pa.Table) -> Column:
    """The column `id` as text; null where it is missing or empty."""
    if ID_COLUMN not in table.column_names:
        return pa.nulls(table.num_rows, TEXT)
    return _empty_as_null(as_text(table[ID_COLUMN]))


def require_texts(file: SourceFile, name: str, type_: pa.DataType) -> None:
    kind = type_.value_type if pa.types.is_dictionary(type_) else type_
    if kind not in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):
        raise SourceError(f"{file.uri}: expected paths or URLs in column `{name}`, got {type_}")


def _empty_as_null(texts: Column) -> Column:
    found: Column = pc.if_else(pc.equal(texts, pa.scalar("")), pa.scalar(None, TEXT), texts)
    return found


def absolute_uris(file: SourceFile, uris: Column) -> Column:
    """Absolute addresses. Paths in a list are relative to the list's own folder; empty ones become null."""
    uris = _empty_as_null(pc.utf8_trim_whitespace(uris))
    folder = pa.scalar(file.uri.rpartition("/")[0], TEXT)
    below = pc.binary_join_element_wise(folder, uris, pa.scalar("/", TEXT))  # type: ignore[call-overload]  # takes both
    absolute = pc.or_(pc.match_substring(uris, "://"), pc.starts_with(uris, "/"))
    found: Column = pc.if_else(absolute, uris, below)
    return found


def _read_csv(uri_columns: Sequence[str], data: bytes, bad: dict[int, str]) -> pa.Table:
    """Read numbers as numbers, except ids, whose leading zeros matter; if a column has mixed types, all as text.

    `bad` gets a message for each line with too few or too many values, by line number.
    """

    def skip(row: pyarrow.csv.InvalidRow) -> Literal["skip"]:
        bad[row.number or 0] = f"expected {row.expected_columns} values, got {row.actual_columns}: {row.text[:200]}"
        return "skip"

    separator = _separator(data, uri_columns)
    parse = pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=skip)
    read = pyarrow.csv.ReadOptions(use_threads=False)  # otherwise rows have no number
    text = dict.fromkeys((*uri_columns, ID_COLUMN), pa.string())
    try:
        options = pyarrow.csv.ConvertOptions(column_types=text)
        return pyarrow.csv.read_csv(io.BytesIO(data), read_options=read, parse_options=parse, convert_options=options)
    except pa.ArrowInvalid:
        data = data.decode("utf-8", "backslashreplace").encode()  # so that a bad name spoils only its own row
        names = pyarrow.csv.open_csv(io.BytesIO(data), read_options=read, parse_options=parse).schema.names
        options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        return pyarrow.csv.read_csv(io.BytesIO(data), read_options=read, parse_options=parse, convert_options=options)


def _separator(data: bytes, uri_columns: Sequence[str]) -> str:
    """The comma, semicolon or tab that splits the header into names with one of `uri_columns` among them."""
    header = data[:_MAX_HEADER].decode("utf-8-sig", "replace")

    def fits(separator: str) -> tuple[bool, int]:
        names = next(csv.reader(io.StringIO(header, newline=None), delimiter=separator), [])
        return any(name in names for name in uri_columns), len(names)

    return max(_SEPARATORS, key=fits)


def _read_json(data: bytes, bad: dict[int, str]) -> pa.Table:
    """Read lines of JSON, dates as times unless they are ids; a column of mixed types becomes text. `bad` gets a
    message for each unreadable line.
    """
    try:
        table = pyarrow.json.read_json(io.BytesIO(data))
        if ID_COLUMN in table.column_names and pa.types.is_timestamp(table[ID_COLUMN].type):
            as_written = pyarrow.json.ParseOptions(explicit_schema=pa.schema([(ID_COLUMN, pa.string())]))
            table = pyarrow.json.read_json(io.BytesIO(data), parse_options=as_written)
        table.validate(full=True)  # whether texts are UTF-8
        return table
    except pa.ArrowInvalid as error:
        rows, whole_error = [], error
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            row, bad[number] = {}, f"expected a JSON object, got {line[:200]!r} ({error})"
        if not isinstance(row, dict):
            row, bad[number] = {}, f"expected a JSON object, got {line[:200]!r}"
        if row:
            rows.append(row)
    if not rows:
        raise whole_error
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({escaped(name): column_of([row.get(name) for row in rows]) for name in names})


def _read(file: SourceFile, reader: Callable[[Any], Any]) -> Any:
    try:
        with file.open() as source:
            return reader(source)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise SourceError(f"cannot read {file.uri} as {extension(file.name)}: {error}") from error
