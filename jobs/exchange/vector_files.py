"""The files that vectors are imported from: what belongs together in them, and their blocks of rows."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from index.collection.records import ModelRecord
from index.collection.rows import EMBEDDING, TEXT
from index.storage.bucket import without_secrets
from jobs.errors import SourceError, UsageError
from jobs.exchange.export import MODEL_KEY
from jobs.file_extensions import extension
from jobs.sources.files import SourceFile, source_files
from jobs.sources.listing import Column, as_text
from jobs.sources.tables import check_names, holds_images

Floats = npt.NDArray[np.floating[Any]]

ID_COLUMNS = ("image_id", "id", "image_path")
_CLIP_RETRIEVAL = re.compile(r"(.*/)?img_emb/img_emb_([0-9]+)\.npy")
_EXPECTED = "a .npy file, Parquet with a column of vectors, or a folder of clip-retrieval with img_emb/ and metadata/"


@dataclass(frozen=True)
class NpyFile:
    """A `(n, dim)` array of floats in a file, read row by row. SourceError says what else is in it."""

    file: SourceFile

    @cached_property
    def header(self) -> tuple[int, int, np.dtype[Any], int]:
        """Rows, dim, type, and where the values begin."""
        with _reading(self.file), self.file.open() as source:
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
        return shape[0], shape[1], kind, start

    @contextmanager
    def opened(self) -> Iterator[Callable[[int], Floats]]:
        """A function that returns the next so many rows."""
        _, dim, kind, start = self.header
        with _reading(self.file), self.file.open() as source:
            source.seek(start)
            yield lambda rows: np.frombuffer(source.read(rows * dim * kind.itemsize), kind).reshape(rows, dim)


@dataclass(frozen=True)
class RowFile:
    """The columns that go with vectors: a Parquet file, or a file of ids, which are the column `id`."""

    file: SourceFile

    @cached_property
    def _ids(self) -> pa.Table | None:
        kind = extension(self.file.name)
        if kind == "parquet":
            return None
        with _reading(self.file), self.file.open() as source:
            if kind == "npy":
                ids = np.load(source, allow_pickle=False)
                if ids.ndim != 1 or ids.dtype.kind not in "iuSU":
                    raise ValueError(f"expected one column of numbers or texts, got {ids.dtype} of shape {ids.shape}")
                return pa.table({"id": ids.astype(str).tolist()})
            lines = io.StringIO(source.read().decode("utf-8-sig"), newline=None)
            return pa.table({"id": pa.array([line.removesuffix("\n") for line in lines], TEXT)})

    @cached_property
    def schema(self) -> pa.Schema:
        if self._ids is not None:
            return self._ids.schema
        with _reading(self.file), self.file.open() as source:
            schema = pq.read_schema(source)
        check_names(self.file, schema.names)
        return schema

    @cached_property
    def rows(self) -> int:
        if self._ids is not None:
            return self._ids.num_rows
        with _reading(self.file), self.file.open() as source:
            return pq.read_metadata(source).num_rows

    @property
    def model(self) -> ModelRecord | None:
        """The model that an export of ours names."""
        if (record := (self.schema.metadata or {}).get(MODEL_KEY)) is None:
            return None
        try:
            return ModelRecord.model_validate_json(record)
        except ValueError as error:
            raise SourceError(f"{self.file.uri} names its model in a way that cannot be read: {error}") from error

    def blocks(self, rows: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        if self._ids is not None:
            for start in range(0, self.rows, rows):
                yield self._ids.slice(start, rows).select(list(columns))
            return
        with _reading(self.file), self.file.open() as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(rows, columns=list(columns)):
                # Parquet takes "a" for every column below it, "a.b" for one: select by name afterwards.
                yield pa.Table.from_batches([batch]).select(list(columns))


@dataclass(frozen=True, kw_only=True)
class VectorPart:
    """Vectors in a .npy file with the `rows` beside it, if any; or in the column `embedding` of `rows`."""

    npy: NpyFile | None = None
    rows: RowFile | None = None
    embedding: str | None = None

    @property
    def file(self) -> SourceFile:
        """The one with the vectors."""
        found = self.npy or self.rows
        assert found is not None
        return found.file

    def __len__(self) -> int:
        return self.npy.header[0] if self.npy else self.rows.rows if self.rows else 0

    def dim(self) -> int:
        """Of its vectors; where they may differ, that of most in the first block that has any."""
        if self.npy:
            return self.npy.header[1]
        assert self.rows is not None
        assert self.embedding is not None
        kind = self.rows.schema.field(self.embedding).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for table in self.rows.blocks(4096, [self.embedding]):
            lengths: Any = pc.mode(pc.list_value_length(table[self.embedding]))
            if len(lengths) and (most := lengths[0]["mode"].as_py()):
                return int(most)
        raise SourceError(f"{self.file.uri} has no vectors in its column `{self.embedding}`")

    def column_of(self, names: Sequence[str]) -> str | None:
        """The first of these that it has."""
        return next((name for name in names if self.rows and name in self.rows.schema.names), None)

    def ids(self) -> Column:
        """As they are written, null where there is none. A file without a column of ids has the rows' numbers."""
        name = self.column_of(ID_COLUMNS)
        if name is None or self.rows is None:
            prefix = "" if self.npy else f"{self.file.name}#"
            return pa.array([f"{prefix}{number}" for number in range(len(self))], TEXT)
        tables = [pa.table({"id": as_text(table[name]).cast(TEXT)}) for table in self.rows.blocks(1 << 16, [name])]
        return pa.concat_tables(tables)["id"]

    def blocks(self, rows: int) -> Iterator[tuple[pa.Table, Floats | pa.Array[Any]]]:
        """Columns other than pictures and vectors, if there are any, and the vectors: an array, or lists."""
        fields = self.rows.schema if self.rows else pa.schema([])
        plain = [field.name for field in fields if not holds_images(field.type) and not _is_vector(field)]
        if self.npy is None:
            assert self.rows is not None
            assert self.embedding is not None
            for table in self.rows.blocks(rows, [*plain, self.embedding]):
                yield table.select(plain), table[self.embedding].combine_chunks()
            return
        with self.npy.opened() as read:
            if self.rows and plain:
                for table in self.rows.blocks(rows, plain):
                    yield table, read(table.num_rows)
            else:
                for start in range(0, len(self), rows):
                    yield pa.table({}), read(min(rows, len(self) - start))


