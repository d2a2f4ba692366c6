"""Reads and writes the files of runs. `fetch` (vectors) and `copies_here` (facts) check the SHA-256 of the whole file;
whoever opens a row file for other columns has its schema and Parquet's page checksums checked.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.collection.cache.checked import problem_of
from index.collection.cache.file_cache import first_damage
from index.collection.layout import FACTS, FILE_LIST, MANIFEST, MERGED, ROW_FILES, run_path
from index.collection.records.run_manifest import RowFile
from index.collection.rows import (
    DELETED_COLUMNS,
    EMBEDDING,
    FIXED_COLUMNS,
    LOCATION_COLUMNS,
    TILES,
    number_array,
    schema_problem,
    text_array,
)
from index.errors import PASSING, DamagedRunError, UnreachableError
from index.storage import Storage

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
_LISTED_ROWS = 4096  # Python objects in memory
_TOKEN = 16  # digits of a file's SHA-256 in its name
_FILES_AHEAD = 64
BYTES_AHEAD = 64 << 20
"""Maximum bytes that `read_ahead` has in memory, unless one item alone has more."""
_WHOLE = 8 << 20  # maximum size of a file that is fetched in one request, in bytes; a larger one is read piece by piece


def map_in_threads(read: Callable[[T], R], files: Sequence[T]) -> list[R]:
    """What `read` returns for each file, in order. Reads in parallel, because a bucket takes long to answer."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, files))


def map_small(storage: Storage, read: Callable[[T], R], files: Sequence[T]) -> list[R]:
    """The same for small files, such as records: from a disk one after another, where threads take five times as long
    to start and to wait for each other.
    """
    return [*map(read, files)] if storage.is_local else map_in_threads(read, files)


def read_ahead(read: Callable[[T], R], items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[R]:
    """What `read` returns for each item, in order. A few are read in parallel, before the first one is needed."""
    ahead, size, sizes = deque[Future[R]](), 0, [*map(size_of, items)]
    pool = ThreadPoolExecutor(_THREADS)
    try:
        for number, item in enumerate(items):
            while ahead and (len(ahead) == _FILES_AHEAD or size + sizes[number] > BYTES_AHEAD):
                size -= sizes[number - len(ahead)]
                yield ahead.popleft().result()
            size += sizes[number]
            ahead.append(pool.submit(read, item))
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # who is interrupted does not wait for the others


@contextmanager
def _as_damaged_run(path: str) -> Iterator[None]:
    """Raises DamagedRunError for a file that is missing or altered. If it cannot be reached, it may be intact."""
    try:
        yield
    except (UnreachableError, PermissionError):
        raise
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise
        raise damaged_run(path, error) from error


def damaged_run(path: str, problem: object) -> DamagedRunError:
    if path.startswith(f"{MERGED}/"):
        advice = f"remove the folder {MERGED}, which the next job makes again"
    else:
        advice = (
            f"restore it from a backup; or remove its run's {MANIFEST} and the folder {MERGED}, if there is one, embed "
            "the source again, and run `likeness index` with --accept-lost-runs"
        )
    return DamagedRunError(f"{path} cannot be read ({problem}): {advice}", path)


@contextmanager
def open_rows(source: Storage | Path | bytes, file: RowFile) -> Iterator[pq.ParquetFile]:
    """Open a file in a storage, its copy on this machine, or its content. DamagedRunError here and below."""
    with _as_damaged_run(file.path), _opened(source, file.path) as opened:
        if opened.size() != file.size:
            raise OSError(f"it has {opened.size()} bytes, its manifest says {file.size}")
        with pq.ParquetFile(opened, page_checksum_verification=True) as parquet:
            if parquet.metadata.num_rows != file.rows:
                raise OSError(f"it has {parquet.metadata.num_rows} rows, its manifest says {file.rows}")
            if problem := schema_problem(parquet.schema_arrow, _expected(file, parquet.schema_arrow.names)):
                raise OSError(problem)
            yield parquet


def _opened(source: Storage | Path | bytes, path: str) -> pa.NativeFile:
    if isinstance(source, Storage):
        return source.open_input(path)
    return pa.BufferReader(source) if isinstance(source, bytes) else pa.OSFile(str(source), "rb")


def fetch(storage: Storage, file: RowFile) -> bytes | Storage:
    """The content of a file, after a check of its SHA-256; if it exceeds `_WHOLE`, the storage to read it from."""
    with _as_damaged_run(file.path):
        if file.size > _WHOLE:
            if problem := problem_of(storage, file.path, file):
                raise OSError(f"it {problem}")
            return storage
        data = storage.read(file.path, max_bytes=_WHOLE)
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise OSError("its SHA-256 is not the one in its manifest")
        return data


def block_of(path: str) -> str:
    """The block of a row file: its path up to the token, which differs between tries."""
    return path.partition(".")[0]


def describe(storage: Storage, path: str) -> RowFile:
    """A manifest's record of a file that none names yet. DamagedRunError if its SHA-256 is not the one in its name."""
    with _as_damaged_run(path):
        data = storage.read(path)
        digest = hashlib.sha256(data).hexdigest()
        if not is_named_by(path, digest):
            raise OSError("its SHA-256 is not the one in its name")
        rows = pq.read_metadata(pa.BufferReader(data)).num_rows
    return RowFile(path=path, rows=rows, size=len(data), sha256=digest)


def is_named_by(path: str, digest: str) -> bool:
    """Whether a file's name has the start of this SHA-256, as `write_table` gives it."""
    return path.endswith(f".{digest[:_TOKEN]}.parquet")


def write_table(storage: Storage, name: str, table: pa.Table, *, row_group_size: int | None = None) -> RowFile:
    """Write `<name>.<token>.parquet` atomically; the token is the start of the file's SHA-256."""
    data = parquet_of(table, row_group_size)
    digest = hashlib.sha256(data).hexdigest()
    path = f"{name}.{digest[:_TOKEN]}.parquet"
    storage.write_atomic(path, data)
    return RowFile(path=path, rows=table.num_rows, size=len(data), sha256=digest)


def parquet_of(table: pa.Table, row_group_size: int | None = None) -> bytes:
    """A table as the content of a file."""
    sink = pa.BufferOutputStream()
    vectors = [name for name in (EMBEDDING, TILES) if name in table.column_names]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        write_page_checksum=True,
        row_group_size=row_group_size,
        # Vectors are all different, so a dictionary would make a file half as large again. Splitting their bytes by
        # significance makes it a tenth smaller. Both choices also make reads and writes faster.
        use_dictionary=[name for name in table.column_names if name not in vectors],  # type: ignore[arg-type]
        use_byte_stream_split=[f"{name}.list.element" for name in vectors] or False,  # type: ignore[arg-type]  # the stubs take neither for a list of columns
    )
    return sink.getvalue().to_pybytes()


