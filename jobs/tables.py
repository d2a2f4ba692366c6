"""Lists of images in tables (Parquet, CSV, JSONL) and Parquet files that hold the images' bytes."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from jobs.errors import SourceError
from jobs.files import SourceFile, extension
from jobs.listing import as_text, listing_table

URI_COLUMNS = ("uri", "url")
ID_COLUMN = "id"


def list_table_files(files: list[SourceFile]) -> pa.Table:
    """The images that the tables name, one table after the other; columns that only some have are null in the rest."""
    tables = [_list_table(file) for file in files]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SourceError(f"the lists do not fit together, their columns have different types: {error}") from error


def _list_table(file: SourceFile) -> pa.Table:
    if extension(file.path) == "parquet":
        schema = _read(file, pq.read_schema)
        if not any(name in schema.names for name in URI_COLUMNS):
            return _list_cells(file, schema)
        return _list_uris(file, _read(file, pq.read_table))
    reader = pyarrow.csv.read_csv if extension(file.path) == "csv" else pyarrow.json.read_json
    return _list_uris(file, _read(file, reader))


def _list_uris(file: SourceFile, table: pa.Table) -> pa.Table:
    uri_column = next((name for name in URI_COLUMNS if name in table.column_names), None)
    if uri_column is None:
        raise SourceError(
            f"{file.uri} has no column `uri` or `url`; its columns are {', '.join(table.column_names) or 'none'}"
        )
    uris = _absolute(file, table[uri_column].cast(pa.string()))
    metadata = {name: table[name] for name in table.column_names if name not in (uri_column, ID_COLUMN)}
    numbers = pa.array([f"{file.name}#row={i}" for i in range(table.num_rows)], pa.string())
    ids = pc.coalesce(_ids(table), uris, numbers)
    return listing_table({"image_id": ids, "uri": uris}, metadata)


def _list_cells(file: SourceFile, schema: pa.Schema) -> pa.Table:
    """Rows of a Parquet file with the images in it: `uri` names the cell, and the bytes are left where they are."""
    column = next((field.name for field in schema if _holds_images(field.type)), None)
    if column is None:
        raise SourceError(
            f"{file.uri} has neither a column `uri` or `url` nor one of image bytes; its columns are "
            f"{', '.join(schema.names) or 'none'}"
        )
    others = [field.name for field in schema if field.name != column and not _holds_images(field.type)]
    table = _read(file, lambda source: pq.read_table(source, columns=others))
    rows = range(_read(file, pq.read_metadata).num_rows)
    ids = pa.array([f"{file.name}#{i}" for i in rows], pa.string())
    if ID_COLUMN in others:
        ids = pc.coalesce(_ids(table), ids)
    columns = {
        "image_id": ids,
        "uri": [f"{file.uri}#row={i}&column={column}" for i in rows],
        "modified": [file.modified] * len(rows),
    }
    return listing_table(columns, {name: table[name] for name in others if name != ID_COLUMN})


def _holds_images(type_: pa.DataType) -> bool:
    """Plain binary, or a struct with `bytes` as Hugging Face datasets write images."""
    if pa.types.is_struct(type_):
        return "bytes" in [type_.field(i).name for i in range(type_.num_fields)]
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_))


def _ids(table: pa.Table) -> pa.ChunkedArray:
    if ID_COLUMN not in table.column_names:
        return pa.nulls(table.num_rows, pa.string())
    return table[ID_COLUMN].cast(pa.string())


def _absolute(file: SourceFile, uris: pa.ChunkedArray) -> pa.ChunkedArray:
    """Paths in a list are relative to the list's own folder; empty ones are null."""
    uris = pc.utf8_trim_whitespace(uris)
    uris = pc.if_else(pc.equal(pc.utf8_length(uris), 0), pa.scalar(None, pa.string()), uris)
    whole = pc.or_(pc.match_substring(uris, "://"), pc.starts_with(uris, "/"))
    folder = file.uri.rpartition("/")[0]
    return pc.if_else(whole, uris, pc.binary_join_element_wise(folder, uris, "/"))


def _read(file: SourceFile, reader: Callable[[Any], Any]) -> Any:
    try:
        with file.filesystem.open_input_file(file.path) as source:
            return reader(source)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {file.uri} as {extension(file.path)}: {error}") from error
