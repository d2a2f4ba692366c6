"""Single files of an import: an array of vectors, and the rows that go with vectors."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.collection.records import ModelRecord
from index.collection.rows import TEXT
from jobs.errors import SourceError
from jobs.exchange.check_vectors import Floats
from jobs.exchange.export import MODEL_KEY
from jobs.sources.files import SourceFile, extension
from jobs.sources.tables import check_names


class Header(NamedTuple):
    """Of a .npy file; `start` is where its values begin, in bytes."""

    rows: int
    dim: int
    kind: np.dtype[Any]
    start: int


@dataclass(frozen=True)
class NpyFile:
    """A `(n, dim)` array of floats in a file, read row by row. SourceError says what else is in it."""

    file: SourceFile

    @cached_property
    def header(self) -> Header:
        with reading(self.file), self.file.open() as source:
            version = np.lib.format.read_magic(source)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_column, kind = read(source)
            start, size = source.tell(), source.size()
        uri = self.file.uri
        if len(shape) != 2 or shape[0] < 0 or shape[1] < 1:
            raise SourceError(f"{uri} holds an array of shape {shape}: expected (rows, dimensions)")
        if kind.kind != "f" or kind.itemsize not in (2, 4, 8):
            raise SourceError(f"{uri} holds values of type {kind}: expected float16, float32 or float64")
        if by_column and min(shape) > 1:
            raise SourceError(f"{uri} is in Fortran order: save it by rows, with np.ascontiguousarray")
        whole = (size - start) // (shape[1] * kind.itemsize)
        if whole < shape[0]:
            raise SourceError(f"{uri} ends within row {whole}, its header says {shape[0]} rows: copy it again")
        return Header(shape[0], shape[1], kind, start)

    @contextmanager
    def opened(self) -> Iterator[Callable[[int], Floats]]:
        """A function that returns the next so many rows."""
        _, dim, kind, start = self.header
        with reading(self.file), self.file.open() as source:
            source.seek(start)
            yield lambda rows: np.frombuffer(source.read(rows * dim * kind.itemsize), kind).reshape(rows, dim)


@dataclass(frozen=True)
class RowFile:
    """The columns that go with vectors: those of a Parquet file, or a `table` that was read already."""

    file: SourceFile
    table: pa.Table | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        if self.table is not None:
            return self.table.schema
        with reading(self.file), self.file.open() as source:
            schema = pq.read_schema(source)
        check_names(self.file, schema.names)
        return schema

    @cached_property
    def rows(self) -> int:
        if self.table is not None:
            return self.table.num_rows
        with reading(self.file), self.file.open() as source:
            return pq.read_metadata(source).num_rows

    @property
    def model(self) -> ModelRecord | None:
        """The model that an export of ours names."""
        if (record := (self.schema.metadata or {}).get(MODEL_KEY)) is None:
            return None
        try:
            return ModelRecord.model_validate_json(record)
        except ValueError as error:
            raise SourceError(f"the model record of {self.file.uri} is not valid: {error}") from error

    def blocks(self, rows: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        if self.table is not None:
            for start in range(0, self.rows, rows):
                yield self.table.slice(start, rows).select(list(columns))
            return
        with reading(self.file), self.file.open() as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(rows, columns=list(columns)):
                # Parquet takes "a" for every column below it, "a.b" for one: select by name afterwards.
                yield pa.Table.from_batches([batch]).select(list(columns))


def read_ids(file: SourceFile) -> pa.Table:
    """The ids of a .npy or .txt file, an id a line, as the column `id`."""
    with reading(file), file.open() as source:
        if extension(file.name) == "npy":
            ids = np.load(source, allow_pickle=False)
            if ids.ndim != 1 or ids.dtype.kind not in "iuSU":
                raise ValueError(f"expected one column of numbers or texts, got {ids.dtype} of shape {ids.shape}")
            return pa.table({"id": ids.astype(str).tolist()})
        lines = io.StringIO(source.read().decode("utf-8-sig"), newline=None)
        return pa.table({"id": pa.array([line.removesuffix("\n") for line in lines], TEXT)})


@contextmanager
def reading(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, ValueError, EOFError, tokenize.TokenError) as error:
        raise SourceError(f"cannot read {file.uri} as {extension(file.name)}: {error}") from error
