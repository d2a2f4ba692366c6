"""Reads rows with their vectors, by row file and position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RowFile
from index.collection.row_files import damaged_run, fetch, map_in_threads, open_rows, read_ahead, valid
from index.collection.rows import EMBEDDING, conform
from index.errors import ModelMismatchError
from index.storage import Storage

BATCH_ROWS: Final = 16_384
"""Rows in memory at a time. Searches process one batch at a time too."""


@dataclass(frozen=True)
class Part:
    """Rows of one file, whose vectors are of `model`: those at ascending `positions`, or all."""

    file: RowFile
    model: ModelRecord
    positions: npt.NDArray[np.int32] | None

    def __len__(self) -> int:
        return self.file.rows if self.positions is None else len(self.positions)


@dataclass(frozen=True)
class StoredRows:
    """Rows in the order in which they were written, with these columns. Picklable."""

    storage: Storage
    parts: Sequence[Part]
    schema: pa.Schema
    model: ModelRecord | None

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all rows."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *map_in_threads(partial(self._read, schema), self.parts)])

    def _read(self, schema: pa.Schema, part: Part) -> pa.Table:
        tables = self._batches(part, fetch(self.storage, part.file), part.file.rows or 1, schema.names)
        return pa.concat_tables([schema.empty_table(), *(conform(table, schema) for table in tables)])

    def embedded(self, more: pa.Table | None = None) -> Iterator[pa.RecordBatch]:
        """The rows that have an embedding, in batches of at most `BATCH_ROWS`; with `more` columns of all rows, each of
        which replaces the one of its name.
        """
        more, start = pa.table({}) if more is None else more, 0
        schema = pa.schema({field.name: field for field in (*self.schema, *more.schema)}.values())
        contents = read_ahead(lambda part: fetch(self.storage, part.file), self.parts, lambda part: part.file.size)
        for part, content in zip(self.parts, contents, strict=True):
            for table in self._batches(part, content, BATCH_ROWS):
                both = table, more.slice(start, len(table))
                rows = pa.table({name: each[name] for each in both for name in each.column_names})
                rows, start = rows.filter(rows.column(EMBEDDING).is_valid()), start + len(table)
                if rows.num_rows and not (self.model and part.model.agrees_with(self.model)):
                    raise ModelMismatchError(
                        f"{part.file.path} has live vectors of {part.model}, the newest run has those of "
                        f"{self.model}: an index takes one model's vectors, so embed every image with one model"
                    )
                yield from conform(rows, schema).combine_chunks().to_batches()

    def _batches(
        self, part: Part, content: bytes | Storage, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """The part's rows, with all columns of the file, or those of these that it has, and others."""
        with open_rows(content, part.file) as file:
            length = file.schema_arrow.field(EMBEDDING).type.list_size
            if length != part.model.dim:
                problem = f"vectors of {length} dimensions, its run's model has {part.model.dim}"
                raise damaged_run(part.file.path, problem)
            # Parquet reads "a" as every column nested in it, and "a.b" as one of them.
            start, read = 0, None if columns is None else [*columns, "image_id"]
            for batch in map(valid, file.iter_batches(batch_size=batch_rows, columns=read)):
                table = pa.Table.from_batches([batch])
                if nulls := table["image_id"].null_count:
                    raise OSError(f"{nulls} rows have no image_id")
                if part.positions is not None:
                    low, high = np.searchsorted(part.positions, [start, start + len(batch)])
                    table = table.take(part.positions[low:high] - start)
                yield table
                start += len(batch)
