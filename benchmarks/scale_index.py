"""What a segment costs: to build, to check, to hold in memory, to ask."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa

from benchmarks.clustered import exact
from benchmarks.scale_costs import Index, Scan
from benchmarks.upkeep import Built, build, in_new_process, serving_memory
from index.build.ground_truth import GroundTruth
from index.collection import Collection
from index.collection.layout import ANN, ROWS, VECTORS
from index.collection.records import IndexSettings
from index.search import Searcher
from index.segments.segment import TUNED_K
from index.versions.current import check_version
from index.versions.opening import open_segments
from jobs.demo.clustered import DIM, Clustered, add_rows

KINDS = FAST, LEAN = "fast", "lean"
"""Ranked by 8-bit vectors in memory, as chosen where nothing limits it; and the least memory, ranked from the disk."""

_K = 10
_LEAN_BYTES = 140  # of a row: too few for 8-bit vectors of 512 dimensions
_QUERIES = 1_000
_SINGLES = 300
_MILLISECONDS = 1e3


def indexes(folder: Path, *, rows: int, latency_ms: float) -> list[Index]:
    """Both kinds of index of one set. With `latency_ms` a set is to be so large that it is not searched exactly."""
    collection = Collection.create_or_open(str(folder))
    add_rows(collection, Clustered(), range(rows))
    limits = {FAST: None, LEAN: _LEAN_BYTES * rows}
    return [
        _index(kind, collection, IndexSettings(latency_ms=latency_ms, max_memory=limits[kind], segment_rows=rows))
        for kind in KINDS
    ]


def _index(kind: str, collection: Collection, settings: IndexSettings) -> Index:
    built, build_core_s = in_new_process(_build, collection.location, settings)
    (segment,) = built.manifest.segments
    queries = Clustered().queries(_QUERIES)
    memory = in_new_process(serving_memory, collection.location, queries)
    truth_core_s, check_s = in_new_process(_last_pass, collection.location)
    core_ms, p50_ms, lookup_ms = in_new_process(_asked, collection.location)
    return Index(
        kind=kind,
        rows=segment.ntotal,
        dim=DIM,
        factory=segment.factory,
        recall=built.manifest.recall["10"],
        build_s=built.seconds,
        build_core_s=build_core_s,
        peak_bytes=built.peak_rss,
        peak_own_bytes=built.peak_anonymous,
        truth_core_s=truth_core_s,
        check_s=check_s,
        ann_bytes=segment.files[ANN].size,
        vectors_bytes=segment.files[VECTORS].size,
        rows_bytes=segment.files[ROWS].size,
        own_bytes=memory["anonymous"],
        mapped_bytes=memory[ANN],
        core_ms=core_ms,
        p50_ms=p50_ms,
        candidates=round(segment.parameters["rescore"] * TUNED_K),
        lookup_ms=lookup_ms,
    )


def _build(location: str, settings: IndexSettings) -> tuple[Built, float]:
    """Built from all rows; and seconds of all cores together."""
    started = time.process_time()
    built = build(location, settings)
    return built, time.process_time() - started


def _last_pass(location: str) -> tuple[float, float]:
    """What one process does over all segments at the end of a build: core seconds of the exact neighbours of the
    held-out queries, and seconds of checking the files.
    """
    collection = Collection.open(location)
    manifest = collection.read_version(collection.current() or "")
    started = time.perf_counter()
    check_version(collection, manifest)
    check_s = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as cache:
        segments = open_segments(collection, manifest, Path(cache), verify=False)
    started = time.process_time()
    GroundTruth.sample(segments)
    return time.process_time() - started, check_s


def _asked(location: str) -> tuple[float, float, float]:
    """Milliseconds on one core: of a query in a batch, of a query by itself (median), of finding a row by its id."""
    faiss.omp_set_num_threads(1)
    searcher, queries = Searcher.open(Collection.open(location)), Clustered().queries(_QUERIES)
    searcher.segments.search(queries, _K)  # what is mapped has to be read once
    batches, singles, lookups = [], [], []
    for _ in range(3):
        started = time.perf_counter()
        searcher.segments.search(queries, _K)
        batches.append(time.perf_counter() - started)
    for query in queries[:_SINGLES]:
        started = time.perf_counter()
        searcher.search(query[np.newaxis], _K)
        singles.append(time.perf_counter() - started)
    for number in range(5):
        started = time.perf_counter()
        searcher.segments.positions(pa.array([str(number)], pa.string()))
        lookups.append(time.perf_counter() - started)
    return (
        min(batches) / len(queries) * _MILLISECONDS,
        float(np.median(singles)) * _MILLISECONDS,
        float(np.median(lookups)) * _MILLISECONDS,
    )


def scan(rows: int) -> Scan:
    """Exact search on one core, over vectors in memory."""
    data = Clustered()
    vectors, queries = data.array(rows), data.queries(64)
    faiss.omp_set_num_threads(1)
    started = time.perf_counter()
    exact(queries, vectors, _K)
    batch = time.perf_counter() - started
    singles = []
    for query in queries[:20]:
        started = time.perf_counter()
        exact(query[np.newaxis], vectors, _K)
        singles.append(time.perf_counter() - started)
    return Scan(
        rows=rows,
        dim=DIM,
        core_ms=batch / len(queries) * _MILLISECONDS,
        p50_ms=float(np.median(singles)) * _MILLISECONDS,
    )
