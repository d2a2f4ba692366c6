"""Annotation values of a segment's rows, by position, and their words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from index.collection.layout import ROWS, segment_path
from index.collection.live_rows import LiveRows, annotation_values
from index.collection.rows import in_files
from index.storage import Storage
from index.storage.arrow_file import read_batches


def write_columns(path: Path, storage: Storage, segment: str, annotations: Sequence[LiveRows]) -> None:
    """Write the values of a segment's rows, in the same batches as the rows."""
    with storage.open_input(segment_path(segment, ROWS)) as file:
        batches = read_batches(file, ("image_id", "content_hash"))[1]
    rows = pa.Table.from_batches(batches)
    rows = rows.append_column("number", pa.array(np.arange(len(rows))))
    found = annotation_values(annotations[0].catalog, "segment_rows", annotations, segment_rows=rows)
    values = pa.concat_tables([each for _, each in found])
    schema, start = in_files(values.schema), 0
    with pa.ipc.new_file(str(path), schema) as writer:
        for batch in batches:
            part = values.slice(start, len(batch)).cast(schema).combine_chunks()
            writer.write_table(part, max_chunksize=max(1, len(batch)))
            start += len(batch)
