"""Reads rows with their vectors, by row file and position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.records import ModelRecord, RowFile
from index.collection.row_files import damaged_run, fetch, map_in_threads, open_rows, valid
from index.collection.rows import EMBEDDING, conform
from index.errors import ModelMismatchError
from index.storage import Storage

_AHEAD = 64 << 20  # bytes of row files that are fetched in parallel before the first one is read


@dataclass(frozen=True)
class Part:
    """Rows of one file: those at ascending `positions`, or all. `model` made the vectors; None: it is unknown."""

    file: RowFile
    model: ModelRecord | None
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

    def tables(self, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """Some columns, in tables of whole files with about `rows` rows each."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        for parts in _slices(list(map(len, self.parts)), rows):
            yield pa.concat_tables(map_in_threads(partial(self._read, schema), self.parts[parts]))

    def embedded(self, batch_rows: int = 16_384, more: pa.Table | None = None) -> Iterator[pa.RecordBatch]:
        """The rows that have an embedding, in batches of at most `batch_rows`; with `more` columns of all rows."""
        more, start = pa.table({}) if more is None else more, 0
        schema = pa.schema({field.name: field for field in (*self.schema, *more.schema)}.values())
        for part, data in self._fetch_parts():
            for table in self._batches(part, data, batch_rows):
                rows = _with_columns(table, more.slice(start, len(table)))
                rows, start = rows.filter(rows.column(EMBEDDING).is_valid()), start + len(table)
                if rows.num_rows and not agree(part.model, self.model):
                    raise ModelMismatchError(
                        f"{part.file.path} has live vectors of {part.model}, the newest run has those of "
                        f"{self.model}: an index takes one model's vectors, so embed every image with one model"
                    )
                yield from conform(rows, schema).combine_chunks().to_batches()

    def _fetch_parts(self) -> Iterator[tuple[Part, bytes | None]]:
        """The parts with their files' content; None: too large to keep in memory."""
        for files in _slices([part.file.size for part in self.parts], _AHEAD):
            parts = self.parts[files]
            data = map_in_threads(partial(fetch, self.storage), [part.file for part in parts])
            yield from zip(parts, data, strict=True)

    def _read(self, schema: pa.Schema, part: Part) -> pa.Table:
        tables = list(self._batches(part, fetch(self.storage, part.file), part.file.rows or 1, schema.names))
        return conform(pa.concat_tables(tables), schema) if tables else schema.empty_table()

    def _batches(
        self, part: Part, data: bytes | None, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        with open_rows(self.storage, part.file, data) as file:
            length = file.schema_arrow.field(EMBEDDING).type.list_size
            if part.model and length != part.model.dim:
                problem = f"vectors of {length} dimensions, its run's model has {part.model.dim}"
                raise damaged_run(part.file.path, problem)
            names = None
            if columns is not None:
                names = [name for name in file.schema_arrow.names if name in columns]
            start = 0
            # Parquet reads "a" as every column nested in it, and "a.b" as one of them, so select by name afterwards.
            read = None if names is None else [*names, "image_id"]
            for batch in map(valid, file.iter_batches(batch_size=batch_rows, columns=read)):
                table = pa.Table.from_batches([batch])
                if nulls := table["image_id"].null_count:
                    raise OSError(f"{nulls} rows have no image_id")
                if part.positions is not None:
                    low, high = np.searchsorted(part.positions, [start, start + len(batch)])
                    table = table.take(part.positions[low:high] - start)
                yield table if names is None else table.select(names)
                start += len(batch)


def agree(one: ModelRecord | None, other: ModelRecord | None) -> bool:
    return one == other or (one is not None and other is not None and one.agrees_with(other))


def _with_columns(table: pa.Table, more: pa.Table) -> pa.Table:
    """The table with `more` columns, each replacing the one of its name."""
    columns = {name: each[name] for each in (table, more) for name in each.column_names}
    return pa.table(columns)


def _slices(sizes: Sequence[int], max_total: int) -> Iterator[slice]:
    """Consecutive items whose sizes add up to at most `max_total`, or a single larger one."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = ends[first - 1] if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + max_total, side="right")))
        yield slice(first, end)
        first = end
