"""The columns of a row. A row is one image seen by a run, embedded or rejected with a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.errors import CollectionError, ModelMismatchError

R = TypeVar("R", pa.Table, pa.RecordBatch)

PART_ROWS: Final = 1 << 18  # of a few hundred bytes each
PART_BYTES: Final = 1 << 28

EMBEDDING = "embedding"

TILES = "tiles"
"""The vectors of a picture's tiles, one after the other; only in the rows of a model with tiles."""

TEXT = pa.large_string()
"""Type of text in memory: all rows together may exceed 2 GiB, the limit of an array of `string`, the type in files."""

JSON: pa.DataType = pa.json_(pa.large_string())
"""Type of the source's nested values: objects, and lists of objects or lists. DuckDB and Polars know it too."""

_COLUMNS: dict[str, pa.DataType] = {
    "image_id": pa.string(),
    "uri": pa.string(),
    "content_hash": pa.string(),
    "size": pa.int64(),
    "modified": pa.timestamp("us", tz="UTC"),
    "etag": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "format": pa.string(),
    EMBEDDING: pa.null(),  # a placeholder for fixed_size_list<float32>[dim], see embedding_type
    "error_stage": pa.string(),
    "error_reason": pa.string(),
    "error_message": pa.string(),
    "retryable": pa.bool_(),
}

FIXED_COLUMNS: tuple[str, ...] = tuple(_COLUMNS)
"""The columns that every row has. All others but `TILES` are the source's metadata."""

RUN_COLUMN = "row_run"
LOCATION_COLUMNS = (RUN_COLUMN, "row_file", "row_position")
"""The first columns of facts: the id of the row's run, the number of its file in that, and of the row in that file."""

DELETED_COLUMNS = ("image_id",)
"""The other columns of facts that say which ids a run deletes."""

OUTCOME_COLUMNS = ("content_hash", "width", "height", "format", EMBEDDING)
"""Results of embedding an image."""

REJECT_COLUMNS = ("error_stage", "error_reason", "error_message", "retryable")
"""Why an image could not be embedded; null if it was."""

FILTERED = "filtered"
"""The reason for an image that the job's filter left out. All other reasons are failures."""

STATE_COLUMNS = (
    *("image_id", "uri", "content_hash", "size", "modified", "etag"),
    *("width", "height", "format", "error_stage", "error_reason", "retryable"),
)
"""What decides whether an image has to be embedded again."""


def number_array(numbers: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array[Any]:
    """The numbers or booleans, `(n,)`, for Arrow; null where they are `missing`. `pa.array` would import pandas, which
    adds half a second to a server's start.
    """
    values: Any = np.ascontiguousarray(numbers) if numbers.dtype != bool else np.packbits(numbers, bitorder="little")
    valid: Any = None if missing is None else np.packbits(~missing, bitorder="little")
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def numbers_of(column: Any, missing: bool | float | None = None) -> npt.NDArray[Any]:
    """The reverse of `number_array`, with `missing` in place of nulls; None: there are none. `fill_null` and `to_numpy`
    would import pandas.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if missing is not None and array.null_count:
        known = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
        return np.where(numbers_of(array.is_valid()), numbers_of(known), array.type.to_pandas_dtype()(missing))
    if pa.types.is_boolean(array.type):
        return numbers_of(array.cast(pa.uint8())).view(bool)
    return np.from_dlpack(array)


def text_array(texts: Iterable[str]) -> pa.Array[Any]:
    """An array of `string`. `pa.array` would import pandas, which adds a quarter of a second to a command's start."""
    builder: Any = pa.lib.StringBuilder()
    builder.append_values(texts)
    array: pa.Array[Any] = builder.finish()
    return array


def embedding_type(dim: int) -> pa.DataType:
    """A plain list of `dim` float32, which pandas, DuckDB and Polars can read; in `TILES`, `dim` counts all tiles."""
    return pa.list_(pa.float32(), dim)


def vectors_of(embeddings: Any) -> npt.NDArray[np.float32]:
    """`(n, dim)` float32 of an `embedding` column without nulls; without a copy if it is in one piece."""
    return np.asarray(pc.list_flatten(embeddings), np.float32).reshape(len(embeddings), -1)


def embedding_column(vectors: npt.NDArray[np.float32], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array[Any]:
    """An `embedding` column of `(n, dim)` vectors; null for `missing` ones."""
    mask = None if missing is None else pa.array(missing)
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1], mask=mask)