def _expected(file: RowFile, names: Sequence[str]) -> Sequence[str]:
    """The columns that a file, which has those of these `names`, must have."""
    folder = file.path.rpartition("/")[0]
    if folder.endswith(f"/{FACTS}"):
        of_deleted = [*LOCATION_COLUMNS, *DELETED_COLUMNS]
        of_rows = [*LOCATION_COLUMNS, *(column for column in FIXED_COLUMNS if column != EMBEDDING)]
        return of_deleted if names == of_deleted else of_rows
    return FIXED_COLUMNS if folder.endswith(f"/{ROW_FILES}") else ()


@dataclass(frozen=True)
class FileList(Sequence[RowFile]):
    """The row files of a committed run, in order, which its manifest's `file` lists. It is read when it is needed."""

    storage: Storage
    file: RowFile

    @classmethod
    def write(cls, storage: Storage, run_id: str, files: Sequence[RowFile]) -> RowFile:
        """Write the list of a run's files, which the run's manifest has to name."""
        columns = {name: [getattr(file, name) for file in files] for name in RowFile.model_fields}
        texts = {name: text_array(columns.pop(name)) for name in ("path", "sha256")}
        counts = {name: number_array(np.array(values, np.int64)) for name, values in columns.items()}
        return write_table(storage, run_path(run_id, FILE_LIST), pa.table(texts | counts))

    def __len__(self) -> int:
        return self.file.rows

    def __getitem__(self, number: Any) -> Any:  # not typed for slices, which nobody needs
        [file] = self._files(self._table.slice(number, 1))
        return file

    def __iter__(self) -> Iterator[RowFile]:
        for batch in self._table.to_batches(_LISTED_ROWS):
            yield from self._files(batch)

    def _files(self, rows: pa.Table | pa.RecordBatch) -> list[RowFile]:
        with _as_damaged_run(self.file.path):
            return [RowFile.model_validate(row) for row in rows.to_pylist()]

    @cached_property
    def _table(self) -> pa.Table:
        with open_rows(fetch(self.storage, self.file), self.file) as parquet:
            return valid(parquet.read())


def read_schema(storage: Storage, file: RowFile) -> pa.Schema:
    with open_rows(storage, file) as parquet:
        return parquet.schema_arrow


def copies_here(storage: Storage, files: Sequence[RowFile], folder: Path) -> list[Path]:
    """Where these files are on this machine, each checked against its SHA-256: those of a bucket below `folder`, linked
    from this machine's cache.
    """
    if damage := first_damage(storage, {file.path: file for file in files}, folder):
        raise damaged_run(damage[0], f"it {damage[1]}")
    return [storage.root_here(folder) / file.path for file in files]


V = TypeVar("V", pa.Table, pa.RecordBatch)


def valid(rows: V) -> V:
    """The rows that were read from a file. ArrowInvalid if one has a wrong value, such as text that is not UTF-8."""
    rows.validate(full=True)
    return rows
