"""What was last found at the web addresses of a collection's sources: a log of small Parquet files.

It is apart from the runs, so a night that finds nothing new writes no rows, and what a killed job has found is kept. It
decides nothing by itself: an image has changed if its row has another `content_hash` than its address.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
import re
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from index.collection.catalog.sql import parquet
from index.collection.catalog.workspace import Workspace
from index.collection.collection import Collection
from index.collection.layout import CHECKS
from index.collection.row_files import is_named_by, map_small, write_table
from index.storage import Storage
from index.storage.scratch import Scratch
from index.storage.storage import FileInfo

_TIME = pa.timestamp("us", tz="UTC")
_COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys(("source", "uri"), pa.string()),
    "checked": _TIME,
    **dict.fromkeys(("content_hash", "etag"), pa.string()),
    "modified": _TIME,
    **dict.fromkeys(("gone", "failed"), pa.int32()),
}
CHECK_SCHEMA = pa.schema(_COLUMNS)
"""`checked` is when an address was last visited; `content_hash`, `etag` and `modified` belong to the last answer with a
picture. `gone` and `failed` count the visits since then that found none (404 or 410) and that failed.
"""
_NAME = re.compile(r"[0-9]{8}(-merged)?\.([0-9a-f]{16})\.parquet")
_MAX_FILES = 30  # that are not merged, beside as many as are
_MERGED_ROWS = 1 << 17  # of a file
_FORGET_AFTER = "INTERVAL 400 DAY"  # a listed address is checked far more often


class Checks:
    """The newest check of each address of each source. Files that were altered are left out: their addresses are then
    checked again.
    """

    def __init__(self, collection: Collection) -> None:
        self._scratch = Scratch("checks")
        pq.write_table(CHECK_SCHEMA.empty_table(), self._scratch.path / "00000000.parquet")
        storage = collection.storage
        map_small(storage, partial(_copy, storage, self._scratch.path), _files(collection))

    @property
    def sql(self) -> str:
        """The checks in the queries of any catalog, with the columns of `CHECK_SCHEMA`, while this object lives."""
        # Not by a pattern: the folder's own name may look like one.
        rows = parquet(self._scratch.path.iterdir(), "filename", "file_row_number")
        nth = "row_number() OVER (PARTITION BY source, uri ORDER BY filename DESC, file_row_number DESC)"
        return f"(SELECT {', '.join(CHECK_SCHEMA.names)} FROM {rows} QUALIFY {nth} = 1)"


def write_checks(collection: Collection, checks: pa.Table) -> None:
    """Add checks, of any sources. They replace earlier ones of the same addresses. The caller has the lease."""
    collection.check_lease()
    files = _files(collection)
    merged = [entry for entry in files if "-merged" in entry.name]
    if len(files) - len(merged) >= _MAX_FILES + len(merged):
        _merge(collection, files)
        files = _files(collection)
    write_table(collection.storage, _next_name(files), checks.cast(CHECK_SCHEMA))


def _merge(collection: Collection, files: list[FileInfo]) -> None:
    """Write the newest checks to files that follow, and then remove `files`."""
    checks, workspace = Checks(collection), Workspace(collection.location)
    newest = workspace.store(f"FROM {checks.sql}").sql
    recent = f"FROM {newest} WHERE checked > (SELECT max(checked) FROM {newest}) - {_FORGET_AFTER}"
    with workspace.query(recent, _MERGED_ROWS) as batches:
        for number, batch in enumerate(batches):
            name = f"{_next_name(files, number)}-merged"
            write_table(collection.storage, name, pa.Table.from_batches([batch]).cast(CHECK_SCHEMA))
    for entry in files:
        collection.storage.delete(entry.path)


def _files(collection: Collection) -> list[FileInfo]:
    """The files, oldest first."""
    return [entry for entry in collection.storage.list(CHECKS) if _NAME.fullmatch(entry.name)]


def _next_name(files: list[FileInfo], after: int = 0) -> str:
    return f"{CHECKS}/{1 + after + (int(files[-1].name[:8]) if files else 0):08}"


def _copy(storage: Storage, folder: Path, file: FileInfo) -> None:
    """Copy a file to a folder, unless it was altered, or was merged into a newer one meanwhile."""
    try:
        data = storage.read(file.path)
        intact = is_named_by(file.path, hashlib.sha256(data).hexdigest())
        if intact and pq.read_schema(pa.BufferReader(data)).equals(CHECK_SCHEMA):
            (folder / file.name).write_bytes(data)
    except (FileNotFoundError, pa.ArrowException):
        return
