"""The columns of a listing, and the files that it is made from."""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from index.rows import FIXED
from index.storage import Storage

LISTING = pa.schema(
    [
        ("image_id", pa.string()),
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.timestamp("us", tz="UTC")),
        ("etag", pa.string()),
    ]
)
IMAGE_EXTENSIONS = ("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "mpo")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of a source: `name` is its path below the source's root, `path` what its filesystem calls it."""

    filesystem: fs.FileSystem
    path: str
    name: str
    uri: str
    size: int | None
    modified: dt.datetime | None

    @classmethod
    def of(cls, storage: Storage, info: fs.FileInfo, name: str) -> "SourceFile":
        return cls(
            filesystem=storage.filesystem,
            path=info.path,
            name=name,
            uri=storage.location.removesuffix(storage.root) + info.path,
            size=info.size,
            modified=info.mtime,
        )


def extension(path: str) -> str:
    """The last extension in lower case without its dot; empty where there is none."""
    return PurePosixPath(path).suffix.lower().lstrip(".")


def listing_table(
    columns: Mapping[str, Sequence[Any] | pa.Array | pa.ChunkedArray], metadata: Mapping[str, Any]
) -> pa.Table:
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
        names.append(f"source_{name}" if name in FIXED else name)
        arrays.append(_plain(values))
    return pa.table(arrays, names=names)


def _as_type(values: Sequence[Any] | pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(type_)
    return pa.array(values, type_)


def _plain(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Metadata as filters and other tools can use it: numbers, booleans, times and strings; nested values as JSON."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return _plain(values.cast(type_.value_type))
    if pa.types.is_null(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return values.cast(pa.string())
    if pa.types.is_nested(type_) or isinstance(type_, pa.ExtensionType):
        texts = [None if v is None else json.dumps(v, default=str, ensure_ascii=False) for v in values.to_pylist()]
        return pa.array(texts, pa.string())
    return values
