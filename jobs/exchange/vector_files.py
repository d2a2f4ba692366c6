"""Finds the vectors of a source and the rows that belong to them, and reads both in blocks."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from index.collection.catalog.sql import parquet
from index.collection.catalog.workspace import Workspace
from index.collection.rows import EMBEDDING, TEXT
from index.storage.bucket_address import without_secrets
from jobs.errors import SourceError, UsageError
from jobs.exchange.check_vectors import Floats, Problems, matrix_of
from jobs.exchange.files import Array, RowFile, copy_ids, write_ids
from jobs.sources.files import SourceFile, files_in, source_files
from jobs.sources.list_columns import ListColumns, holds_bytes, picture_column
from jobs.sources.listing import Column, as_text

_ID_COLUMNS = ("image_id", "id", "image_path")
_CLIP_RETRIEVAL = re.compile(r"(.*/)?img_emb/img_emb_([0-9]+)\.npy")
_IDS = 1 << 16  # in memory at a time
_EXPECTED = "a .npy file, Parquet with a column of vectors, or a clip-retrieval folder with img_emb/ and metadata/"


@dataclass(frozen=True)
class VectorPart:
    """The `vectors` of an array, or those of the column of `rows` with this name; and the rows that belong to them."""

    rows: RowFile
    vectors: Array | str
    unused: Sequence[str] = ()
    """Parquet files beside the array, by name, of which none is certain to have its rows."""

    @property
    def file(self) -> SourceFile:
        return self.vectors.file if isinstance(self.vectors, Array) else self.rows.file

    def __len__(self) -> int:
        return self.vectors.rows if isinstance(self.vectors, Array) else self.rows.num_rows

    def first_column(self, names: Iterable[str]) -> str | None:
        """The first of these names that is a column."""
        return next((name for name in names if name in self.rows.schema.names), None)

    @property
    def id_column(self) -> str | None:
        return self.first_column(_ID_COLUMNS)

    def ids(self) -> Iterator[Column]:
        """The ids of all rows, in blocks. See `ids_of`."""
        start, name = 0, self.id_column
        for table in self.rows.blocks(_IDS, [name] if name else []):
            yield self.ids_of(table, range(start, start + len(table)))
            start += len(table)

    def ids_of(self, columns: pa.Table, numbers: range) -> Column:
        """The unchecked ids of the rows with these columns and numbers; null where there is none. Without a column of
        ids they are the numbers, in Parquet behind the name of the file.
        """
        if (name := self.id_column) is None:
            prefix = "" if isinstance(self.vectors, Array) else f"{self.file.name}#"
            return pa.array([f"{prefix}{number}" for number in numbers], TEXT)
        ids = as_text(columns[name]).cast(TEXT)
        blank = pc.equal(pc.utf8_trim_whitespace(ids), pa.scalar("", TEXT))
        return pc.if_else(blank, pa.scalar(None, TEXT), ids)  # type: ignore[no-any-return]

    def plain_columns(self) -> list[str]:
        """The ids, and columns other than bytes and vectors."""
        others = {*self.bytes_columns(), *self.other_vectors()}
        return [name for name in self.rows.schema.names if name != self.vectors and name not in others]

    def bytes_columns(self) -> list[str]:
        return [each.name for each in self.rows.schema if holds_bytes(each.type) and each.name != self.id_column]

    def other_vectors(self) -> list[str]:
        """Columns of lists of floats that all have as many values as the vectors; in an export, where other lists are
        the collection's columns, only that of its vectors if others are imported.
        """
        own = (self.vectors, self.id_column)
        lists = [each.name for each in self.rows.schema if _is_vector(each) and each.name not in own]
        if self.rows.model:
            return [name for name in lists if name == EMBEDDING]
        return self.rows.lists_of(self.dim, lists)

    @cached_property
    def picture_column(self) -> str | None:
        """The column of encoded pictures, as in Hugging Face datasets: only in the file of the vectors."""
        if isinstance(self.vectors, Array):
            return None
        with self.file.open() as source:
            return picture_column(pq.ParquetFile(source), ListColumns())

    @cached_property
    def dim(self) -> int:
        """The length of the vectors; if it varies, the most frequent one in the first block that has any."""
        if isinstance(self.vectors, Array):
            return self.vectors.dim
        kind = self.rows.schema.field(self.vectors).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for table in self.rows.blocks(4096, [self.vectors]):
            lengths: Any = pc.mode(pc.list_value_length(table[0]))
            if len(lengths) and (length := lengths[0]["mode"].as_py()):
                return int(length)
        raise SourceError(f"{self.file.uri} has no vectors in its column `{self.vectors}`")

    def blocks(self, rows: int) -> Iterator[tuple[pa.Table, Floats, Problems]]:
        """The plain columns, the vectors `(n, dim)`, and their problems."""
        columns = self.plain_columns()
        if isinstance(self.vectors, Array):
            tables = self.rows.blocks(rows, columns)
            yield from ((table, vectors, {}) for table, vectors in self.vectors.beside(tables))
            return
        for table in self.rows.blocks(rows, [*columns, self.vectors]):
            yield table.select(columns), *matrix_of(table[self.vectors].combine_chunks(), self.dim)


def find_vectors(
    location: str, scratch: Path, *, ids: str | None = None, embedding_column: str | None = None
) -> list[VectorPart]:
    """The parts of a source, in order. `scratch` is a folder for what they need until they have been read.

    SourceError names a file that is missing, superfluous or does not fit.
    """
    found = [file for file in source_files(location) if not file.left_out]
    files = {file.name: file for file in sorted(found, key=lambda file: _natural_key(file.name))}
    address = without_secrets(location)
    arrays = [file for file in files.values() if file.kind == "npy"]
    tables = [file for file in files.values() if file.kind == "parquet"]
    clip_retrieval = [match for name in files if (match := _CLIP_RETRIEVAL.fullmatch(name))]
    if ids is not None and (clip_retrieval or not arrays):
        kind = "is a clip-retrieval folder" if clip_retrieval else "has none"
        raise UsageError(f"--ids goes with a .npy file, but {address} {kind}: Parquet has ids in a column")
    if embedding_column is not None and arrays:
        raise UsageError(f"--embedding-column is for Parquet, but the vectors of {address} are in .npy files")
    if clip_retrieval:
        parts = [_clip_retrieval_part(match, files) for match in clip_retrieval]
    elif arrays:
        unused: Sequence[str] = ()
        if ids is None and not arrays[0].path:  # the source is this file
            tables, unused = _rows_beside(arrays[0])
        if len(arrays) > 1 or (len(tables) > 1 and ids is None):
            names = ", ".join(file.name for file in [*arrays, *tables][:8])
            raise SourceError(
                f"{address} has several files ({names}): name the .npy file itself, with --ids for its rows"
            )
        array = Array.open(arrays[0])
        parts = [VectorPart(_rows_of(array, tables, ids, scratch / "rows.parquet"), array, unused=unused)]
    elif tables:
        parts = [VectorPart(rows, _embedding_column(rows, embedding_column)) for rows in map(RowFile, tables)]
    else:
        names = ", ".join(files) or "nothing"
        raise SourceError(f"{address} has no vectors: expected {_EXPECTED}, found {names}"[:500])
    for part in parts:
        if len(part) != (rows := part.rows.num_rows):
            raise SourceError(
                f"{part.file.uri} has {len(part)} vectors, but {part.rows.file.uri} has {rows} rows: expected a row "
                f"for each vector; row {min(len(part), rows)} is the first without a match"
            )
    return [part for part in parts if len(part)]


_UNUSABLE: Final = """
SELECT file_row_number AS row, id, first FROM {ids} LEFT JOIN repeated USING (id)
WHERE id IS NULL OR row <> first ORDER BY row
"""


@dataclass(frozen=True)
class RowIds:
    """The ids of all rows of the parts, as a Parquet file; null for a row without one."""

    parts: Sequence[VectorPart]
    file: Path

    @classmethod
    def write(cls, parts: Sequence[VectorPart], file: Path) -> RowIds:
        write_ids(file, (ids for part in parts for ids in part.ids()))
        return cls(parts, file)

    def problems(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """The number and the problem of each row that has no id, or that of an earlier row, in order."""
        workspace = Workspace(str(self.file.parent))
        ids = parquet([self.file], "file_row_number")
        columns, rows = "id, min(file_row_number) AS first", sum(map(len, self.parts))
        workspace.group("repeated", columns, f"FROM {ids} WHERE id IS NOT NULL", "id", having="count(*) > 1", rows=rows)
        for row, id_, first in map(dict.values, workspace.rows(_UNUSABLE.format(ids=ids))):
            if id_ is None:
                yield row, ("no_id", "expected an id, got none")
            else:
                message = f"expected a unique id, but {id_!r} is already that of {self.address(first)}"
                yield row, ("duplicate_id", message)

    def with_addresses(self, ids: Column, rows: Sequence[int], first: int) -> Column:
        """A block of ids, of which `first` is the number, with the addresses of these `rows` of it."""
        mask = np.zeros(len(ids), bool)
        mask[list(rows)] = True
        addresses = pa.array([self.address(first + row) for row in sorted(rows)], TEXT)
        return pc.replace_with_mask(ids, pa.array(mask), addresses)  # type: ignore[no-any-return]

    def address(self, row: int) -> str:
        """The file's name and the number in it, which identify a row."""
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return f"{self.parts[number].file.name}#row={row - self._starts[number]}"

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *map(len, self.parts)])


