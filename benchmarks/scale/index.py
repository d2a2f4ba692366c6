"""Costs of a segment: building, checking, memory and searching.

`fast` ranks candidates by 8-bit vectors in memory, which is the choice without a limit on memory. `lean` uses the least
memory, and ranks by the exact vectors on disk.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import psutil
import pyarrow as pa

from benchmarks.common.clustered import DIM, Clustered, Vectors, add_rows
from benchmarks.common.process import in_new_process, seconds_of, spent
from benchmarks.index.recall import exact
from benchmarks.index.upkeep import build
from benchmarks.scale import Costs
from index.builder.ground_truth import GroundTruth
from index.collection import Collection
from index.collection.layout import ANN, IDS, ROWS, VECTORS
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from index.segments.vector_index import MIN_DEPTH
from index.versions.opening import open_segments
from index.versions.servable import check_version

_K = 10
_LEAN_BYTES = 140  # per row: too little for 8-bit vectors of 512 dimensions
_QUERIES = 1_000
_SINGLES = 300


def indexes(folder: Path, sizes: Sequence[int], latency_ms: float) -> Costs:
    """Both kinds of index by size. `latency_ms` must be so short that no set is searched exactly."""
    costs: Costs = defaultdict(dict)
    for rows in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            collection = Collection.create_or_open(f"{name}/collection")
            add_rows(collection, Clustered(), range(rows))
            for kind, limit in (("fast", None), ("lean", _LEAN_BYTES * rows)):
                settings = IndexSettings(latency_ms=latency_ms, max_memory=limit, segment_rows=rows)
                for (what, unit), value in _index(collection, settings).items():
                    costs[f"a segment: {what}", unit][f"{kind} {rows / 1e6:g} M"] = value
    return costs


def _index(collection: Collection, settings: IndexSettings) -> dict[tuple[str, str], float | str]:
    """The figures of one segment, by name and unit."""
    built = in_new_process(build, collection.location, settings, Clustered())
    (segment,) = built.manifest.segments
    memory = in_new_process(_serving_memory, collection.location, Clustered().queries(_QUERIES))
    truth_core_s, check_s = in_new_process(_last_pass, collection.location)
    core_ms, p50_ms, lookup_ms = in_new_process(_search, collection.location)
    rows = segment.ntotal
    bytes_of = {name: segment.files[name].size / rows for name in (ANN, VECTORS, ROWS, IDS)}
    return {
        ("faiss factory", ""): segment.factory,
        ("recall@10, as its build measured it", ""): built.manifest.recall["10"],
        ("memory to search", "MB"): (memory["anonymous"] + memory[ANN]) / 1e6,
        ("memory to search, the server's own", "MB"): memory["anonymous"] / 1e6,
        ("approximate index on disk", "bytes a row"): bytes_of[ANN],
        ("exact vectors on disk", "bytes a row"): bytes_of[VECTORS],
        ("rows on disk", "bytes a row"): bytes_of[ROWS],
        ("order of ids on disk", "bytes a row"): bytes_of[IDS],
        ("build, on all cores", "s"): built.seconds,
        ("build", "core s a million rows"): built.cpu_seconds * 1e6 / rows,
        ("exact neighbours, to measure recall", "core s a million rows"): truth_core_s * 1e6 / rows,
        ("check its files", "s a million rows"): check_s * 1e6 / rows,
        ("memory to build, without pages of files", "MB"): built.peak_anonymous / 1e6,
        ("memory to build, with them", "MB"): built.peak_rss / 1e6,
        ("a query, in batches", "core ms"): core_ms,
        ("a query by itself on one core, with its rows (p50)", "ms"): p50_ms,
        ("exact vectors read for a query", ""): float(round(segment.parameters["rescore"] * MIN_DEPTH)),
        ("find a row by its id", "ms"): lookup_ms,
    }


def _serving_memory(location: str, queries: Vectors) -> dict[str, int]:
    """Memory in bytes that a process gains by opening the live version and answering these queries, in a batch and one
    by one: `anonymous` is its own, the rest are mapped pages of the approximate index.
    """
    before = _resident()
    searcher = Searcher.open(Collection.open(location))
    searcher.search(queries, _K)
    for query in queries:
        searcher.search(query[np.newaxis], _K)
    after = _resident()
    return {name: after[name] - before[name] for name in after}


def _resident() -> dict[str, int]:
    """Bytes in memory: `anonymous`, and mapped pages of the approximate index."""
    memory = {"anonymous": 0, ANN: 0}
    for mapping in psutil.Process().memory_maps():
        memory["anonymous"] += mapping.anonymous
        if Path(mapping.path).name == ANN:
            memory[ANN] += mapping.rss - mapping.anonymous
    return memory


def _last_pass(location: str) -> tuple[float, float]:
    """Costs of the end of a build, which runs in one process: core seconds to find the exact neighbours of the
    held-out queries, and seconds to check the files.
    """
    collection = Collection.open(location)
    manifest = collection.read_version(collection.current() or "")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LIKENESS_CACHE_DIR"] = cache  # as on a machine that has not checked them before
        check_s = seconds_of(partial(check_version, collection, manifest))
        segments = open_segments(collection, manifest, Path(cache), verify=False)
    return spent(partial(GroundTruth.sample, segments))[2], check_s


def _search(location: str) -> tuple[float, float, float]:
    """Milliseconds on one core: a query in a batch, a single query (median), finding a row by its id (median)."""
    faiss.omp_set_num_threads(1)
    searcher, queries = Searcher.open(Collection.open(location)), Clustered().queries(_QUERIES)
    segments = searcher.segments
    segments.search(queries, _K)  # read mapped pages once
    batches = [seconds_of(partial(segments.search, queries, _K)) for _ in range(3)]
    singles = [seconds_of(partial(searcher.search, query[np.newaxis], _K)) for query in queries[:_SINGLES]]
    ids = [pa.array([str(number)], pa.string()) for number in range(5)]
    lookups = [seconds_of(partial(segments.positions, each)) for each in ids]
    return min(batches) / len(queries) * 1e3, float(np.median(singles)) * 1e3, float(np.median(lookups)) * 1e3


def scan(rows: int) -> Costs:
    """Exact search on one core, over vectors in memory."""
    data = Clustered()
    vectors, queries = data.array(rows), data.queries(64)
    faiss.omp_set_num_threads(1)
    batch = seconds_of(partial(exact, queries, vectors, _K)) / len(queries) * 1e3
    singles = [seconds_of(partial(exact, query[np.newaxis], vectors, _K)) for query in queries[:20]]
    what = f"scan {rows:,} vectors of {DIM} dimensions in memory for a query"
    return {(what, "core ms"): {"in batches": batch, "by itself (p50)": float(np.median(singles)) * 1e3}}
