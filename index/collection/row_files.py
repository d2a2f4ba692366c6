"""Reads the files of runs. Every byte is compared with the file's SHA-256 when vectors or deletes are read; for other
columns the schema and Parquet's own checksums of pages have to do.
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
from index.errors import DamagedRunError, UnreachableError
from index.storage import Storage

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
_TOKEN = 16  # digits of a file's SHA-256 in its name
_WHOLE = 8 << 20  # bytes up to which a file is fetched by one request: a larger one is read as it is needed


def map_in_threads(read: Callable[[T], R], files: Sequence[T]) -> list[R]:
    """What is read of each file, in order. Side by side: for an object store it is the waiting that is shared."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, files))


@contextmanager
def _as_damaged_run(path: str) -> Iterator[None]:
    """DamagedRunError for a file that is missing or not as it was written, UnreachableError if a bucket may have it."""
    try:
        yield
    except UnreachableError:
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise damaged_run(path, error) from error


def damaged_run(path: str, problem: object) -> DamagedRunError:
    return DamagedRunError(
        f"{path} cannot be read ({problem}): restore it from a backup; or remove its run's {MANIFEST}, embed the "
        "source again, and run `likeness index` with --accept-lost-runs",
        path,
    )


@contextmanager
def open_rows(storage: Storage, file: RowFile, data: bytes | None = None) -> Iterator[pq.ParquetFile]:
    """A file, or the bytes that were fetched of it. `DamagedRunError` here and below."""
    with _as_damaged_run(file.path), storage.open_input(file.path) if data is None else pa.BufferReader(data) as source:
        if source.size() != file.size:
            raise OSError(f"{source.size()} bytes, its manifest says {file.size}")
        with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            if parquet.metadata.num_rows != file.rows:
                raise OSError(f"{parquet.metadata.num_rows} rows, its manifest says {file.rows}")
            if (problem := schema_problem(parquet.schema_arrow)) and not _has_deletes(file):
                raise OSError(problem)
            yield parquet


def fetch(storage: Storage, file: RowFile) -> bytes | None:
    """Its bytes, which agree with their SHA-256; None: they do, and are too many to hold."""
    with _as_damaged_run(file.path):
        data = storage.read(file.path) if file.size <= _WHOLE else None
        digest = storage.sha256(file.path) if data is None else hashlib.sha256(data).hexdigest()
        if digest != file.sha256:
            raise OSError("its SHA-256 is not the one in its manifest")
        return data


def describe(storage: Storage, path: str) -> RowFile:
    """The entry in a manifest for a file that none names yet. DamagedRunError when it does not agree with its name."""
    with _as_damaged_run(path):
        data = storage.read(path)
        digest = hashlib.sha256(data).hexdigest()
        if not path.endswith(f".{digest[:_TOKEN]}.parquet"):
            raise OSError("its SHA-256 is not the one in its name")
        rows = pq.read_metadata(pa.BufferReader(data)).num_rows
    return RowFile(path=path, rows=rows, size=len(data), sha256=digest)


def write_table(storage: Storage, name: str, table: pa.Table) -> RowFile:
    """Write `<name>.<token>.parquet`, atomically; the token is of its content."""
    sink = pa.BufferOutputStream()
    vectors = [name for name in (EMBEDDING, TILES) if name in table.column_names]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        write_page_checksum=True,
        # Vectors are all different, so a dictionary makes a file half as large again. Splitting their bytes by
        # significance makes it a tenth smaller. Without the one and with the other, reads and writes are faster.
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
    """The ids of all rows, and the schema, at no further request."""
    with open_rows(storage, file, fetch(storage, file) if _has_deletes(file) else None) as parquet:
        return parquet.read(columns=["image_id"]).column("image_id").cast(TEXT), parquet.schema_arrow
