"""Pictures in cells of Parquet files."""

from dataclasses import dataclass
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedder.errors import FetchError
from embedder.fetch.files import Files
from embedder.fetch.uris import Cell, shown

_MAX_GROUP_BYTES = 2 << 30
_KEPT = 2


@dataclass(frozen=True)
class _Loaded:
    """One column of one row group, and the rows of the file that it holds."""

    file: tuple[str, int]
    column: str
    rows: range
    values: "pa.ChunkedArray[Any]"


class Cells:
    """Reads cells. Thread-safe; keeps the last row groups, since rows are usually read in order."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._loaded: tuple[_Loaded, ...] = ()
        self._lock = Lock()

    def read(self, uri: str, cell: Cell) -> bytes:
        """The bytes in a cell: binary, or a struct with a field `bytes` as in Hugging Face's datasets."""
        with self._files.open(uri) as file:
            # The key has the file's size, so that a rewritten file is not answered from memory.
            key = (uri, int(file.size()))
            found = self._find(key, cell)
            if found is None:
                # Threads that want the same row group wait for one of them to read it.
                with self._lock:
                    found = self._find(key, cell)
                    if found is None:
                        found = _load(file, key, cell)
                        self._loaded = (found, *self._loaded[: _KEPT - 1])
        return _bytes(uri, cell, found.values[cell.row - found.rows.start].as_py())

    def _find(self, key: tuple[str, int], cell: Cell) -> _Loaded | None:
        wanted = (key, cell.column)
        kept = (loaded for loaded in self._loaded if (loaded.file, loaded.column) == wanted)
        return next((loaded for loaded in kept if cell.row in loaded.rows), None)


def _load(file: pa.NativeFile, key: tuple[str, int], cell: Cell) -> _Loaded:
    uri = key[0]
    try:
        table = pq.ParquetFile(file)
        if cell.column not in table.schema_arrow.names:
            names = ", ".join(table.schema_arrow.names)
            raise FetchError("no_such_column", f"{shown(uri)}: has no column {cell.column!r}, but {names}")
        first = 0
        for group in range(table.metadata.num_row_groups):
            rows = range(first, first + table.metadata.row_group(group).num_rows)
            if cell.row in rows:
                size = _column_bytes(table.metadata.row_group(group), cell.column)
                if size > _MAX_GROUP_BYTES:
                    message = f"a row group of {size:,} bytes, at most {_MAX_GROUP_BYTES:,} are read"
                    raise FetchError(
                        "too_many_bytes", f"{shown(uri)}: {message}; write the file with smaller row groups"
                    )
                values = table.read_row_group(group, columns=[cell.column], use_threads=False).column(0)
                return _Loaded(key, cell.column, rows, values)
            first = rows.stop
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FetchError("not_parquet", f"{shown(uri)}: cannot be read as Parquet ({error})") from error
    raise FetchError("no_such_row", f"{shown(uri)}: has no row {cell.row}; it has {first:,}, counted from 0")


def _column_bytes(group: Any, column: str) -> int:
    leaves = [group.column(i) for i in range(group.num_columns)]
    return sum(leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema.split(".")[0] == column)


def _bytes(uri: str, cell: Cell, value: object) -> bytes:
    if isinstance(value, dict):
        value = value.get("bytes")
    if isinstance(value, bytes):
        return value
    found = "nothing" if value is None else type(value).__name__
    raise FetchError("not_bytes", f"{shown(uri)}: expected bytes in row {cell.row} of {cell.column!r}, found {found}")
