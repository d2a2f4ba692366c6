"""The DuckDB of this process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

from index.storage.scratch import Scratch

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection  # imported late: it takes a fifth of a second, which a search does not need

T = TypeVar("T")

_MEMORY: Final = "1GB"  # beyond that DuckDB uses the disk
_calls: Final[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()


@cache
def database() -> DuckDBPyConnection:
    """In memory, and one for all catalogs of this process, as opening one takes longer than most queries."""
    import duckdb

    spilled, caller = Scratch("catalogs"), Thread(target=_call_later, name="finalized catalogs", daemon=True)
    caller.start()
    atexit.register(_close, spilled, caller)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    opened = duckdb.connect(
        config={
            "memory_limit": _MEMORY,
            "threads": str(cores),
            "temp_directory": str(spilled.path),
            "preserve_insertion_order": "false",  # which would need more memory
            "arrow_large_buffer_size": "true",
            "arrow_lossless_conversion": "true",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    opened.execute("SET GLOBAL TimeZone = 'UTC'")
    return opened


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="catalog")


def run_statement(cursor: DuckDBPyConnection, statement: Callable[[], T]) -> T:
    """What a statement returns. It runs in a thread: the one that asks DuckDB sleeps while others have all the work, so
    the main thread would see no signal until the end; and DuckDB makes its own RuntimeError of what a handler raises.
    """
    running = _threads().submit(statement)
    try:
        return running.result()
    except BaseException:
        while not wait([running], timeout=0.05).done:
            cursor.interrupt()
        raise


def later(call: Callable[[str], None], argument: str) -> None:
    """Call it in a thread, without waiting: an exception that a signal raises in a finalizer would be lost. A finalizer
    may run anywhere, even while its thread holds the lock of all pools: this queue alone is meant for that.
    """
    _calls.put(partial(call, argument))


def _call_later() -> None:
    while call := _calls.get():
        call()


def _close(_: Scratch, caller: Thread) -> None:
    _calls.put(None)
    caller.join()
    database().close()
    database.cache_clear()  # at the end of the process, DuckDB complains of what still refers to it
