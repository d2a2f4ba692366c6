"""Reads the files of runs: each by itself, or many side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from index.errors import DamagedRunError, UnreachableError
from index.records import RowFile
from index.rows import TEXT
from index.storage import Storage

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
_WHOLE = 8 << 20  # bytes up to which a file is fetched by one request: a larger one is read as it is needed


def at_once(read: Callable[[T], R], files: Sequence[T]) -> list[R]:
    """What is read of each file, in order. Side by side: for an object store it is the waiting that is shared."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, files))


@contextmanager
def _damage_named(file: RowFile) -> Iterator[None]:
    """DamagedRunError names a file that is missing, cannot be read, or is not the one in the manifest; UnreachableError
    comes from a bucket that may have it."""
    try:
        yield
    except UnreachableError:
        raise
    except (OSError, pa.ArrowInvalid) as error:
        raise DamagedRunError(
            f"{file.path} cannot be read ({error}): restore it, or embed its images again", file.path
        ) from error


@contextmanager
def open_rows(storage: Storage, file: RowFile, data: bytes | None = None) -> Iterator[pq.ParquetFile]:
    """A file, or the bytes that were fetched of it. `DamagedRunError` here and below."""
    with _damage_named(file), storage.open_input(file.path) if data is None else pa.BufferReader(data) as source:
        if source.size() != file.size:
            raise OSError(f"{source.size()} bytes, its manifest says {file.size}")
        with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
            yield parquet


def fetch(storage: Storage, file: RowFile) -> bytes | None:
    """Its bytes; None: they are too many to hold."""
    with _damage_named(file):
        return storage.read(file.path) if file.size <= _WHOLE else None


def read_schema(storage: Storage, file: RowFile) -> pa.Schema:
    """Of a file, as it is in it."""
    with open_rows(storage, file) as parquet:
        return parquet.schema_arrow


def read_ids(storage: Storage, file: RowFile) -> tuple[pa.ChunkedArray[Any], pa.Schema]:
    """The ids of all rows, and the schema, which costs no request more."""
    with open_rows(storage, file) as parquet:
        return parquet.read(columns=["image_id"]).column("image_id").cast(TEXT), parquet.schema_arrow
