"""Reads the files of runs. When vectors or deletes are read, the whole file is checked against its SHA-256; for other
columns only the schema and Parquet's page checksums are checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from index.collection.layout import DELETES, MANIFEST
from index.collection.records import RowFile
from index.collection.rows import EMBEDDING, TEXT, TILES, schema_problem
from index.errors import PASSING, DamagedRunError, UnreachableError
from index.storage import Storage

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
_TOKEN = 16  # digits of a file's SHA-256 in its name
_WHOLE = 8 << 20  # maximum size of a file that is fetched in one request, in bytes; a larger one is read piece by piece


def map_in_threads(read: Callable[[T], R], files: Sequence[T]) -> list[R]:
    """What `read` returns for each file, in order. Reads in parallel, because a bucket takes long to answer."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, files))


@contextmanager
def _as_damaged_run(path: str) -> Iterator[None]:
    """Raises DamagedRunError for a file that is missing or altered. If it cannot be reached, it may be intact."""
    try:
        yield
    except (UnreachableError, PermissionError):
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise
        raise damaged_run(path, error) from error


def damaged_run(path: str, problem: object) -> DamagedRunError:
    return DamagedRunError(
        f"{path} cannot be read ({problem}): restore it from a backup; or remove its run's {MANIFEST}, embed the "
        "source again, and run `likeness index` with --accept-lost-runs",
        path,
    )


@contextmanager
def open_rows(storage: Storage, file: RowFile, data: bytes | None = None) -> Iterator[pq.ParquetFile]:
    """Open a file, or the `data` that were fetched from it. DamagedRunError here and below."""
    with _as_damaged_run(file.path), storage.open_input(file.path) if data is None else pa.BufferReader(data) as source:
        if source.size() != file.size:
            raise OSError(f"it has {source.size()} bytes, its manifest says {file.size}")
        with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            if parquet.metadata.num_rows != file.rows:
                raise OSError(f"it has {parquet.metadata.num_rows} rows, its manifest says {file.rows}")
            if (problem := schema_problem(parquet.schema_arrow)) and not _has_deletes(file):
                raise OSError(problem)
            yield parquet


def fetch(storage: Storage, file: RowFile) -> bytes | None:
    """The content of a file, after a check of its SHA-256; None if that is right but the file exceeds `_WHOLE`."""
    with _as_damaged_run(file.path):
        data = storage.read(file.path) if file.size <= _WHOLE else None
        digest = storage.sha256(file.path) if data is None else hashlib.sha256(data).hexdigest()
        if digest != file.sha256:
            raise OSError("its SHA-256 is not the one in its manifest")
        return data


def describe(storage: Storage, path: str) -> RowFile:
    """A manifest's record of a file that none names yet. DamagedRunError if its SHA-256 is not the one in its name."""
    with _as_damaged_run(path):
        data = storage.read(path)
        digest = hashlib.sha256(data).hexdigest()
        if not path.endswith(f".{digest[:_TOKEN]}.parquet"):
            raise OSError("its SHA-256 is not the one in its name")
        rows = pq.read_metadata(pa.BufferReader(data)).num_rows
    return RowFile(path=path, rows=rows, size=len(data), sha256=digest)


def write_table(storage: Storage, name: str, table: pa.Table) -> RowFile:
    """Write `<name>.<token>.parquet` atomically; the token is the start of the file's SHA-256."""
    sink = pa.BufferOutputStream()
    vectors = [name for name in (EMBEDDING, TILES) if name in table.column_names]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        write_page_checksum=True,
        # Vectors are all different, so a dictionary would make a file half as large again. Splitting their bytes by
        # significance makes it a tenth smaller. Both choices also make reads and writes faster.
        use_dictionary=[name for name in table.column_names if name not in vectors],  # type: ignore[arg-type]
        use_byte_stream_split=[f"{name}.list.element" for name in vectors] or False,  # type: ignore[arg-type]  # the stubs take neither for a list of columns
    )
    data = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(data).hexdigest()
    path = f"{name}.{digest[:_TOKEN]}.parquet"
    storage.write_atomic(path, data)
    return RowFile(path=path, rows=table.num_rows, size=len(data), sha256=digest)


def _has_deletes(file: RowFile) -> bool:
    return file.path.rpartition("/")[2].startswith(DELETES)


def read_schema(storage: Storage, file: RowFile) -> pa.Schema:
    with open_rows(storage, file) as parquet:
        return parquet.schema_arrow


def read_ids(storage: Storage, file: RowFile) -> tuple[pa.ChunkedArray[Any], pa.Schema]:
    """The ids of all rows, and the schema, which takes no further request."""
    with open_rows(storage, file, fetch(storage, file) if _has_deletes(file) else None) as parquet:
        return parquet.read(columns=["image_id"]).column("image_id").cast(TEXT), parquet.schema_arrow
