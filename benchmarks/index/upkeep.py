"""Measure builds and updates of an index."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.common.clustered import Clustered, Rows, Vectors
from benchmarks.common.process import memory_status, peak_rss, seconds_of, spent
from benchmarks.common.report import Report
from index.builder.build_index import build_index
from index.builder.segment import write_ann
from index.collection import Collection
from index.collection.layout import ANN, SEGMENTS, VECTORS
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import SegmentRecord, VersionManifest
from index.queries import QueryKind
from index.search import Searcher
from index.segments.kinds.registry import new_index
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


def build(location: str, settings: IndexSettings, data: Clustered) -> Built:
    """Measure `build_index` from all rows."""
    texts = partial(data.kind, "text", 400, 4_000)
    work = partial(build_index, Collection.open(location), settings, rebuild=True, texts=texts)
    with _watched() as anonymous:
        manifest, seconds, cpu = spent(work)
    return Built(
        manifest=manifest, seconds=seconds, cpu_seconds=cpu, peak_rss=peak_rss(), peak_anonymous=max(anonymous)
    )


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Samples of this process's memory during the block in bytes, without mapped pages of files."""
    samples, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.01):
            samples.append(memory_status("RssAnon"))

    watcher = threading.Thread(target=sample)
    watcher.start()
    try:
        yield samples
    finally:
        done.set()
        watcher.join()


def train_and_add(collection: Collection, manifest: VersionManifest, threads: int) -> float:
    """Seconds from the vectors on disk to the approximate indexes on disk, over all segments that have one."""
    faiss.omp_set_num_threads(threads)

    def write(record: SegmentRecord, folder: Path) -> None:
        size = min(record.ntotal, new_index(record.factory, manifest.dim).training_rows)
        sample = VectorFile(folder / VECTORS, record.ntotal, manifest.dim).sample(size)
        write_ann(folder, record.factory, record.ntotal, sample)

    seconds = 0.0
    for record in (each for each in manifest.segments if ANN in each.files):
        with tempfile.TemporaryDirectory() as name:
            home = collection.storage.local_path(f"{SEGMENTS}/{record.name}")
            (Path(name) / VECTORS).symlink_to(Path(str(home)) / VECTORS)
            seconds += seconds_of(partial(write, record, Path(name)))
    return seconds


def report_build(report: Report, built: Built, seconds: float, at_size: bool) -> None:
    """Costs of a build; `seconds` are for training and adding only, from disk to disk."""
    report.values(
        "seconds to build on all cores",
        {
            "train, add and write, from vectors on disk": seconds,
            "complete, from Parquet to a tuned, measured, checksummed version": built.seconds,
            "CPU seconds of the complete build": built.cpu_seconds,
        },
    )
    if at_size:
        # Without mapped pages of files, which Linux keeps in memory only until it needs the space.
        report.at_most("GB to build beyond the index", (built.peak_anonymous - built.manifest.memory) / 1e9, 1.5)


def rows_found(searcher: Searcher, queries: Vectors, where: dict[str, Any] | None, kind: QueryKind = "image") -> Rows:
    matches = searcher.search(queries, _K, filter=where, kind=kind)
    return np.array([[int(match.image_id) for match in found] for found in matches])
