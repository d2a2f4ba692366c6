"""Annotation values of a segment's rows, by position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.annotations import Annotation, same_content
from index.collection.layout import ROWS, segment_path
from index.collection.rows import in_files
from index.storage import Storage
from index.storage.arrow_file import read_batches

_KEY = ("image_id", "content_hash")


def read_values(annotations: Sequence[Annotation]) -> list[pa.Table]:
    """The columns of each annotation, with the image id and content hash of each row."""
    sources = [annotation.rows for annotation in annotations]
    return [rows.read([*_KEY, *rows.metadata]).combine_chunks() for rows in sources if rows.metadata]


def write_columns(path: Path, storage: Storage, segment: str, values: Sequence[pa.Table]) -> None:
    """Write the values of a segment's rows, in the same batches as the rows."""
    with storage.open_input(segment_path(segment, ROWS)) as file:
        keys = read_batches(file, _KEY)[1]
    rows = pa.Table.from_batches(keys)
    columns = values_of(rows, values)
    schema = in_files(pa.schema([(name, column.type) for name, column in columns.items()]))
    with pa.ipc.new_file(str(path), schema) as writer:
        start = 0
        for batch in keys:
            part = pa.table({name: column.slice(start, len(batch)) for name, column in columns.items()})
            writer.write_table(part.cast(schema).combine_chunks(), max_chunksize=max(1, len(batch)))
            start += len(batch)


def values_of(rows: pa.Table, values: Sequence[pa.Table]) -> dict[str, pa.ChunkedArray[Any]]:
    """The columns of annotations for these rows; null if an annotation lacks the image, or is of other content."""
    columns: dict[str, pa.ChunkedArray[Any]] = {}
    for table in values:
        indices, same = same_content(rows, table)
        matching = table.drop_columns(list(_KEY)).take(pc.if_else(same, indices, pa.scalar(None, pa.int32())))
        columns |= dict(zip(matching.column_names, matching.columns, strict=True))
    return columns
