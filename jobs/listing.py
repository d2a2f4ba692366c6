"""The columns of a listing, and how one is put together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from index.rows import FIXED, TEXT

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"

_COLUMNS: dict[str, pa.DataType] = {
    "image_id": TEXT,
    "uri": TEXT,
    "size": pa.int64(),
    "modified": pa.timestamp("us", tz="UTC"),
    "etag": TEXT,
}
LISTING = pa.schema(_COLUMNS)
IMAGE_EXTENSIONS = ("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "mpo")
# A row's own columns, and those that the pipeline carries from stage to stage.
TAKEN = frozenset({*FIXED, "pixels", "fetch_seconds", "decode_seconds"})


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
        names.append(_free_name(name, metadata))
        arrays.append(_plain(values))
    return pa.table(arrays, names=names)


def _free_name(name: str, metadata: Mapping[str, Any]) -> str:
    if name not in TAKEN:
        return name
    free = f"source_{name}"
    while free in metadata:
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
        texts = [None if v is None else json.dumps(v, default=str, ensure_ascii=False) for v in values.to_pylist()]
        return pa.array(texts, TEXT)
    if isinstance(type_, pa.BaseExtensionType):
        return as_text(values)
    return values


def as_text(values: Column) -> Column:
    """Strings of values of any type: as Arrow casts them, else as Python writes them (a UUID, say)."""
    if not isinstance(values.type, pa.BaseExtensionType) and not pa.types.is_nested(values.type):
        return values.cast(TEXT)
    return pa.chunked_array([pa.array([None if v is None else str(v) for v in values.to_pylist()], TEXT)])