def in_parts(tables: Iterable[R], rows: int = PART_ROWS, size: float = PART_BYTES) -> Iterator[list[R]]:
    """Tables in groups that end when they have so many rows or bytes."""
    part, length, nbytes = list[R](), 0, 0
    for table in tables:
        part.append(table)
        length, nbytes = length + len(table), nbytes + table.nbytes
        if length >= rows or nbytes >= size:
            yield part
            part, length, nbytes = [], 0, 0
    if part:
        yield part


def join_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Join batches until they have at least `rows` rows: each file has one block, which may be small."""
    for part in in_parts(batches, rows, math.inf):
        yield from pa.Table.from_batches(part).combine_chunks().to_batches()


def row_schema(dim: int, metadata: Iterable[pa.Field[Any]] = ()) -> pa.Schema:
    """The fixed columns, then the metadata columns that do not have the name of a fixed one."""
    fixed = [pa.field(name, embedding_type(dim) if name == EMBEDDING else kind) for name, kind in _COLUMNS.items()]
    return pa.schema(fixed + [field for field in metadata if field.name not in _COLUMNS])


def filterable(schema: pa.Schema) -> pa.Schema:
    """The columns that filters can name."""
    return pa.schema([field for field in schema if field.name not in (EMBEDDING, TILES, *REJECT_COLUMNS)])


def schema_problem(schema: pa.Schema, expected: Iterable[str] = FIXED_COLUMNS) -> str | None:
    """The first expected column that is missing or has another type, as a message; None if there is none."""
    if len(set(schema.names)) < len(schema.names):
        return "it has several columns of one name"
    for name in expected:
        kind = pa.string() if name == RUN_COLUMN else _COLUMNS.get(name, pa.int32())
        found = schema.field(name).type if name in schema.names else None
        if name == EMBEDDING and found and pa.types.is_fixed_size_list(found):
            kind = embedding_type(found.list_size)
        if found != kind:
            return f"column {name!r} is {found or 'missing'}"
    return None


def in_memory(schema: pa.Schema) -> pa.Schema:
    """A file's schema as it is in memory, with text as `TEXT` and large lists."""

    def large(kind: Any) -> pa.DataType:
        if pa.types.is_list(kind):
            return pa.large_list(large(kind.value_type))
        return TEXT if kind == pa.string() else kind

    return pa.schema([field.with_type(large(field.type)) for field in schema])


def in_files(schema: pa.Schema) -> pa.Schema:
    """The reverse of `in_memory`. Times and durations are in microseconds, and half floats are floats: so those of all
    runs can be read together.
    """

    def small(kind: Any) -> pa.DataType:
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pa.list_(small(kind.value_type))
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", kind.tz)
        if pa.types.is_duration(kind):
            return pa.duration("us")
        if pa.types.is_float16(kind):
            return pa.float32()
        return pa.string() if kind == TEXT else kind

    return pa.schema([field.with_type(small(field.type)) for field in schema])


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of any length or a fixed one."""
    return pa.types.is_nested(kind) and hasattr(kind, "value_type")


def is_time(kind: pa.DataType) -> bool:
    """Whether values are points in time. Those without a zone are in UTC, and days are their midnights."""
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def as_json(value: object) -> str:
    """JSON text of any column's value. Bytes that are not UTF-8 are escaped."""
    return json.dumps(value, default=str, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def list_array(elements: pa.Array[Any], lengths: npt.ArrayLike, missing: Any = None) -> pa.Array[Any]:
    """Lists of these `lengths` of consecutive elements; null for `missing` ones, an Arrow mask."""
    offsets = pa.array(np.cumsum([0, *np.asarray(lengths)]), pa.int64())
    lists: pa.Array[Any] = pa.LargeListArray.from_arrays(offsets, elements, mask=missing)
    return lists


def metadata_columns(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in (*_COLUMNS, TILES)]


def is_filtered(rows: pa.Table) -> pa.ChunkedArray[Any]:
    """A mask of the rows whose images the job's filter left out."""
    mask: Any = pc.equal(rows["error_reason"], pa.scalar(FILTERED, TEXT))
    filled: pa.ChunkedArray[Any] = mask.fill_null(False)
    return filled


def unify(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for the rows of all files; see `common_field`. ModelMismatchError if vectors differ in length."""
    dims = _sizes(schemas, EMBEDDING)
    if len(dims) > 1 or len(_sizes(schemas, TILES)) > 1:
        mixed = f"vectors of {' and '.join(map(str, dims))} dimensions" if len(dims) > 1 else "tiles of several grids"
        raise ModelMismatchError(
            f"live rows have {mixed}, expected those of one model: "
            "embed everything with one model, or read the rows without their embedding"
        )
    fields: dict[str, pa.Field[Any]] = {}
    for schema in schemas:
        for name in (name for name in schema.names if name not in _COLUMNS):
            field = schema.field(name).remove_metadata()
            fields[name] = common_field(fields.get(name, field), field)
    return row_schema(dims[0] if dims else 0, fields.values())


def _sizes(schemas: Sequence[pa.Schema], column: str) -> list[int]:
    return sorted({schema.field(column).type.list_size for schema in schemas if column in schema.names})


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly these columns: missing ones null, others cast. CollectionError names one that fails."""
    columns = []
    for field in schema:
        present = field.name in table.column_names
        column = table.column(field.name) if present else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        try:
            columns.append(column if column.type == field.type else _cast(column, field.type))
        except (pa.ArrowException, OverflowError) as error:
            raise CollectionError(
                f"column {field.name!r}: expected {field.type}, got {column.type} ({error}); "
                "rename the column in the source, or give it one type"
            ) from error
    return pa.table(columns, schema=schema)


def _cast(column: Any, kind: Any) -> Any:
    if kind == JSON and not pa.types.is_null(column.type):
        return pa.chunked_array([pa.array([None if v is None else as_json(v) for v in column.to_pylist()], kind)])
    if is_list(kind) and not (is_list(column.type) or pa.types.is_null(column.type)):
        column = pa.chunked_array(list(map(_as_lists, column.chunks)))
    # An integer too large for a float is rounded: rows that other runs made floats must stay readable.
    if pa.types.is_floating(kind):
        return column.cast(kind, safe=False)
    return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))


