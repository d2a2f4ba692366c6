"""Which columns of a list are what; in Parquet the pictures are found by their content."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embedder.images.formats import picture_format
from index.collection.rows import TEXT
from jobs.sources.listing import Column
from jobs.values import ColumnType

FILE_NAME = "file_name"
"""The column of paths in the metadata files of Hugging Face."""
URI_COLUMNS = ("uri", "url", FILE_NAME)

_SAMPLE_ROWS = 16
_PATHS = 1 << 16  # in memory at a time


@dataclass(frozen=True, kw_only=True)
class ListColumns:
    """Which columns of a list are what. `uri` holds the addresses or pictures, by default `uri`, `url` or the pictures
    in Parquet; `id` the ids, by default `id`; `types` are the types of others.
    """

    uri: str | None = None
    id: str | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)

    @property
    def uris(self) -> Sequence[str]:
        return (self.uri,) if self.uri else URI_COLUMNS

    @property
    def ids(self) -> str:
        return self.id or "id"


def picture_column(file: pq.ParquetFile, columns: ListColumns) -> str | None:
    """The column of pictures: the one that `columns` names, or the first whose values are pictures. None if a column of
    addresses says where they are.
    """
    schema = file.schema_arrow
    candidates = [field.name for field in schema if field.name != columns.ids and holds_images(field.type)]
    if columns.uri in schema.names:
        return columns.uri if columns.uri in candidates and not _is_text(file, columns.uri) else None
    found = next((name for name in candidates if any(map(picture_format, _sample(file, name)))), None)
    if found is None and not any(name in schema.names for name in columns.uris):
        return next(iter(candidates), None)  # so that each broken picture is rejected for what is wrong with it
    return found


def paths_without_bytes(file: pq.ParquetFile, column: str) -> Column | None:
    """The paths in the rows of a column of pictures that have no bytes; None if no row has. Pictures are read only of
    row groups in which some rows have bytes.
    """
    type_ = file.schema_arrow.field(column).type
    if not pa.types.is_struct(type_) or "path" not in [type_.field(i).name for i in range(type_.num_fields)]:
        return None
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    missing = [_nulls(group, f"{column}.bytes") for group in groups]
    if not any(missing) or type_.field("path").type not in (pa.string(), pa.large_string()):
        return None
    parts: list[pa.Array[Any]] = []
    for number, group in enumerate(groups):
        if not missing[number]:
            parts.append(pa.nulls(group.num_rows, TEXT))
            continue
        mixed = missing[number] < group.num_rows
        names = [f"{column}.path", *([f"{column}.bytes"] if mixed else [])]
        for batch in file.iter_batches(_SAMPLE_ROWS if mixed else _PATHS, [number], names, use_threads=False):
            paths = pc.struct_field(batch.column(column), "path").cast(TEXT)
            if mixed:
                has_bytes = pc.is_valid(pc.struct_field(batch.column(column), "bytes"))
                paths = pc.if_else(has_bytes, pa.scalar(None, TEXT), paths)
            parts.append(paths)
    return pa.chunked_array(parts, TEXT)


def _nulls(group: Any, leaf: str) -> int:
    """How many values a row group lacks, as far as it says so."""
    columns = map(group.column, range(group.num_columns))
    facts = next((each.statistics for each in columns if each.path_in_schema == leaf), None)
    return int(facts.null_count) if facts and facts.has_null_count else 0


def holds_images(type_: pa.DataType) -> bool:
    """Whether a column is plain binary, or a struct with `bytes`, as Hugging Face datasets write images."""
    if pa.types.is_dictionary(type_):
        return holds_images(type_.value_type)
    if pa.types.is_struct(type_):
        return "bytes" in [type_.field(i).name for i in range(type_.num_fields)]
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_))


def holds_bytes(type_: pa.DataType) -> bool:
    """Whether values are or contain bytes, which are no metadata. Those of a fixed size are no pictures."""
    if pa.types.is_dictionary(type_):
        return holds_bytes(type_.value_type)
    if holds_images(type_) or pa.types.is_fixed_size_binary(type_):
        return True
    return any(holds_bytes(type_.field(i).type) for i in range(type_.num_fields))


def _is_text(file: pq.ParquetFile, column: str) -> bool:
    """Whether a binary column holds addresses, as older writers store text."""
    sample = _sample(file, column)
    return bool(sample) and all(value.isascii() and not picture_format(value) for value in sample)


def _sample(file: pq.ParquetFile, column: str) -> list[bytes]:
    """The first values that are not null."""
    for batch in file.iter_batches(_SAMPLE_ROWS, columns=[column], use_threads=False):
        values: pa.Array[Any] = batch.column(column)
        if pa.types.is_struct(values.type):
            values = pc.struct_field(values, "bytes")
        found = [value for value in values.to_pylist() if isinstance(value, bytes)]
        if found:
            return found
    return []
