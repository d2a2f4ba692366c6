"""The columns of a listing, and how listings are built."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.exif import EXIF_COLUMNS
from index.collection.rows import (
    FIXED_COLUMNS,
    JSON,
    LOCATION_COLUMNS,
    REJECT_COLUMNS,
    TEXT,
    TILES,
    as_json,
    common_field,
    conform,
    in_memory,
    is_list,
    list_array,
)
from index.errors import CollectionError

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"

_TYPES: dict[str, pa.DataType] = {"size": pa.int64(), "modified": pa.timestamp("us", "UTC"), "retryable": pa.bool_()}
LISTING = pa.schema({name: _TYPES.get(name, TEXT) for name in ("image_id", "uri", "size", "modified", "etag")})
REFUSAL = pa.schema({name: _TYPES.get(name, TEXT) for name in REJECT_COLUMNS})
"""Additional columns of a listing that refuses some of its rows, which then become rejects."""
Reason: TypeAlias = tuple[str, str, str, bool]
"""Why a row is rejected, in the order of `REJECT_COLUMNS`: stage, reason, message, and whether to try again."""
_FILE_FACTS: dict[str, pa.DataType] = {"content_hash": TEXT, "width": pa.int32(), "height": pa.int32(), "format": TEXT}
FILE_FACTS = pa.schema(_FILE_FACTS)
"""Facts about an image's file. Refused rows have them if an earlier row of the unchanged image does."""
REFUSED_STAGE = "list"
WEB = "(?i)^https?://"
"""What matches web addresses."""
UNREADABLE = "unreadable"
"""The reason for a tar, list or folder that cannot be read, so the images in it are unknown."""
COPIED = "copied_row"
"""Additional column of the images that a plan copies: where the row is whose outcome each of them takes."""
# The columns of rows, those that the pipeline passes from stage to stage, and what matches can be sorted by besides.
RESERVED_NAMES = frozenset(
    {*FIXED_COLUMNS, *LOCATION_COLUMNS, TILES, *EXIF_COLUMNS}
    | {"pixels", "fetch_seconds", "decode_seconds", COPIED, "score"}
)
UNNAMED_INDEX = "an unnamed index of pandas"
RESERVED_SIGNS = ("$", "-")
"""What searches read at the beginning of a name: `$` an operator of a filter, `-` the order from the highest down."""


def listing_table(columns: Mapping[str, Column | Sequence[Any]], metadata: Mapping[str, Column]) -> pa.Table:
    """Build a listing: the columns of `LISTING`, null where absent, then metadata converted to plain types.

    Metadata columns get the names of `stored_names`.
    """
    rows = len(columns["image_id"])
    arrays = [
        _as_type(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in LISTING
    ]
    arrays += map(_plain, metadata.values())
    return pa.table(arrays, names=[*LISTING.names, *stored_names(metadata).values()])


def stored_names(names: Collection[str]) -> dict[str, str]:
    """What a listing calls its metadata columns, by their names in the source: a reserved name, or one that begins with
    a reserved sign, becomes `source_<name>`.
    """
    reserved = {name for name in names if name in RESERVED_NAMES or name.startswith(RESERVED_SIGNS)}
    return {name: free_name(name, names) if name in reserved else name for name in names}


def renaming_notes(names: Collection[str]) -> list[str]:
    """What to say about the columns that get another name."""
    notes = []
    for name, stored in stored_names(names).items():
        if stored != name:
            why = f"as each image has a `{name}` of its own"
            if name == "image_id":  # in Likeness's own output
                why = "as each image has an id of its own: to use these ids, add --id-column image_id"
            if name.startswith(RESERVED_SIGNS):
                why = f"as searches read {name[0]} at the beginning of a name as a sign"
            notes.append(f"column `{name}` is stored as `{stored}`, {why}")
    return notes


def unnamed_index(names: Iterable[str]) -> list[str]:
    """The columns that pandas writes for an index without a name, such as the row numbers of a filtered frame."""
    return [name for name in names if re.fullmatch(r"__index_level_\d+__", name)]


def left_out_note(content: str, names: Iterable[str]) -> str:
    """What to say about columns with this content, which become no metadata."""
    return f"columns of {content} are left out ({', '.join(f'`{name}`' for name in names)})"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A row that a listing refuses, such as an unreadable line; `image_id` is made up for it."""

    image_id: str
    uri: str | None
    reason: str
    message: str
    size: int | None = None
    modified: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What one file, such as a tar, lists; the number of things in it, by kind, that are left out; and `notes`, the
    names of files by what to say about them.
    """

    images: pa.Table
    refused: Sequence[Refused] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)


def refused_listing(refused: Sequence[Refused]) -> pa.Table:
    """A listing of refused rows only."""
    names = ("image_id", "uri", "size", "modified")
    listing = listing_table({name: [getattr(each, name) for each in refused] for name in names}, {})
    return refuse(listing, {row: (REFUSED_STAGE, each.reason, each.message, False) for row, each in enumerate(refused)})


def refuse(rows: pa.Table, reasons: Mapping[int, Reason]) -> pa.Table:
    """The rows with the columns of `REFUSAL`: these reasons at these positions; all other rows keep theirs, if any."""
    positions = sorted(reasons)
    mask = np.zeros(rows.num_rows, bool)
    mask[positions] = True
    columns: dict[str, Column] = {}
    for number, column in enumerate(REFUSAL):
        values = pa.array([reasons[row][number] for row in positions], column.type)
        is_present = column.name in rows.column_names
        before = (
            rows[column.name].combine_chunks().cast(column.type) if is_present else pa.nulls(len(rows), column.type)
        )
        columns[column.name] = pc.replace_with_mask(before, pa.array(mask), values)
    return with_columns(rows, columns)