def find_vectors(location: str, *, ids: str | None = None, embedding_column: str | None = None) -> list[VectorPart]:
    """The parts of a source, in order. SourceError names the file that is missing, is one too many, or does not fit."""
    files = {file.name: file for file in sorted(source_files(location, list), key=lambda file: _numbered(file.name))}
    shown = without_secrets(location)
    arrays = [file for name, file in files.items() if extension(name) == "npy"]
    tables = [file for name, file in files.items() if extension(name) == "parquet"]
    if ids is not None and not arrays:
        raise UsageError(f"--ids goes with a .npy file, and {shown} has none: Parquet has ids in a column")
    if embedding_column is not None and arrays:
        raise UsageError(f"--embedding-column names a column of Parquet, and the vectors of {shown} are in .npy files")
    if any(_CLIP_RETRIEVAL.fullmatch(name) for name in files):
        parts = [_clip_retrieval_part(name, files) for name in files if _CLIP_RETRIEVAL.fullmatch(name)]
    elif arrays:
        parts = [_npy_part(shown, arrays, tables, ids)]
    elif tables:
        rows = [RowFile(table) for table in tables]
        parts = [VectorPart(rows=each, embedding=_embedding_column(each, embedding_column)) for each in rows]
    else:
        raise SourceError(f"{shown} has no vectors: expected {_EXPECTED}, found {', '.join(files) or 'nothing'}"[:500])
    for part in parts:
        if part.npy and part.rows and len(part) != part.rows.rows:
            raise SourceError(
                f"{part.file.uri} has {len(part)} vectors, {part.rows.file.uri} {part.rows.rows} rows: expected a row "
                f"for each, and row {min(len(part), part.rows.rows)} is the first without the other"
            )
    return [part for part in parts if len(part)]


def _clip_retrieval_part(name: str, files: dict[str, SourceFile]) -> VectorPart:
    folder, number = re.sub(r"img_emb/[^/]*$", "", name), name.rpartition("_")[2].removesuffix(".npy")
    partner = f"{folder}metadata/metadata_{number}.parquet"
    if partner not in files:
        raise SourceError(f"{files[name].uri} has no {partner} beside it: expected the rows of its vectors there")
    return VectorPart(npy=NpyFile(files[name]), rows=RowFile(files[partner]))


def _npy_part(shown: str, arrays: list[SourceFile], tables: list[SourceFile], ids: str | None) -> VectorPart:
    if len(arrays) > 1 or (len(tables) > 1 and ids is None):
        names = ", ".join(file.name for file in [*arrays, *tables][:8])
        raise SourceError(f"{shown} has several files ({names}): name the .npy file itself, with --ids for its rows")
    if ids is not None:
        found = source_files(ids, list)
        if len(found) != 1 or extension(found[0].name) not in ("parquet", "npy", "txt"):
            raise SourceError(f"--ids is {without_secrets(ids)}: expected a .parquet, .npy or .txt file, an id a line")
        tables = found
    return VectorPart(npy=NpyFile(arrays[0]), rows=RowFile(tables[0]) if tables else None)


def _embedding_column(rows: RowFile, wanted: str | None) -> str:
    schema, uri = rows.schema, rows.file.uri
    vectors = [field.name for field in schema if _is_vector(field)]
    wanted = wanted or (EMBEDDING if EMBEDDING in schema.names else None)
    if wanted is None and len(vectors) == 1:
        return vectors[0]
    if wanted in vectors:
        return str(wanted)
    if wanted in schema.names:
        kind = schema.field(str(wanted)).type
        raise SourceError(f"{uri}: expected vectors in column `{wanted}`, lists of floats, got {kind}")
    if wanted is None and vectors:
        raise SourceError(
            f"{uri} has several columns of vectors ({', '.join(vectors)}): name one with --embedding-column"
        )
    raise SourceError(
        f"{uri} has no column {f'`{wanted}`' if wanted else 'of vectors (lists of floats)'}; its columns are "
        f"{', '.join(schema.names) or 'none'}. Say which has the vectors with --embedding-column"
    )


def _is_vector(field: pa.Field[Any]) -> bool:
    kind: Any = field.type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in lists) and pa.types.is_floating(kind.value_type)


def _numbered(name: str) -> list[tuple[int, str]]:
    """A key by which part 10 comes after part 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


@contextmanager
def _reading(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, ValueError, EOFError, tokenize.TokenError) as error:
        raise SourceError(f"cannot read {file.uri} as {extension(file.name)}: {error}") from error