def _clip_retrieval_part(match: re.Match[str], files: dict[str, SourceFile]) -> VectorPart:
    vectors, rows = files[match[0]], f"{match[1] or ''}metadata/metadata_{match[2]}.parquet"
    if rows not in files:
        raise SourceError(f"{vectors.uri} has no {rows} beside it: expected the rows of its vectors there")
    return VectorPart(RowFile(files[rows]), Array.open(vectors))


def _rows_beside(array: SourceFile) -> tuple[list[SourceFile], list[str]]:
    """The Parquet file with the rows of an array that was given by its own name, if that is certain; else the names of
    those beside it.
    """
    folder, uri = array.storage.parent, array.uri.rpartition("/")[0]
    if match := _CLIP_RETRIEVAL.fullmatch(array.uri):
        name = f"metadata_{match[2]}.parquet"
        metadata = files_in(folder.parent.subfolder("metadata"), f"{match[1]}metadata")
        return [file for file in metadata if file.name == name], []
    beside = list(files_in(folder, uri))
    tables = [file for file in beside if file.kind == "parquet"]
    arrays = [file for file in beside if file.kind == "npy"]
    if len(tables) == len(arrays) == 1 and RowFile(tables[0]).num_rows == Array.open(array).rows:
        return tables, []
    return [], [file.name for file in tables]


