"""Costs of listing a source and comparing it with the live rows, in time and the driver's memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common.process import in_new_process, peak_rss, spent
from benchmarks.common.rows import MODIFIED, SOURCE, model_of, usual_images, usual_rows
from benchmarks.scale.costs import Cost
from index.collection import Collection
from jobs.planning.changes import compare
from jobs.planning.decide import PlannedJob
from jobs.sources.list_images import list_images
from jobs.sources.stored_listing import Listing

_FOLDER = 1_000  # files per folder
_BLOCK = 256  # rows of a file, as `embed` writes them
_MODEL = model_of(8)  # comparing reads no vectors

Taken = tuple[float, int]
"""Seconds, and the peak memory of the process in bytes."""


def listing(folder: Path, *, files: int, rows: int) -> list[Cost]:
    """Marginal costs: the difference between these numbers of files and rows and a tenth of them, each measured in a
    new process.
    """
    listed, compared = [], []
    for share in (10, 1):
        home = folder / f"listing-{share}"
        _touch(home / "pictures", files // share)
        listed.append(in_new_process(_list, home / "pictures"))
        _write_listed(home, rows // share)
        compared.append(in_new_process(_compare, home, rows // share))
    return [
        *_marginal(f"list {files:,} files of a folder", listed, files - files // 10),
        *_marginal(f"list {rows:,} rows and compare them with live ones", compared, rows - rows // 10),
    ]


def _touch(pictures: Path, files: int) -> None:
    for first in range(0, files, _FOLDER):
        part = pictures / f"album-{first // _FOLDER:04}"
        part.mkdir(parents=True)
        for number in range(first, min(first + _FOLDER, files)):
            (part / f"IMG_{number:07}.jpg").touch()


def _list(pictures: Path) -> Taken:
    _, seconds, _ = spent(partial(list_images, str(pictures)))
    return seconds, peak_rss()


def _write_listed(folder: Path, rows: int) -> None:
    """Write a list of images, `list.parquet`, and a collection of them."""

    def tables() -> Iterator[pa.Table]:
        for first in range(0, rows, _BLOCK):
            table = usual_rows(range(first, min(first + _BLOCK, rows)), _MODEL.dim)
            hashes = pa.array([f"{first + row:064x}" for row in range(table.num_rows)], pa.string())
            yield table.append_column("content_hash", hashes)

    Collection.create_or_open(str(folder / "collection")).add_run(SOURCE, _MODEL, tables())
    listed = usual_images(range(rows)).select(["image_id", "uri"]).rename_columns(["id", "uri"])
    pq.write_table(listed, folder / "list.parquet")


def _compare(folder: Path, rows: int) -> Taken:
    """List the images and compare them with the live rows; nothing has changed."""
    listed, listed_s, _ = spent(lambda: list_images(str(folder / "list.parquet")).read())
    # A bucket also lists sizes and times, which are then compared as well.
    sizes = pa.array(np.arange(rows) + 100_000)
    modified = pa.array(np.full(rows, MODIFIED.timestamp() * 1e6, np.int64)).cast(pa.timestamp("us", tz="UTC"))
    listed = listed.set_column(2, "size", sizes).set_column(3, "modified", modified)
    collection = Collection.open(str(folder / "collection"))
    job = PlannedJob(source=SOURCE, model=_MODEL, may_delete=True)
    change, compared_s, _ = spent(lambda: compare(Listing.of([listed]), collection.snapshot(), job))
    if change.counts.unchanged != rows:
        raise RuntimeError(f"expected {rows:,} rows without a change, got {change.counts}")
    return listed_s + compared_s, peak_rss()


def _marginal(what: str, measured: list[Taken], more: int) -> list[Cost]:
    """Costs of each of the `more` units of the second measurement; not below 0, whatever the machine's load."""
    seconds, size = (max(many - few, 0) / more for few, many in zip(*measured, strict=True))
    return [
        Cost(what=what, unit="s a million", costs={"": 1e6 * seconds}),
        Cost(what=f"{what}: the driver's memory", unit="bytes each", costs={"": size}),
    ]
