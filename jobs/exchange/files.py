"""The files of an import: headers of arrays, and the rows that belong to vectors."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.collection.records.model_record import ModelRecord
from index.collection.rows import TEXT, text_array
from jobs.errors import SourceError
from jobs.exchange.check_vectors import Floats
from jobs.exchange.export import MODEL_KEY
from jobs.sources.files import SourceFile
from jobs.sources.list_tables import check_names
from jobs.sources.listing import Column

_IDS = 1 << 16  # in memory at a time


@dataclass(frozen=True)
class Array:
    """A .npy file of `(rows, dim)` floats, which start at byte `start`."""

    file: SourceFile
    rows: int
    dim: int
    dtype: np.dtype[Any]
    start: int

    @classmethod
    def open(cls, file: SourceFile) -> Array:
        """SourceError for a file with any other content."""
        with source_errors(file), file.open() as source:
            shape, fortran_order, dtype = _array_header(source)
            start, size = source.tell(), source.size()
        if len(shape) != 2 or shape[0] < 0 or shape[1] < 1:
            raise SourceError(f"{file.uri} holds an array of shape {shape}: expected (rows, dimensions)")
        if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
            raise SourceError(f"{file.uri} holds values of type {dtype}: expected float16, float32 or float64")
        if fortran_order and min(shape) > 1:
            raise SourceError(f"{file.uri} is in Fortran order: save it in C order, with np.ascontiguousarray")
        complete = (size - start) // (shape[1] * dtype.itemsize)
        if complete < shape[0]:
            raise SourceError(f"{file.uri} ends in row {complete}, but its header says {shape[0]} rows: copy it again")
        return cls(file, shape[0], shape[1], dtype, start)

    def beside(self, tables: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, Floats]]:
        """The next rows of each table, which together have all, and their vectors, `(n, dim)`."""
        with source_errors(self.file), self.file.open() as source:
            source.seek(self.start)
            for table in tables:
                values = source.read(table.num_rows * self.dim * self.dtype.itemsize)
                yield table, np.frombuffer(values, self.dtype).reshape(table.num_rows, self.dim)


def _array_header(source: pa.NativeFile) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(source)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(source)


@dataclass(frozen=True)
class RowFile:
    """The columns that belong to vectors: those of a Parquet file, or of another file's `copy` as Parquet."""

    file: SourceFile
    copy: Path | None = None

    @contextmanager
    def _open(self) -> Iterator[pa.NativeFile]:
        with (
            source_errors(self.file),
            self.file.open() if self.copy is None else pa.OSFile(str(self.copy), "rb") as source,
        ):
            yield source

    @cached_property
    def schema(self) -> pa.Schema:
        with self._open() as source:
            schema = pq.read_schema(source)
        check_names(self.file, schema.names)
        return schema

    @cached_property
    def num_rows(self) -> int:
        with self._open() as source:
            return pq.read_metadata(source).num_rows

    def lists_of(self, length: int, names: Sequence[str]) -> list[str]:
        """Those of these columns whose lists all have this length, without nulls and empty ones. Only the numbers of
        values in the file's footer are compared: the columns may have gigabytes.
        """
        if not names:
            return []
        with self._open() as source:
            footer = pq.read_metadata(source)
        values, missing = Counter[str](), Counter[str]()
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                name = column.path_in_schema.rsplit(".", 2)[0]  # of `box.list.element`
                values[name] += column.num_values
                missing[name] += (column.statistics.null_count or 0) if column.statistics else 0
        return [name for name in names if values[name] - missing[name] == (footer.num_rows - missing[name]) * length]

    @property
    def model(self) -> ModelRecord | None:
        """The model, if the file is an export of Likeness."""
        if (record := (self.schema.metadata or {}).get(MODEL_KEY)) is None:
            return None
        try:
            return ModelRecord.model_validate_json(record)
        except ValueError as error:
            raise SourceError(f"cannot read the model that {self.file.uri} names: {error}") from error

    def blocks(self, rows: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        with self._open() as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(rows, columns=list(columns)):
                # For Parquet, "a" is all columns nested in it, and "a.b" one of them: select by name again.
                yield pa.Table.from_batches([batch]).select(list(columns))


def copy_ids(file: SourceFile, copy: Path) -> None:
    """Copy the ids of a .npy file, or the lines of a .txt file, to a Parquet file, as its column `id`."""
    with source_errors(file), file.open() as source:
        write_ids(copy, map(text_array, _ids_of_array(source) if file.kind == "npy" else _lines(source)))


def _ids_of_array(source: pa.NativeFile) -> Iterator[list[str]]:
    shape, _, dtype = _array_header(source)
    if len(shape) != 1 or dtype.kind not in "iuSU":
        raise ValueError(f"expected one column of numbers or texts, got {dtype} of shape {shape}")
    for start in range(0, shape[0], _IDS):
        count = min(_IDS, shape[0] - start)
        yield np.frombuffer(source.read(count * dtype.itemsize), dtype, count).astype(str).tolist()


def _lines(source: pa.NativeFile) -> Iterator[list[str]]:
    lines = io.TextIOWrapper(source, "utf-8-sig", newline=None)  # type: ignore[type-var]  # it has all that is used
    while part := [line.removesuffix("\n") for line in islice(lines, _IDS)]:
        yield part


def write_ids(path: Path, ids: Iterable[Column]) -> None:
    """Write ids to a Parquet file, as its column `id`."""
    schema = pa.schema([("id", TEXT)])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for part in ids:
            writer.write_table(pa.table([part.cast(TEXT)], schema=schema))


@contextmanager
def source_errors(file: SourceFile) -> Iterator[None]:
    """Raise errors of reading the file as SourceError."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, ValueError, EOFError, tokenize.TokenError) as error:
        raise SourceError(f"cannot read {file.uri} as {file.kind}: {error}") from error
