"""Runs the stages without Ray: child processes decode ahead, and the caller's thread runs the forward pass."""

from collections.abc import Generator
from dataclasses import replace
from functools import partial

from embedder.machine import usable_cpus
from jobs.embedding.ahead import decoded_ahead
from jobs.embedding.model_source import ModelCache
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import EmbedBlock, Work, drop_fetcher, stop_decoders
from jobs.planning.todo import Todo

_MIN_BLOCKS = 3
"""One is embedded while two are decoded; with one, decoders would idle while they wait for its last pictures."""


def blocks_here(todo: Todo, work: Work, model_cache: ModelCache) -> Generator[BlockSummary]:
    """Blocks in the order of the listing. Raises what loading and embedding raise."""
    cores = usable_cpus()
    settings = replace(work.decode, threads=work.decode.threads * cores, decoders=cores)
    embed = replace(work.embed, load=partial(model_cache.load, work.embed.load))  # loads once for all plans
    count = max(_MIN_BLOCKS, settings.tables_ahead(work.block_size))
    try:
        with decoded_ahead(todo.tables(work.block_size), settings, count) as blocks:
            yield from EmbedBlock(embed).each(blocks)  # the model loads while the first blocks are decoded
    finally:
        stop_decoders(settings)
        drop_fetcher()
