"""The images that a run has to write, as Parquet files of this machine: they may be more than fit into memory."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.collection.catalog.sql import parquet
from index.collection.row_files import parquet_of
from index.collection.rows import LOCATION_COLUMNS, in_parts
from index.storage import Storage
from index.storage.scratch import Scratch
from jobs.sources.listing import LISTING

POSITION: Final = LOCATION_COLUMNS[-1]
"""The first column of the files, and of `Todo.sql`: the number of the row."""
IN_MEMORY: Final = 1 << 16  # rows
GROUP: Final = 2048
"""Rows of a row group, which one task reads."""


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """`rows` rows of a row group, from its row `first`; `path` is the file of a `Todo`."""

    path: str
    number: int
    first: int
    rows: int

    def read(self, storage: Storage, columns: Sequence[str]) -> pa.Table:
        with (
            storage.open_input(self.path) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as parquet,
        ):
            return parquet.read_row_group(self.number).select(columns).slice(self.first, self.rows)


class Todo:
    """Rows of a listing, in order, from tables of the same columns. Their files are removed with the last part."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._scratch = Scratch("todo")
        self._start, self._lengths, self.schema, size = 0, list[int](), LISTING, 0
        for part in map(pa.concat_tables, in_parts(tables)):
            self.schema = part.schema
            size += part.nbytes
            self._write(part)
        if not self._lengths:
            self._write(LISTING.empty_table())
        self.num_rows = sum(self._lengths)
        self.row_bytes = size // max(1, self.num_rows)
        """Bytes of a row in memory, on average."""

    def _write(self, rows: pa.Table) -> None:
        first, path = sum(self._lengths), _name(len(self._lengths))
        positions = pa.array(np.arange(first, first + rows.num_rows))
        self.storage.write_atomic(path, parquet_of(rows.add_column(0, POSITION, positions), GROUP))
        self._lengths.append(rows.num_rows)

    @property
    def _end(self) -> int:
        return self._start + self.num_rows

    @property
    def storage(self) -> Storage:
        return self._scratch.storage

    @property
    def files(self) -> list[str]:
        """The paths of the files in `storage`."""
        return [_name(number) for number in range(len(self._lengths))]

    def select(self, names: Iterable[str]) -> Todo:
        """The same rows with these columns alone."""
        other = copy(self)
        other.schema = pa.schema([self.schema.field(name) for name in names])
        return other

    def slice(self, start: int, end: int | None = None) -> Todo:
        """The rows from this one on, until the one at `end`."""
        other = copy(self)
        other._start, other.num_rows = self._start + start, (self.num_rows if end is None else end) - start
        return other

    @property
    def sql(self) -> str:
        """The rows in the queries of any catalog."""
        rows = parquet(map(self.storage.absolute, self.files))
        return f"(FROM {rows} WHERE {POSITION} BETWEEN {self._start} AND {self._end - 1})"

    def groups(self, rows: int = GROUP) -> Iterator[RowGroup]:
        """Where these rows are, in order, at most `rows` each."""
        position = 0  # of the first row of a group
        for path, length in zip(self.files, self._lengths, strict=True):
            for number, begin in enumerate(range(0, length, GROUP)):
                size = min(GROUP, length - begin)
                end = min(size, self._end - position)
                for first in range(max(0, self._start - position), end, rows):
                    yield RowGroup(path=path, number=number, first=first, rows=min(rows, end - first))
                position += size

    def bounds(self, name: str) -> Iterator[tuple[RowGroup, int, int]]:
        """Where these rows are, with the least and the greatest value of a column of integers in the file there."""
        path, metadata = "", None
        for group in self.groups():
            if metadata is None or group.path != path:
                path = group.path
                metadata = pq.read_metadata(self.storage.absolute(path))
                column = metadata.schema.names.index(name)
            values: Any = metadata.row_group(group.number).column(column).statistics
            yield group, values.min, values.max

    def copy_files(self, storage: Storage, folder: str) -> None:
        """Copy the files that have these rows to a folder, where other machines can read them."""
        for path in dict.fromkeys(group.path for group in self.groups()):
            size = self.storage.size(path)
            storage.write_atomic(f"{folder}/{path}", self.storage.read(path, max_bytes=size))

    def tables(self, rows: int = IN_MEMORY) -> Iterator[pa.Table]:
        """Tables of `rows` rows each, but for the last."""
        rest = self.schema.empty_table()
        for group in self.groups():
            rest = pa.concat_tables([rest, group.read(self.storage, self.schema.names)])
            while rest.num_rows >= rows:
                yield rest.slice(0, rows)
                rest = rest.slice(rows)
        if rest.num_rows:
            yield rest

    def beside(self, answers: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.Table, pa.RecordBatch]]:
        """The rows, beside an answer that has one row for each of them, in their order."""
        tables, rest = self.tables(), self.schema.empty_table()
        for answer in answers:
            while rest.num_rows < len(answer):
                rest = pa.concat_tables([rest, next(tables)])
            yield rest.slice(0, len(answer)), answer
            rest = rest.slice(len(answer))


def _name(number: int) -> str:
    return f"{number:06}.parquet"