def _rows_of(array: Array, tables: list[SourceFile], ids: str | None, copy: Path) -> RowFile:
    """The rows of an array: its `ids`, else those of a table, else numbers. `copy` is for what is not in Parquet."""
    if ids is not None:
        files = [file for file in source_files(ids) if not file.left_out]
        if len(files) != 1 or files[0].kind not in ("parquet", "npy", "txt"):
            raise SourceError(f"--ids is {without_secrets(ids)}: expected a .parquet, .npy or .txt file, one id a line")
        if files[0].kind == "parquet":
            return RowFile(files[0])
        copy_ids(files[0], copy)
        return RowFile(files[0], copy)
    if tables:
        return RowFile(tables[0])
    starts = range(0, array.rows, _IDS)
    write_ids(copy, (pa.array(range(start, min(start + _IDS, array.rows))) for start in starts))
    return RowFile(array.file, copy)


def _embedding_column(rows: RowFile, name: str | None) -> str:
    schema, uri = rows.schema, rows.file.uri
    vectors = [field.name for field in schema if _is_vector(field)]
    name = name or (EMBEDDING if EMBEDDING in schema.names else None)
    if name is None and len(vectors) == 1:
        return vectors[0]
    if name in vectors:
        return str(name)
    if name in schema.names:
        kind = schema.field(str(name)).type
        raise SourceError(f"{uri}: expected vectors in column `{name}`, lists of floats, got {kind}")
    if name is None and vectors:
        raise SourceError(
            f"{uri} has several columns of vectors ({', '.join(vectors)}): name one with --embedding-column"
        )
    raise SourceError(
        f"{uri} has no column {f'`{name}`' if name else 'of vectors (lists of floats)'}; its columns are "
        f"{', '.join(schema.names) or 'none'}. Name the one with vectors with --embedding-column"
    )


def _is_vector(field: pa.Field[Any]) -> bool:
    kind: Any = field.type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in lists) and pa.types.is_floating(kind.value_type)


def _natural_key(name: str) -> list[tuple[int, str]]:
    """A sort key: part 10 comes after part 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
