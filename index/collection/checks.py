"""What was last found at the web addresses of a collection's sources: a log of small Parquet files.

It is apart from the runs, so a night that finds nothing new writes no rows, and what a killed job has found is kept. It
decides nothing by itself: an image has changed if its row has another `content_hash` than its address.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
import re
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from index.collection.collection import Collection
from index.collection.layout import CHECKS
from index.collection.row_files import map_in_threads, write_table
from index.collection.rows import conform, in_files, in_memory
from index.errors import CollectionError, UnreachableError

_TIME = pa.timestamp("us", tz="UTC")
_COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys(("source", "uri"), pa.string()),
    "checked": _TIME,
    **dict.fromkeys(("content_hash", "etag"), pa.string()),
    "modified": _TIME,
    **dict.fromkeys(("gone", "failed"), pa.int32()),
}
CHECK_SCHEMA = in_memory(pa.schema(_COLUMNS))
"""`checked` is when an address was last visited; `content_hash`, `etag` and `modified` belong to the last answer with a
picture. `gone` and `failed` count the visits since then that found none (404 or 410) and that failed.
"""
_NAME = re.compile(r"([0-9]{8})\.([0-9a-f]{16})\.parquet")
_MAX_FILES = 32
_FORGET_AFTER = timedelta(days=400)
"""A listed address is checked far more often."""


def read_checks(collection: Collection, source: str | None = None) -> pa.Table:
    """The newest check of each address of a source, a `canonical_address`; None: of all sources."""
    checks = pa.concat_tables(
        [CHECK_SCHEMA.empty_table(), *map_in_threads(lambda path: _read(collection, path), _paths(collection))]
    )
    checks = _newest(checks)
    return checks if source is None else checks.filter(pc.equal(checks["source"], pa.scalar(source, pa.large_string())))


def write_checks(collection: Collection, checks: pa.Table) -> None:
    """Add checks, of any sources. They replace earlier ones of the same addresses. The caller has the lease."""
    collection.check_lease()
    paths = _paths(collection)
    if len(paths) >= _MAX_FILES:
        checks = _newest(pa.concat_tables([read_checks(collection), conform(checks, CHECK_SCHEMA)]))
        since = pc.max(checks["checked"]).as_py() - _FORGET_AFTER
        checks = checks.filter(pc.greater(checks["checked"], pa.scalar(since, _TIME)))
    number = 1 + int(paths[-1].rpartition("/")[2].partition(".")[0]) if paths else 1
    write_table(collection.storage, f"{CHECKS}/{number:08}", conform(checks, in_files(CHECK_SCHEMA)))
    if len(paths) >= _MAX_FILES:  # they are all in the new file
        for path in paths:
            collection.storage.delete(path)


def _paths(collection: Collection) -> list[str]:
    """The files, oldest first."""
    return [entry.path for entry in collection.storage.list(CHECKS) if _NAME.fullmatch(entry.name)]


def _newest(checks: pa.Table) -> pa.Table:
    positions = checks.append_column("position", pa.array(range(checks.num_rows), pa.int64()))
    last = positions.group_by(["source", "uri"]).aggregate([("position", "max")])["position_max"]
    return checks.take(last.combine_chunks().sort())


def _read(collection: Collection, path: str) -> pa.Table:
    """A file's checks; none if it was altered or merged into a newer one: its addresses are then checked again."""
    try:
        data = collection.storage.read(path)
        if not path.endswith(f".{hashlib.sha256(data).hexdigest()[:16]}.parquet"):
            return CHECK_SCHEMA.empty_table()
        return conform(pq.read_table(pa.BufferReader(data)), CHECK_SCHEMA)
    except UnreachableError:
        raise
    except (FileNotFoundError, pa.ArrowException, CollectionError):
        return CHECK_SCHEMA.empty_table()
