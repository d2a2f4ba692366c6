"""Runs the stages without Ray: child processes decode ahead, and the caller's thread runs the forward pass."""

import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice

from embedder.cpus import usable_cpus
from jobs.embedding.model_source import ModelCache
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import EmbedBlock, Work, drop_fetcher, fetch_and_decode, stop_decoders
from jobs.planning.todo import Todo

_BLOCKS_AHEAD = 2
"""Blocks decoded while another is embedded; with one, decoders would idle while they wait for its last pictures."""


def blocks_here(todo: Todo, work: Work, model_cache: ModelCache) -> Generator[BlockSummary]:
    """Blocks in the order of the listing. Raises what loading and embedding raise."""
    cores = usable_cpus()
    stopped = threading.Event()
    settings = replace(work.decode, threads=max(1, work.decode.threads * cores // _BLOCKS_AHEAD), decoders=cores)
    embed = replace(work.embed, load=partial(model_cache.load, work.embed.load))  # loads once for all plans
    decode_block = partial(fetch_and_decode, settings=settings, is_awaited=lambda: not stopped.is_set())
    parts = todo.tables(work.block_size)
    with ThreadPoolExecutor(_BLOCKS_AHEAD, "likeness-decode") as pool:
        try:
            ahead = deque(pool.submit(decode_block, part) for part in islice(parts, _BLOCKS_AHEAD))
            embed_block = EmbedBlock(embed)  # the model loads while the first blocks are decoded
            while ahead:
                block = ahead.popleft().result()
                ahead.extend(pool.submit(decode_block, part) for part in islice(parts, 1))
                yield embed_block(block)
        finally:
            stopped.set()
            stop_decoders(settings)
            drop_fetcher()
