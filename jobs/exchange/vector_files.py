"""The sources that vectors are imported from: what belongs together in them, and their blocks of rows."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.rows import EMBEDDING, TEXT
from index.storage.bucket_address import without_secrets
from jobs.errors import SourceError, UsageError
from jobs.exchange.check_vectors import Floats, Problems, matrix_of
from jobs.exchange.files import NpyFile, RowFile, read_ids
from jobs.sources.files import SourceFile, extension, source_files
from jobs.sources.listing import Column, as_text
from jobs.sources.tables import holds_images

ID_COLUMNS = ("image_id", "id", "image_path")
_CLIP_RETRIEVAL = re.compile(r"(.*/)?img_emb/img_emb_([0-9]+)\.npy")
_EXPECTED = "a .npy file, Parquet with a column of vectors, or a folder of clip-retrieval with img_emb/ and metadata/"


@dataclass(frozen=True)
class _Part:
    """Vectors, and the `rows` that go with them."""

    rows: RowFile

    def __len__(self) -> int:
        return self.rows.rows

    def column_of(self, names: Sequence[str]) -> str | None:
        """The first of these that it has."""
        return next((name for name in names if name in self.rows.schema.names), None)

    def ids(self) -> Column:
        """As they are written, null where there is none. A file without a column of ids has the rows' numbers."""
        name = self.column_of(ID_COLUMNS)
        if name is None:
            return pa.array([f"{self._prefix}{number}" for number in range(len(self))], TEXT)
        tables = [pa.table({"id": as_text(table[name]).cast(TEXT)}) for table in self.rows.blocks(1 << 16, [name])]
        return pa.concat_tables(tables)["id"]

    @property
    def _prefix(self) -> str:
        """Of a row's number, where that is its id."""
        return f"{self.rows.file.name}#"

    def _plain(self) -> list[str]:
        """Columns other than pictures and vectors."""
        return [field.name for field in self.rows.schema if not holds_images(field.type) and not _is_vector(field)]


@dataclass(frozen=True)
class NpyPart(_Part):
    """Vectors in a .npy file."""

    npy: NpyFile

    @property
    def file(self) -> SourceFile:
        """The one with the vectors."""
        return self.npy.file

    @property
    def pictures(self) -> str | None:
        """No column of pictures is shown: the rows are those of another file's vectors."""
        return None

    @property
    def _prefix(self) -> str:
        return ""

    def __len__(self) -> int:
        return self.npy.header.rows

    def dim(self) -> int:
        return self.npy.header.dim

    def blocks(self, rows: int, dim: int) -> Iterator[tuple[pa.Table, Floats, Problems]]:
        """The other plain columns, vectors of `(n, dim)`, and what is wrong with them."""
        plain = self._plain()
        with self.npy.opened() as read:
            for table in self.rows.blocks(rows, plain) if plain else ():
                yield table, read(table.num_rows), {}
            for start in () if plain else range(0, len(self), rows):
                yield pa.table({}), read(min(rows, len(self) - start)), {}


@dataclass(frozen=True)
class ColumnPart(_Part):
    """Vectors in the column `embedding` of Parquet."""

    embedding: str

    @property
    def file(self) -> SourceFile:
        return self.rows.file

    @property
    def pictures(self) -> str | None:
        """A column with the pictures themselves, as in datasets of Hugging Face."""
        return next((field.name for field in self.rows.schema if holds_images(field.type)), None)

    def dim(self) -> int:
        """Where vectors may differ, that of most in the first block that has any."""
        kind = self.rows.schema.field(self.embedding).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for table in self.rows.blocks(4096, [self.embedding]):
            lengths: Any = pc.mode(pc.list_value_length(table[self.embedding]))
            if len(lengths) and (most := lengths[0]["mode"].as_py()):
                return int(most)
        raise SourceError(f"{self.file.uri} has no vectors in its column `{self.embedding}`")

    def blocks(self, rows: int, dim: int) -> Iterator[tuple[pa.Table, Floats, Problems]]:
        """As those of NpyPart."""
        plain = self._plain()
        for table in self.rows.blocks(rows, [*plain, self.embedding]):
            yield table.select(plain), *matrix_of(table[self.embedding].combine_chunks(), dim)


