"""A million listed images and their live rows, as a bucket of photographs would have them."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.index.upkeep import peak_rss
from index.collection import Collection
from index.collection.records import ModelRecord, RunManifest
from jobs.planning.changes import compare
from jobs.sources.list_images import list_images
from jobs.sources.listing import listing_table

LISTED = 1_000_000
_BLOCK = 256  # rows of a file, as `embed` writes them
_DIM = 8  # comparing reads no vectors
_MODEL = ModelRecord(id="listed", revision=None, fingerprint="0" * 64, dim=_DIM)
_SOURCE = "s3://bucket/photos"
_MODIFIED = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Seconds of listing and comparing, and the most bytes that the process held."""

    seconds: float
    peak_rss: int


def write_listed(folder: Path, rows: int = LISTED) -> None:
    """A list of the images, `list.parquet`, and a collection of them in files of 256 rows."""
    collection = Collection.create_or_open(str(folder / "collection"))
    start = collection.start_run(_SOURCE, _MODEL)
    rng = np.random.default_rng(0)
    files = []
    for first in range(0, rows, _BLOCK):
        images = usual_images(range(first, min(first + _BLOCK, rows)))
        vectors = rng.standard_normal((images.num_rows, _DIM)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        hashes = pa.array([f"{first + row:064x}" for row in range(images.num_rows)], pa.string())
        embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), _DIM)
        table = images.append_column("content_hash", hashes).append_column("embedding", embedding)
        files.append(collection.write_rows(start.run_id, f"0001-{first:07}", table))
    collection.commit_run(
        RunManifest(
            **start.model_dump(exclude={"model"}), model=_MODEL, finished_at=start.started_at, files=files, counts={}
        )
    )
    images = usual_images(range(rows))
    listed = images.select(["image_id", "uri"]).rename_columns(["id", "uri"])
    pq.write_table(listed, folder / "list.parquet")


def compare_listed(folder: Path, rows: int = LISTED) -> Compared:
    """List the images and compare them with the live rows; nothing has changed."""
    started = time.perf_counter()
    listing = list_images(str(folder / "list.parquet"))
    listed_in = time.perf_counter() - started
    # A bucket says sizes and times too, which are then compared as well.
    sizes = pa.array(np.arange(rows) + 100_000)
    modified = pa.array(np.full(rows, _MODIFIED.timestamp() * 1e6, np.int64)).cast(pa.timestamp("us", tz="UTC"))
    listing = listing.set_column(2, "size", sizes).set_column(3, "modified", modified)
    started = time.perf_counter()
    change = compare(
        listing, Collection.open(str(folder / "collection")).snapshot(), _SOURCE, _MODEL, delete=True, verify_hash=False
    )
    seconds = listed_in + time.perf_counter() - started
    if change.counts.unchanged != rows:
        raise RuntimeError(f"expected {rows:,} rows without a change, got {change.counts}")
    return Compared(seconds=seconds, peak_rss=peak_rss())


def usual_images(numbers: range) -> pa.Table:
    """The listing of some of the images."""
    ids = [f"2026/album-{number // 1000:04}/IMG_{number:07}.jpg" for number in numbers]
    return listing_table(
        {
            "image_id": ids,
            "uri": [f"{_SOURCE}/{image_id}" for image_id in ids],
            "size": [100_000 + number for number in numbers],
            "modified": [_MODIFIED] * len(ids),
        },
        {},
    )
