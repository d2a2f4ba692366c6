"""Reads pictures in cells of Parquet files."""

from dataclasses import dataclass
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedder.fetch.files import Files
from embedder.fetch.uris import Cell, fetch_error

_MAX_GROUP_BYTES = 2 << 30
_MAX_CACHED = 2


@dataclass(frozen=True)
class _ColumnChunk:
    """A column of a row group, and which rows of the file it holds."""

    file: tuple[str, int]
    column: str
    rows: range
    values: "pa.ChunkedArray[Any]"


class Cells:
    """Reads cells. Thread-safe; caches the last row groups, since rows are usually read in order."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._cached: tuple[_ColumnChunk, ...] = ()
        self._lock = Lock()

    def read(self, uri: str, cell: Cell, max_bytes: int) -> bytes:
        """The bytes in a cell: binary, or a struct with a field `bytes` as in Hugging Face's datasets. If that is null,
        those of the file that its field `path` names, which is relative to the table's folder.
        """
        with self._files.open(uri) as file:
            # A file that was rewritten in another size is not read from the cache.
            key = (uri, int(file.size()))
            chunk = self._find(key, cell)
            if chunk is None:
                # Threads that need the same row group wait until one of them has read it.
                with self._lock:
                    chunk = self._find(key, cell)
                    if chunk is None:
                        chunk = _load(file, key, cell)
                        self._cached = (chunk, *self._cached[: _MAX_CACHED - 1])
        stored, path = _bytes_and_path(chunk.values[cell.row - chunk.rows.start])
        if not isinstance(stored, pa.StringScalar | pa.StructScalar):  # texts need not be UTF-8
            content = stored.as_py()
            if isinstance(content, bytes):
                return content
        got = stored.type if stored.is_valid else "nothing"
        if isinstance(path, str) and path and not stored.is_valid:
            # Not out of the table's folder: a table may be a stranger's.
            if not (path.startswith("/") or "://" in path or ".." in path.split("/")):
                return self._files.read(f"{uri.rpartition('/')[0]}/{path}", None, max_bytes)
            advice = "which is not below the folder of the file: move the file, or list the paths"
            got = f"only the path {path!r}, {advice}"
        raise fetch_error(uri, "not_bytes", f"expected bytes in row {cell.row} of {cell.column!r}, got {got}")

    def _find(self, key: tuple[str, int], cell: Cell) -> _ColumnChunk | None:
        chunks = (chunk for chunk in self._cached if (chunk.file, chunk.column) == (key, cell.column))
        return next((chunk for chunk in chunks if cell.row in chunk.rows), None)


def _load(file: pa.NativeFile, key: tuple[str, int], cell: Cell) -> _ColumnChunk:
    uri = key[0]
    try:
        table = pq.ParquetFile(file)
        if cell.column not in table.schema_arrow.names:
            names = ", ".join(table.schema_arrow.names)
            raise fetch_error(uri, "no_such_column", f"has no column {cell.column!r}; its columns are {names}")
        first = 0
        for group in range(table.metadata.num_row_groups):
            rows = range(first, first + table.metadata.row_group(group).num_rows)
            if cell.row in rows:
                size = _column_bytes(table.metadata.row_group(group), cell.column)
                if size > _MAX_GROUP_BYTES:
                    message = f"a row group has {size:,} bytes, the limit is {_MAX_GROUP_BYTES:,}; write smaller ones"
                    raise fetch_error(uri, "too_many_bytes", message)
                values = table.read_row_group(group, columns=[cell.column], use_threads=False).column(0)
                return _ColumnChunk(key, cell.column, rows, values)
            first = rows.stop
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise fetch_error(uri, "not_parquet", f"cannot be read as Parquet ({error})") from error
    raise fetch_error(uri, "no_such_row", f"has no row {cell.row}; it has {first:,} rows, counted from 0")


def _column_bytes(group: Any, column: str) -> int:
    leaves = [group.column(i) for i in range(group.num_columns)]
    return sum(leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema.split(".")[0] == column)


def _bytes_and_path(stored: Any) -> tuple[Any, object]:
    """What a cell has as bytes, a scalar, and the path beside it if it is a struct."""
    if not isinstance(stored, pa.StructScalar) or "bytes" not in stored.type.names:
        return stored, None
    return stored["bytes"], stored["path"].as_py() if stored.is_valid and "path" in stored.type.names else None
