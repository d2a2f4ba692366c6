"""The columns of annotations beside the rows of a segment, position by position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.annotations import Annotation, same_content
from index.collection.layout import ROWS, segment_path
from index.collection.rows import TEXT
from index.storage import Storage

_KEY = ("image_id", "content_hash")


def read_values(annotations: Sequence[Annotation]) -> list[pa.Table]:
    """The columns of each annotation, beside the images and contents that they are of."""
    rows = [annotation.rows for annotation in annotations]
    return [each.read([*_KEY, *each.metadata]).combine_chunks() for each in rows if each.metadata]


def write_columns(path: Path, storage: Storage, segment: str, values: Sequence[pa.Table]) -> None:
    """Write the values that a segment's rows have, in the batches of its rows."""
    with storage.open_input(segment_path(segment, ROWS)) as file:
        reader = pa.ipc.open_file(file)
        keys = [reader.get_batch(number).select(_KEY) for number in range(reader.num_record_batches)]
    rows = pa.Table.from_batches(keys)
    columns = values_of(rows, values)
    schema = pa.schema([(name, pa.string() if each.type == TEXT else each.type) for name, each in columns.items()])
    with pa.ipc.new_file(str(path), schema) as writer:
        start = 0
        for batch in keys:
            part = pa.table({name: column.slice(start, len(batch)) for name, column in columns.items()})
            writer.write_table(part.cast(schema).combine_chunks(), max_chunksize=max(1, len(batch)))
            start += len(batch)


def values_of(rows: pa.Table, values: Sequence[pa.Table]) -> dict[str, pa.ChunkedArray[Any]]:
    """The columns of annotations for each of the rows; null for other content, and for none."""
    columns: dict[str, pa.ChunkedArray[Any]] = {}
    for table in values:
        at, same = same_content(rows, table)
        found = table.drop_columns(list(_KEY)).take(pc.if_else(same, at, pa.scalar(None, pa.int32())))
        columns |= dict(zip(found.column_names, found.columns, strict=True))
    return columns