def _as_lists(values: Any) -> pa.Array[Any]:
    """A list of one for each value; null for null."""
    return list_array(values.drop_null(), values.is_valid().cast("int8"), values.is_null())


def check_rows(table: pa.Table) -> pa.Table:
    """The table as it is written: all fixed columns, then metadata, text as `string`. CollectionError if impossible."""
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise CollectionError(f"columns occur more than once: {', '.join(twice)}; rename the source's")
    embedding = table.schema.field(EMBEDDING).type if EMBEDDING in table.column_names else pa.null()
    if not pa.types.is_fixed_size_list(embedding):
        raise CollectionError(f"column {EMBEDDING!r}: expected fixed_size_list<float>[dim], got {embedding}")
    rows = conform(table, row_schema(embedding.list_size, in_files(table.schema)))
    if rows.column("image_id").null_count:
        raise CollectionError(f"{rows.column('image_id').null_count} rows have no image_id: every row needs one")
    return rows


def common_field(one: pa.Field[Any], other: pa.Field[Any]) -> pa.Field[Any]:
    """A field that can hold the values of both: JSON or lists if either is, of the wider type, or else strings."""
    if one.type == other.type:
        return one
    if JSON in (one.type, other.type):
        return pa.field(one.name, JSON)
    kinds: list[Any] = [one.type, other.type]
    if any(map(is_list, kinds)):
        elements = [pa.field(one.name, kind.value_type if is_list(kind) else kind) for kind in kinds]
        make = pa.large_list if any(map(pa.types.is_large_list, kinds)) else pa.list_
        return pa.field(one.name, make(common_field(*elements).type))
    if any(map(pa.types.is_timestamp, kinds)) and all(map(is_time, kinds)):
        zoned = any(pa.types.is_timestamp(kind) and kind.tz for kind in kinds)
        return pa.field(one.name, pa.timestamp("us", "UTC" if zoned else None))
    signed = [pa.types.is_signed_integer(kind) for kind in kinds]
    if any(map(pa.types.is_decimal, kinds)) or (pa.uint64() in kinds and any(signed)):  # Arrow chooses too few digits
        kinds = [pa.decimal128(len(str(2**kind.bit_width)), 0) if pa.types.is_integer(kind) else kind for kind in kinds]
        one, other = (pa.field(one.name, kind) for kind in kinds)
    try:
        return pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive").field(0)
    except pa.ArrowException:
        return pa.field(one.name, pa.string())
