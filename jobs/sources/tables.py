"""Tables of image addresses (Parquet, CSV, TSV, JSONL), and Parquet files with image bytes."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from index.collection.rows import TEXT
from jobs.errors import NotAListError, SourceError
from jobs.sources.column_types import CSV, JSON, NAME, WRITTEN
from jobs.sources.files import SourceFile, extension
from jobs.sources.list_columns import ListColumns, holds_bytes, holds_images, picture_column
from jobs.sources.listing import LISTING, Column, Refused, as_text, listing_table
from jobs.sources.text_encoding import as_utf8
from jobs.sources.text_lists import read_csv, read_json


def list_table(file: SourceFile, columns: ListColumns, notes: dict[str, list[str]]) -> tuple[pa.Table, list[Refused]]:
    """The images of a table, and its unreadable lines. `notes` gets the names of lists by what to say about them.

    The fields of metadata have the marks of `column_types`.
    """
    if extension(file.name) == "parquet":
        return _list_parquet(file, columns, notes), []
    lines: dict[int, str] = {}
    data, code_page = as_utf8(_read(file, lambda source: source.read()), file.uri)
    if code_page:
        notes.setdefault(f"lists are not UTF-8 and were read as {code_page}", []).append(file.name)
    is_csv = extension(file.name) in ("csv", "tsv")
    texts = {*(name for name, kind in columns.types.items() if kind == "text"), columns.ids}
    table = _read(file, lambda _: read_csv(data, columns.uris, lines) if is_csv else read_json(data, texts, lines))
    check_names(file, table.column_names)
    listing = _list_uris(file, table, columns, notes, CSV if is_csv else JSON)
    return listing, [
        Refused(image_id=f"{file.name}#line={line}", uri=None, reason="bad_line", message=problem)
        for line, problem in lines.items()
    ]


def _list_parquet(file: SourceFile, columns: ListColumns, notes: dict[str, list[str]]) -> pa.Table:
    def read(source: pa.NativeFile) -> tuple[pa.Table, str | None, int]:
        parquet = pq.ParquetFile(source)
        schema, pictures = parquet.schema_arrow, picture_column(parquet, columns)
        check_names(file, schema.names)
        # Image bytes are not metadata and stay in the file.
        wanted = {columns.ids, *columns.uris} - {pictures}
        others = [each.name for each in schema if each.name in wanted or not holds_bytes(each.type)]
        if pictures is None and not wanted.intersection(schema.names) - {columns.ids} and len(others) < len(schema):
            nested = ", ".join(f"`{name}`" for name in schema.names if name not in others)
            raise SourceError(
                f"{file.uri}: expected one picture in each row, got lists or structs of bytes in {nested}"
            )
        if unread := [f"`{name}`" for name in schema.names if name not in (*others, pictures)]:
            notes.setdefault(f"columns of bytes are left out ({', '.join(unread)})", []).append(file.name)
        if pictures and columns.uri and columns.uri not in schema.names:
            note = f"lists have no column `{columns.uri}`, so their pictures in `{pictures}` are taken"
            notes.setdefault(note, []).append(file.name)
        return parquet.read(columns=others).select(others), pictures, parquet.metadata.num_rows

    table, pictures, rows = _read(file, read)
    if pictures is None:
        return _list_uris(file, table, columns, notes, None)
    return _list_cells(file, pictures, table, columns, notes, rows=rows)


def _list_uris(
    file: SourceFile, table: pa.Table, columns: ListColumns, notes: dict[str, list[str]], written: bytes | None
) -> pa.Table:
    uri_column = next((name for name in columns.uris if name in table.column_names), None)
    if uri_column is None:
        or_bytes = ", nor one of image bytes" if extension(file.name) == "parquet" else ""
        raise NotAListError(
            f"{file.uri} has no column {' or '.join(f'`{name}`' for name in columns.uris)}{or_bytes}; its columns are "
            f"{', '.join(table.column_names) or 'none'}. Name the one with paths or URLs of images with --uri-column"
        )
    if not holds_images(table[uri_column].type):  # older writers of Parquet store text as plain binary
        require_texts(file, uri_column, table[uri_column].type)
    uris = absolute_uris(file, as_text(table[uri_column]).cast(TEXT))
    numbers = pa.array([f"{file.name}#row={i}" for i in range(table.num_rows)], TEXT)
    ids = pc.coalesce(_ids(file, table, columns), uris, numbers)
    return _listing(table, {"image_id": ids, "uri": uris}, columns, notes, leave=uri_column, written=written)


def _list_cells(
    file: SourceFile, column: str, table: pa.Table, columns: ListColumns, notes: dict[str, list[str]], *, rows: int
) -> pa.Table:
    """Rows of a Parquet file that contains the images; each `uri` names a cell."""
    numbers = pa.array([f"{file.name}#{i}" for i in range(rows)], TEXT)
    cells: dict[str, Column | list[Any]] = {
        "image_id": pc.coalesce(_ids(file, table, columns), numbers) if table.column_names else numbers,
        "uri": [f"{file.uri}#row={i}&column={column}" for i in range(rows)],
        "modified": [file.modified] * rows,
    }
    return _listing(table, cells, columns, notes, leave=column, written=None)


def _listing(
    table: pa.Table,
    facts: Mapping[str, Column | Sequence[Any]],
    columns: ListColumns,
    notes: dict[str, list[str]],
    *,
    leave: str,
    written: bytes | None,
) -> pa.Table:
    """The listing of a table with these `facts`; its other columns are metadata, without `leave` and the ids."""
    names = [name for name in table.column_names if name not in (leave, columns.ids)]
    listing = listing_table(facts, {name: table[name] for name in names})
    fields = list(listing.schema)
    for number, name in enumerate(names, start=len(LISTING)):
        if name != fields[number].name:
            note = f"column `{name}` is stored as `{fields[number].name}`, as each image has a `{name}` of its own"
            notes.setdefault(note, [])
        is_text = fields[number].type == TEXT
        marks: dict[bytes | str, bytes | str] = {NAME: name}
        if written and is_text:
            marks[WRITTEN] = written
        fields[number] = fields[number].with_metadata(marks)
    return pa.table(listing.columns, schema=pa.schema(fields))


def check_names(file: SourceFile, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SourceError(f"{file.uri} has more than one column named {', '.join(repeated)}: rename them")


def _ids(file: SourceFile, table: pa.Table, columns: ListColumns) -> Column:
    """The column of ids as text; null where it is missing or empty."""
    if columns.ids in table.column_names:
        return _empty_as_null(as_text(table[columns.ids]).cast(TEXT))
    if columns.id:
        raise SourceError(
            f"{file.uri} has no column `{columns.id}`, which --id-column names; its columns are "
            f"{', '.join(table.column_names) or 'none'}"
        )
    return pa.nulls(table.num_rows, TEXT)


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


def _read(file: SourceFile, reader: Callable[[Any], Any]) -> Any:
    try:
        with file.open() as source:
            return reader(source)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise SourceError(f"cannot read {file.uri} as {extension(file.name)}: {error}") from error
