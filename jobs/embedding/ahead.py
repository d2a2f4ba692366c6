"""Decodes several tables of a listing at a time, so that a picture that comes late holds up only its own table."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice

import pyarrow as pa

from jobs.embedding.stages import DecodeSettings, fetch_and_decode


@contextmanager
def decoded_ahead(tables: Iterator[pa.Table], settings: DecodeSettings, count: int) -> Iterator[Iterator[pa.Table]]:
    """What `fetch_and_decode` makes of tables, in their order. Up to `count` of them, with the one in use, are
    under way from the beginning of the context, and share its threads; its end abandons them.
    """
    stopped, threads = threading.Event(), ThreadPoolExecutor(settings.threads)
    decode = partial(fetch_and_decode, settings=settings, threads=threads, is_awaited=lambda: not stopped.is_set())
    with ThreadPoolExecutor(count, "likeness-decode") as pool:
        try:
            ahead = deque(pool.submit(decode, table) for table in islice(tables, count))

            def decoded() -> Iterator[pa.Table]:
                while ahead:
                    yield ahead.popleft().result()
                    ahead.extend(pool.submit(decode, table) for table in islice(tables, 1))

            yield decoded()
        finally:
            stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)  # does not wait for slow hosts