VectorPart: TypeAlias = NpyPart | ColumnPart


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
        parts: list[VectorPart] = [
            _clip_retrieval_part(name, files) for name in files if _CLIP_RETRIEVAL.fullmatch(name)
        ]
    elif arrays:
        parts = [_npy_part(shown, arrays, tables, ids)]
    elif tables:
        rows = [RowFile(table) for table in tables]
        parts = [ColumnPart(each, _embedding_column(each, embedding_column)) for each in rows]
    else:
        raise SourceError(f"{shown} has no vectors: expected {_EXPECTED}, found {', '.join(files) or 'nothing'}"[:500])
    for part in parts:
        if part.rows.schema.names and len(part) != part.rows.rows:
            raise SourceError(
                f"{part.file.uri} has {len(part)} vectors, {part.rows.file.uri} {part.rows.rows} rows: expected a row "
                f"for each, and row {min(len(part), part.rows.rows)} is the first without the other"
            )
    return [part for part in parts if len(part)]


def named_rows(parts: Sequence[VectorPart]) -> tuple[Column, Problems]:
    """A name for each row, and the rows that are refused for theirs: without an id, or with that of an earlier row."""
    raw = pa.concat_tables([pa.table({"id": part.ids()}) for part in parts])["id"]
    bounds = np.cumsum([0, *map(len, parts)])
    ends = list(pairwise(bounds.tolist()))

    def place(row: int) -> str:
        number = int(np.searchsorted(bounds, row, side="right")) - 1
        return f"{parts[number].file.name}#row={row - ends[number][0]}"

    blank = pc.or_kleene(pc.is_null(raw), pc.equal(pc.utf8_trim_whitespace(raw), pa.scalar("", TEXT)))
    first = pc.index_in(raw, value_set=raw).to_numpy()
    again = (first != np.arange(len(raw))) & ~blank.to_numpy()
    problems: Problems = dict.fromkeys(np.flatnonzero(blank.to_numpy()).tolist(), ("no_id", "expected an id, got none"))
    for row in np.flatnonzero(again).tolist():
        message = f"its id {raw[row].as_py()!r} is that of {place(int(first[row]))}, which comes first"
        problems[row] = ("duplicate_id", message)
    if not problems:
        return raw, problems
    rows = sorted(problems)
    mask = np.zeros(len(raw), bool)
    mask[rows] = True
    return pc.replace_with_mask(raw.combine_chunks(), pa.array(mask), pa.array(map(place, rows), TEXT)), problems


def _clip_retrieval_part(name: str, files: dict[str, SourceFile]) -> NpyPart:
    folder, number = re.sub(r"img_emb/[^/]*$", "", name), name.rpartition("_")[2].removesuffix(".npy")
    partner = f"{folder}metadata/metadata_{number}.parquet"
    if partner not in files:
        raise SourceError(f"{files[name].uri} has no {partner} beside it: expected the rows of its vectors there")
    return NpyPart(RowFile(files[partner]), NpyFile(files[name]))


def _npy_part(shown: str, arrays: list[SourceFile], tables: list[SourceFile], ids: str | None) -> NpyPart:
    if len(arrays) > 1 or (len(tables) > 1 and ids is None):
        names = ", ".join(file.name for file in [*arrays, *tables][:8])
        raise SourceError(f"{shown} has several files ({names}): name the .npy file itself, with --ids for its rows")
    if ids is None:
        rows = RowFile(tables[0]) if tables else RowFile(arrays[0], pa.table({}))
    else:
        found = source_files(ids, list)
        if len(found) != 1 or extension(found[0].name) not in ("parquet", "npy", "txt"):
            raise SourceError(f"--ids is {without_secrets(ids)}: expected a .parquet, .npy or .txt file, an id a line")
        rows = RowFile(found[0], None if extension(found[0].name) == "parquet" else read_ids(found[0]))
    return NpyPart(rows, NpyFile(arrays[0]))


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
