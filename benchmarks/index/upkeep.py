"""Measure builds, updates, kinds of query and filters of an index."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.common.clustered import GROUPS, Clustered, Rows, Vectors, add_rows
from benchmarks.common.process import limited_memory, memory_status, peak_rss, seconds_of
from benchmarks.index.recall import exact, recall
from index.builder.build_index import build_index
from index.builder.segment import write_ann
from index.collection import Collection
from index.collection.layout import ANN, SEGMENTS, VECTORS
from index.collection.records import IndexSettings, VersionManifest
from index.queries import QueryKind
from index.search import Searcher
from index.segments.kinds import new_index
from index.segments.vector_file import VectorFile

_K = 10


@dataclass(frozen=True, kw_only=True)
class Built:
    """A build: seconds, CPU seconds, and peak memory of its process in bytes, with and without pages of files."""

    manifest: VersionManifest
    seconds: float
    cpu_seconds: float
    peak_rss: int
    peak_anonymous: int


def build(location: str, settings: IndexSettings, data: Clustered, limit: int | None = None) -> Built:
    """Measure `build_index` from all rows, optionally with a hard limit on memory, pages of files included."""
    collection = Collection.open(location)
    with limited_memory(limit) if limit else nullcontext(), _watched() as peaks:
        started, cpu = time.perf_counter(), time.process_time()
        manifest = build_index(collection, settings, rebuild=True, texts=lambda: data.kind("text", 400, 4_000))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Built(
        manifest=manifest, seconds=seconds, cpu_seconds=cpu, peak_rss=peaks["rss"], peak_anonymous=peaks["anonymous"]
    )


def train_and_add(collection: Collection, manifest: VersionManifest, threads: int) -> float:
    """Seconds from the vectors on disk to the approximate indexes on disk, over all segments that have one."""
    faiss.omp_set_num_threads(threads)
    seconds = 0.0
    for record in manifest.segments:
        if ANN not in record.files:
            continue
        with tempfile.TemporaryDirectory() as name:
            home = collection.storage.local_path(f"{SEGMENTS}/{record.name}")
            (Path(name) / VECTORS).symlink_to(Path(str(home)) / VECTORS)
            started = time.perf_counter()
            size = min(record.ntotal, new_index(record.factory, manifest.dim).training_rows)
            sample = VectorFile(Path(name) / VECTORS, record.ntotal, manifest.dim).sample(size)
            write_ann(Path(name), record.factory, record.ntotal, sample)
            seconds += time.perf_counter() - started
    return seconds


@dataclass(frozen=True, kw_only=True)
class Updates:
    """Seconds and CPU seconds of each update; segments and recall@10 after the last."""

    seconds: list[float]
    cpu_seconds: list[float]
    segments: int
    recall: float


def update_often(collection: Collection, data: Clustered, rows: int, *, times: int, queries: Vectors) -> Updates:
    """Add 1%, delete 1% and update the index, `times` times. Writing the rows is not timed."""
    share = rows // 100
    rng = np.random.default_rng(data.seed)
    live = np.ones(rows + times * share, bool)
    live[rows:] = False
    seconds, cpu_seconds = [], []
    for number in range(times):
        deleted = rng.choice(np.flatnonzero(live), share, replace=False)
        fresh = range(rows + number * share, rows + (number + 1) * share)
        live[deleted], live[fresh.start : fresh.stop] = False, True
        add_rows(collection, data, fresh, deletes=deleted.tolist())
        cpu = time.process_time()
        seconds.append(seconds_of(partial(build_index, collection)))
        cpu_seconds.append(time.process_time() - cpu)
    remaining = np.flatnonzero(live)
    truth = remaining[exact(queries, data.array(len(live))[remaining], _K)[1]]
    searcher = Searcher.open(collection)
    found = rows_found(searcher, queries, None)
    return Updates(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        segments=len(searcher.segments.parts),
        recall=recall(found, truth),
    )


@dataclass(frozen=True, kw_only=True)
class KindFigures:
    """A kind of query: recall@10 of fresh queries and in the manifest, and CPU microseconds of a query in a batch."""

    kind: str
    recall: float
    manifest: float
    target: float
    width: float
    cpu_us: float


def kinds_of_query(searcher: Searcher, data: Clustered, vectors: Vectors, count: int = 1_000) -> list[KindFigures]:
    """Measure each kind, on one thread, with queries that tuning has not seen."""
    figures, manifest = [], searcher.manifest
    for kind, record in manifest.kinds.items():
        queries = data.kind(kind, count)
        truth = exact(queries, vectors, _K)[1]
        searcher.segments.search(queries, _K, width=record.width)
        started = time.process_time()
        positions = searcher.segments.search(queries, _K, width=record.width).positions
        cpu_us = (time.process_time() - started) / count * 1e6
        rows = searcher.segments.ids(positions.ravel()).astype(np.int64).reshape(positions.shape)
        figures.append(
            KindFigures(
                kind=kind,
                recall=recall(rows, truth),
                manifest=record.recall,
                target=manifest.settings.target_of(kind),
                width=record.width,
                cpu_us=cpu_us,
            )
        )
    return figures


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """Recall@10 with a filter on a column that `share` of the rows pass."""

    kind: QueryKind
    column: str
    share: float
    rows: int
    recall: float


def filtered(
    searcher: Searcher, vectors: Vectors, column: str, values: Rows, queries: Vectors, share: float, kind: QueryKind
) -> Filtered:
    """Search among a share of the rows; `values`, from 0 to 999, are the column's values for `vectors`."""
    width = round(share * GROUPS)
    passes = np.flatnonzero(values < width)
    truth = passes[exact(queries, vectors[passes], _K)[1]]
    found = rows_found(searcher, queries, {column: {"$lt": width}}, kind)
    return Filtered(kind=kind, column=column, share=share, rows=len(passes), recall=recall(found, truth))


def rows_found(searcher: Searcher, queries: Vectors, where: dict[str, Any] | None, kind: QueryKind = "image") -> Rows:
    matches = searcher.search(queries, _K, filter=where, kind=kind)
    return np.array([[int(match.image_id) for match in found] for found in matches])


@contextmanager
def _watched() -> Iterator[dict[str, int]]:
    """Peak memory of this process during the block, in bytes, with and without mapped pages of files."""
    peaks = {"rss": 0, "anonymous": 0}
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.01):
            peaks["anonymous"] = max(peaks["anonymous"], memory_status("RssAnon"))

    watcher = threading.Thread(target=sample)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()
        peaks["rss"] = peak_rss()