def with_columns(table: pa.Table, columns: Mapping[str, Column]) -> pa.Table:
    """The table with these columns, each replacing the one of its name or appended."""
    for name, values in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, values)
        else:
            table = table.append_column(name, values)
    return table


def with_outcome(listing: pa.Table, outcome: pa.Table, names: Iterable[str]) -> pa.Table:
    """The listing with these columns of `outcome`, which has a row for each image, and with the sizes that it lacks."""
    sizes = pc.coalesce(listing["size"], outcome["size"])
    return with_columns(listing, {"size": sizes, **{name: outcome[name] for name in names}})


def common_schema(tables: Iterable[pa.Table], again: Iterable[pa.Table]) -> pa.Schema:
    """The columns of listings, each with a type that holds all its values. Where no other type holds them, such as that
    of 2**60 and 1.5, it is text. `again` has the same tables, which may be read from files.
    """
    fields: dict[str, pa.Field[Any]] = {}
    for column in chain.from_iterable(without_types_of_nulls(table).schema for table in tables):
        fields[column.name] = common_field(fields.get(column.name, column), column)
    schema = in_memory(pa.schema(fields.values()))
    texts = {column.name for table in again for column in schema if not _holds(column, table)}
    for number, column in enumerate(schema):
        if column.name in texts:
            text = pa.large_list(TEXT) if is_list(column.type) else TEXT
            schema = schema.set(number, column.with_type(text))
    return schema


def without_types_of_nulls(table: pa.Table) -> pa.Table:
    """The table, in which text without any value has no type: that of others then counts."""
    for number, values in enumerate(table.columns):
        if values.type == TEXT and values.null_count == len(values):
            table = table.set_column(number, table.schema.names[number], pa.nulls(len(values)))
    return table


def _holds(column: pa.Field[Any], table: pa.Table) -> bool:
    """Whether the column's type holds the table's values as they are."""
    if column.name not in table.column_names or table[column.name].type == column.type:
        return not pa.types.is_null(column.type)
    values: Any = table[column.name]
    try:
        conform(table.select([column.name]), pa.schema([column]))
        return not pa.types.is_floating(column.type) or values.cast(column.type).type == column.type
    except (CollectionError, pa.ArrowInvalid):
        return False


def column_of(values: list[Any]) -> Column:
    """An array of the type that all values share, otherwise of strings, or if some are nested, of lists or JSON."""
    try:
        column: Column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError):
        if any(isinstance(value, dict | list) for value in values):
            return _lists_or_json(values)
        column = pa.array([None if v is None else escaped(v) if isinstance(v, str) else as_json(v) for v in values])
    return column


def _lists_or_json(values: list[Any]) -> Column:
    lists = [value if isinstance(value, list) else [] if value is None else [value] for value in values]
    elements = [element for each in lists for element in each]
    if any(isinstance(element, dict | list) for element in elements):
        return _json(values)
    return list_array(
        _one_array(column_of(elements)), list(map(len, lists)), pa.array([value is None for value in values])
    )


def escaped(name: str) -> str:
    """A name as valid UTF-8: bytes that are not text are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def free_name(name: str, names: Container[str]) -> str:
    """`source_<name>`, with more prefixes if `names` has that too."""
    free = f"source_{name}"
    while free in names:
        free = f"source_{free}"
    return free


def _as_type(values: Column | Sequence[Any], type_: pa.DataType) -> Column:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(type_)
    return pa.array(values, type_)


def _plain(values: Column) -> Column:
    """Metadata as filters can use it: numbers, booleans, times, strings and lists of these; deeper values as JSON."""
    type_: Any = values.type
    if pa.types.is_dictionary(type_):
        return _plain(values.cast(type_.value_type))
    if pa.types.is_null(type_) or type_ in (pa.string(), pa.large_string(), pa.string_view()):
        stored = values.cast(pa.large_binary())
        try:
            return stored.cast(TEXT)
        except pa.ArrowInvalid:  # not UTF-8
            return as_text(stored)
    if pa.types.is_nested(type_):
        element: Any = getattr(type_, "value_type", None)
        if element is None or pa.types.is_nested(element):
            return _json(values.to_pylist())
        lists = _one_array(values.cast(pa.large_list(element)))
        elements = _one_array(_plain(lists.flatten()))
        return list_array(elements, pc.list_value_length(lists).fill_null(0), lists.is_null())
    if getattr(type_, "extension_name", "") == "arrow.json":
        return values.cast(TEXT).cast(JSON)
    if isinstance(type_, pa.BaseExtensionType) or pa.types.is_binary(type_):  # a CSV's text that is not UTF-8
        return as_text(values)
    return values


def _one_array(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _json(values: list[Any]) -> Column:
    return pa.array([None if value is None else as_json(value) for value in values], JSON)


def as_text(values: Column) -> Column:
    """Values of any type as strings: as Arrow casts them, or as Python prints them (UUIDs, for example)."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    if any(is_kind(values.type) for is_kind in kinds):
        texts = [None if v is None else v.decode("utf-8", "backslashreplace") for v in values.to_pylist()]
        return pa.chunked_array([pa.array(texts, TEXT)])
    if not isinstance(values.type, pa.BaseExtensionType) and not pa.types.is_nested(values.type):
        return values.cast(TEXT)
    return pa.chunked_array([pa.array([None if v is None else str(v) for v in values.to_pylist()], TEXT)])
