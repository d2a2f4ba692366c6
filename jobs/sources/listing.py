"""The columns of a listing, and how one is put together."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.exif import EXIF_COLUMNS
from index.collection.rows import FIXED_COLUMNS, REJECT_COLUMNS, TEXT, TILES, common_field, conform, in_memory

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"

_TYPES: dict[str, pa.DataType] = {"size": pa.int64(), "modified": pa.timestamp("us", "UTC"), "retryable": pa.bool_()}
LISTING = pa.schema({name: _TYPES.get(name, TEXT) for name in ("image_id", "uri", "size", "modified", "etag")})
REFUSAL = pa.schema({name: _TYPES.get(name, TEXT) for name in REJECT_COLUMNS})
"""Columns that a listing has too if it refuses some of its rows: those become rejects as they are."""
Reason: TypeAlias = tuple[str, str, str, bool]
"""Of a reject, in the order of `REJECT_COLUMNS`: stage, reason, message, and whether to try again."""
_KNOWN: dict[str, pa.DataType] = {"content_hash": TEXT, "width": pa.int32(), "height": pa.int32(), "format": TEXT}
KNOWN = pa.schema(_KNOWN)
"""Columns that refused rows have besides, if an earlier row of an unchanged image says so."""
REFUSED_STAGE = "list"
UNREADABLE = "unreadable"
"""Why a tar, a list or a folder is refused: the images in it are not known."""
# A row's own columns, and those that the pipeline carries from stage to stage.
TAKEN = frozenset({*FIXED_COLUMNS, TILES, *EXIF_COLUMNS, "pixels", "fetch_seconds", "decode_seconds"})


def listing_table(columns: Mapping[str, Column | Sequence[Any]], metadata: Mapping[str, Column]) -> pa.Table:
    """Put a listing together: `LISTING`'s columns in order, null where absent, then metadata that has a plain type.

    A metadata column that has the name of one of a row's own columns becomes `source_<name>`.
    """
    rows = len(columns["image_id"])
    arrays = [
        _as_type(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in LISTING
    ]
    names = [field.name for field in LISTING]
    for name, values in metadata.items():
        names.append(free_name(name, metadata) if name in TAKEN else name)
        arrays.append(_plain(values))
    return pa.table(arrays, names=names)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A row that a listing refuses, such as a line that cannot be read; `image_id` is a name for it."""

    image_id: str
    uri: str | None
    reason: str
    message: str
    size: int | None = None
    modified: dt.datetime | None = None


def refused_listing(refused: Sequence[Refused]) -> pa.Table:
    """A listing of nothing but these."""
    names = ("image_id", "uri", "size", "modified")
    listing = listing_table({name: [getattr(each, name) for each in refused] for name in names}, {})
    return refuse(listing, {row: (REFUSED_STAGE, each.reason, each.message, False) for row, each in enumerate(refused)})


def refuse(rows: pa.Table, reasons: Mapping[int, Reason]) -> pa.Table:
    """The rows with the columns of `REFUSAL`: these reasons at these positions; others keep theirs, or have none."""
    positions = sorted(reasons)
    mask = np.zeros(rows.num_rows, bool)
    mask[positions] = True
    columns: dict[str, Column] = {}
    for number, field in enumerate(REFUSAL):
        values = pa.array([reasons[row][number] for row in positions], field.type)
        there = field.name in rows.column_names
        before = rows[field.name].combine_chunks().cast(field.type) if there else pa.nulls(rows.num_rows, field.type)
        columns[field.name] = pc.replace_with_mask(before, pa.array(mask), values)
    return with_columns(rows, columns)


def with_columns(table: pa.Table, columns: Mapping[str, Column]) -> pa.Table:
    """The table with these columns, each in the place of one of its name or behind the others."""
    for name, values in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, values)
        else:
            table = table.append_column(name, values)
    return table


def with_outcome(listing: pa.Table, found: pa.Table, names: Iterable[str]) -> pa.Table:
    """The listing with these columns of what is found out, in a row for each image; of the sizes, those that it lacks
    (a list of URLs has none).
    """
    sizes = pc.coalesce(listing["size"], found["size"])
    return with_columns(listing, {"size": sizes, **{name: found[name] for name in names}})


def refused_mask(listing: pa.Table, reason: str | None = None) -> Column:
    """A mask: the rows that the listing refuses, for any reason or for this one."""
    if "error_reason" not in listing.column_names:
        return pa.array(np.zeros(listing.num_rows, bool))
    reasons: Column = listing["error_reason"]
    return pc.is_valid(reasons) if reason is None else pc.equal(reasons, pa.scalar(reason, TEXT)).fill_null(False)


def without_refusal(listing: pa.Table) -> pa.Table:
    return listing.drop_columns([name for name in (*REFUSAL.names, *KNOWN.names) if name in listing.column_names])


def concat_listings(tables: Sequence[pa.Table]) -> pa.Table:
    """One listing after the other. A column has the type that holds all its values; it is null where there is none."""
    schema = together(*(table.schema for table in tables))
    return pa.concat_tables([conform(table, schema) for table in tables])


def together(*schemas: pa.Schema) -> pa.Schema:
    fields: dict[str, pa.Field[Any]] = {}
    for schema in schemas:
        for field in schema:
            fields[field.name] = common_field(fields.get(field.name, field), field)
    return in_memory(pa.schema(fields.values()))


def column_of(values: list[Any]) -> Column:
    """An array of the type that all values share, else of strings."""
    try:
        column: Column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError):
        column = pa.array([None if v is None else text(v) if isinstance(v, str) else _as_json(v) for v in values])
    return column


def text(name: str) -> str:
    """A name as UTF-8 can write it: bytes of it that are no text become escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def free_name(name: str, names: Container[str]) -> str:
    """`source_<name>`, which none of `names` is."""
    free = f"source_{name}"
    while free in names:
        free = f"source_{free}"
    return free


def _as_type(values: Column | Sequence[Any], type_: pa.DataType) -> Column:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(type_)
    return pa.array(values, type_)


def _plain(values: Column) -> Column:
    """Metadata as filters and other tools can use it: numbers, booleans, times and strings; nested values as JSON."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return _plain(values.cast(type_.value_type))
    if pa.types.is_null(type_) or pa.types.is_string(type_) or pa.types.is_string_view(type_):
        return values.cast(TEXT)
    if pa.types.is_nested(type_):
        texts = [None if v is None else _as_json(v) for v in values.to_pylist()]
        return pa.array(texts, TEXT)
    if isinstance(type_, pa.BaseExtensionType) or pa.types.is_binary(type_):  # a CSV's text that is not UTF-8
        return as_text(values)
    return values


def _as_json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def as_text(values: Column) -> Column:
    """Strings of values of any type: as Arrow casts them, else as Python writes them (a UUID, say)."""
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        texts = [None if v is None else v.decode("utf-8", "backslashreplace") for v in values.to_pylist()]
        return pa.chunked_array([pa.array(texts, TEXT)])
    if not isinstance(values.type, pa.BaseExtensionType) and not pa.types.is_nested(values.type):
        return values.cast(TEXT)
    return pa.chunked_array([pa.array([None if v is None else str(v) for v in values.to_pylist()], TEXT)])
