"""The stages in this process: decoding ahead in processes of their own, the forward pass in the caller's thread."""

import os
import sys
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice

import pyarrow as pa

from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import DecodeSettings, EmbedBlock, EmbedSettings, fetch_and_decode, stop_decoders

_AHEAD = 2
"""Blocks that are decoded while another is embedded: with one, decoders would idle while its last pictures come in."""


def blocks_here(
    todo: pa.Table, decode: DecodeSettings, embed: EmbedSettings, block_size: int
) -> Generator[BlockSummary]:
    """`jobs.embedding.placement.Blocks`, in order. Raises what loading and embedding raise."""
    cores, stopped = _cores(), threading.Event()
    settings = replace(decode, threads=max(1, decode.threads * cores // _AHEAD), decoders=cores)
    decoded = partial(fetch_and_decode, settings=settings, is_awaited=lambda: not stopped.is_set())
    parts = (todo.slice(start, block_size) for start in range(0, todo.num_rows, block_size))
    with ThreadPoolExecutor(_AHEAD, "likeness-decode") as pool:
        try:
            ahead = deque(pool.submit(decoded, part) for part in islice(parts, _AHEAD))
            embed_block = EmbedBlock(embed)  # the model loads while the first blocks are decoded
            while ahead:
                block = ahead.popleft().result()
                ahead.extend(pool.submit(decoded, part) for part in islice(parts, 1))
                yield embed_block(block)
        finally:
            stopped.set()
            stop_decoders(settings)


def _cores() -> int:
    """Those that this process may use, where the system says so."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
