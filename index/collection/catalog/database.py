"""The DuckDB of this process."""

from __future__ import annotations

import atexit
import os
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from functools import cache
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Final, TypeVar

from index.storage.scratch import Scratch

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection  # imported late: it takes a fifth of a second, which a search does not need

T = TypeVar("T")

_MEMORY: Final = "1GB"  # beyond that DuckDB uses the disk
_PATIENCE_S: Final = 10.0


@cache
def database() -> DuckDBPyConnection:
    """In memory, and one for all catalogs of this process, as opening one takes longer than most queries."""
    return _apart(_open, lambda: None)


def _open() -> DuckDBPyConnection:
    import duckdb

    spilled = Scratch("catalogs")
    opened = duckdb.connect(
        config={
            "memory_limit": _MEMORY,
            "temp_directory": str(spilled.path),
            "preserve_insertion_order": "false",  # which would need more memory
            "arrow_large_buffer_size": "true",
            "arrow_lossless_conversion": "true",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    opened.execute("SET GLOBAL TimeZone = 'UTC'")
    if hasattr(os, "sched_getaffinity"):  # DuckDB knows a container's quota, but not which cores it may run on
        opened.execute(f"SET threads = least(current_setting('threads'), {len(os.sched_getaffinity(0))})")
    atexit.register(_close, opened, spilled)
    return opened


def run_statement(cursor: DuckDBPyConnection, statement: Callable[[], T]) -> T:
    """What a statement returns. The main thread has another run it: while DuckDB's threads have all the work, the one
    that asked sleeps, and would see no signal until the end; and DuckDB makes its own error of what a handler raises.
    """
    return _apart(statement, cursor.interrupt)


def _apart(call: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run a call; if this is the main thread, in another one, which is interrupted if a signal's handler raises.

    Without `threading`, whose locks may stay locked when a handler raises, and then whoever needs them waits for ever.
    """
    if current_thread() is not main_thread():
        return call()
    results: list[tuple[T, None] | tuple[None, BaseException]] = []
    ended = allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            results.append((call(), None))
        except BaseException as error:
            results.append((None, error))
        ended.release()

    try:
        start_new_thread(run, ())
        ended.acquire()
    except BaseException:
        deadline = time.monotonic() + _PATIENCE_S  # it may not have started
        while not results and time.monotonic() < deadline:
            interrupt()
            time.sleep(0.01)
        raise
    value, error = results[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def _close(opened: DuckDBPyConnection, _: Scratch) -> None:
    opened.close()
    database.cache_clear()  # at the end of the process, DuckDB complains of what still refers to it
