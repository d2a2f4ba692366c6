"""Searches of an index that is larger than memory: `python -m benchmarks.index.short_memory [--rows 300000] [--quick]`.

The same vectors, of 64 dimensions, in 1, 3 and 10 segments. Single queries are searched in a process that may use all
memory, and in one that may use a quarter of the index's size for what it maps, with nothing of it in memory at first.
A read is a page of 4 KiB that comes from disk. Memory is limited by a control group of Linux, if this process may make
one.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.common.clustered import BLOCK, MODEL, Clustered, Rows, Vectors, index_rows
from benchmarks.common.process import bytes_read, can_limit_memory, in_new_process, limited_memory, seconds_of
from benchmarks.common.report import Report, Row, run
from benchmarks.index.recall import exact, recall
from index.collection import Collection
from index.collection.layout import SEGMENTS
from index.collection.records.index_settings import IndexSettings
from index.collection.rows import EMBEDDING, vectors_of
from index.search import Searcher

_DIM, _K, _PAGE = 64, 10, 4096
_SEGMENTS = (1, 3, 10)
_ROWS, _QUICK_ROWS = 300_000, 100_000
_QUERIES = 600  # the first half brings pages into memory
_LATENCY_MS = 0.1  # so short that no segment is searched exactly
_SHARE = 4


def main(report: Report, folder: Path, options: Any) -> None:
    rows = _QUICK_ROWS if options.quick else options.rows
    data = Clustered()
    tables = [data.table(first, min(first + BLOCK, rows), _DIM) for first in range(0, rows, BLOCK)]
    vectors = np.concatenate([vectors_of(table.column(EMBEDDING)) for table in tables])
    queries = np.ascontiguousarray(data.queries(_QUERIES)[:, :_DIM])
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    truth = exact(queries, vectors, _K)[1]
    found, size = {}, 0
    for count in _SEGMENTS:
        location = str(folder / str(count))
        size = in_new_process(make, location, rows, count)
        limits = (None, size // _SHARE) if can_limit_memory() else (None,)
        found[count] = [in_new_process(search, location, queries, truth, limit) for limit in limits]
    judge(report.about(f"{rows:,} × {_DIM}, {size / 1e6:.0f} MB"), found)


def make(location: str, rows: int, segments: int) -> int:
    """Build an index; returns the bytes that a server maps."""
    settings = IndexSettings(latency_ms=_LATENCY_MS, segment_rows=-(-rows // segments))
    manifest = index_rows(location, range(rows), settings=settings, model=MODEL.model_copy(update={"dim": _DIM}))
    return sum(file.size for segment in manifest.segments for file in segment.files.values())


def search(location: str, queries: Vectors, truth: Rows, limit: int | None) -> dict[str, float]:
    """Search one by one, with `limit` bytes of memory for what is not yet in memory. Returns the median latency,
    recall@10, and the pages read from disk for each query.
    """
    faiss.omp_set_num_threads(1)
    searcher = Searcher.open(Collection.open(location))
    seconds, ids = [], []
    with limited_memory(limit) if limit else nullcontext():
        _load_or_drop(Path(location) / SEGMENTS, load=limit is None)
        for number, query in enumerate(queries):
            if number == len(queries) // 2:
                read = bytes_read("read_bytes")
            asked = partial(searcher.search, query[np.newaxis], _K, kind="image")
            seconds.append(seconds_of(lambda: ids.append([int(match.image_id) for match in asked()[0]])))  # noqa: B023
        read = bytes_read("read_bytes") - read
    late = seconds[len(queries) // 2 :]
    p50_ms = float(np.median(late)) * 1e3
    return {"p50 ms": p50_ms, "recall@10": recall(np.array(ids), truth), "reads": read / _PAGE / len(late)}


def _load_or_drop(folder: Path, *, load: bool) -> None:
    """Have the system read the pages of these files into memory, or forget them."""
    for path in folder.rglob("*.*"):
        with path.open("rb") as file:
            if load:
                file.read()
            else:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def judge(report: Report, found: dict[int, list[dict[str, float]]]) -> None:
    table: list[Row] = [
        {"segments": count, "memory": name, **each}
        for count, several in found.items()
        for name, each in zip(("in memory", "a quarter of it"), several, strict=False)
    ]
    report.table("single queries", table)
    recalls = [each["recall@10"] for several in found.values() for each in several]
    report.at_least("recall@10, lowest", min(recalls), 0.99)
    if can_limit_memory():
        for count, (whole, quarter) in found.items():
            report.at_most(f"{count} segments: p50 ÷ that in memory", quarter["p50 ms"] / whole["p50 ms"], 2)
        few, many = (found[count][1]["reads"] for count in (_SEGMENTS[0], _SEGMENTS[-1]))
        report.at_most(f"reads a query in {_SEGMENTS[-1]} segments ÷ those in one", many / few, 1.2)


if __name__ == "__main__":
    rows = {"--rows": {"type": int, "default": _ROWS, "help": "rows of the index"}}
    run("short_memory", __doc__, main, f"{_QUICK_ROWS:,} rows", rows)
