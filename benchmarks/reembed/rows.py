"""A million listed images and their live rows, like those of a bucket of photographs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common.process import peak_rss
from benchmarks.common.rows import MODIFIED, SOURCE, model_of, usual_images, usual_rows
from index.collection import Collection
from jobs.planning.changes import compare
from jobs.planning.decide import PlannedJob
from jobs.sources.list_images import list_images
from jobs.sources.stored_listing import Listing

LISTED = 1_000_000
_BLOCK = 256  # rows of a file, as `embed` writes them
_MODEL = model_of(8)  # comparing reads no vectors


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Seconds of listing and comparing, and the peak memory of the process in bytes."""

    seconds: float
    peak_rss: int


def write_listed(folder: Path, rows: int = LISTED) -> None:
    """Write a list of images, `list.parquet`, and a collection of them in files of 256 rows."""

    def tables() -> Iterator[pa.Table]:
        for first in range(0, rows, _BLOCK):
            table = usual_rows(range(first, min(first + _BLOCK, rows)), _MODEL.dim)
            hashes = pa.array([f"{first + row:064x}" for row in range(table.num_rows)], pa.string())
            yield table.append_column("content_hash", hashes)

    Collection.create_or_open(str(folder / "collection")).add_run(SOURCE, _MODEL, tables())
    images = usual_images(range(rows))
    listed = images.select(["image_id", "uri"]).rename_columns(["id", "uri"])
    pq.write_table(listed, folder / "list.parquet")


def compare_listed(folder: Path, rows: int = LISTED) -> Compared:
    """List the images and compare them with the live rows; nothing has changed."""
    started = time.perf_counter()
    listing = list_images(str(folder / "list.parquet")).read()
    listed_in = time.perf_counter() - started
    # A bucket also lists sizes and times, which are then compared as well.
    sizes = pa.array(np.arange(rows) + 100_000)
    modified = pa.array(np.full(rows, MODIFIED.timestamp() * 1e6, np.int64)).cast(pa.timestamp("us", tz="UTC"))
    listing = listing.set_column(2, "size", sizes).set_column(3, "modified", modified)
    started = time.perf_counter()
    change = compare(
        Listing.of([listing]),
        Collection.open(str(folder / "collection")).snapshot(),
        PlannedJob(source=SOURCE, model=_MODEL, may_delete=True),
    )
    seconds = listed_in + time.perf_counter() - started
    if change.counts.unchanged != rows:
        raise RuntimeError(f"expected {rows:,} rows without a change, got {change.counts}")
    return Compared(seconds=seconds, peak_rss=peak_rss())
