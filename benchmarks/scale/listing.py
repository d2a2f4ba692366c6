"""Costs of listing a source and comparing it with the live rows, in time and the driver's memory."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.common.process import in_new_process, peak_rss
from benchmarks.reembed.rows import Compared, compare_listed, write_listed
from benchmarks.scale.costs import Cost
from jobs.sources.list_images import list_images

_FOLDER = 1_000  # files per folder


def listing(folder: Path, *, files: int, rows: int) -> list[Cost]:
    """Marginal costs: the difference between these numbers of files and rows and a tenth of them, each measured in a
    new process.
    """
    listed, compared = [], []
    for share in (10, 1):
        home = folder / f"listing-{share}"
        _touch(home / "pictures", files // share)
        listed.append(in_new_process(_list, home / "pictures"))
        write_listed(home, rows // share)
        compared.append(in_new_process(compare_listed, home, rows // share))
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


def _list(pictures: Path) -> Compared:
    started = time.perf_counter()
    list_images(str(pictures))
    return Compared(seconds=time.perf_counter() - started, peak_rss=peak_rss())


def _marginal(what: str, measured: list[Compared], more: int) -> list[Cost]:
    """Costs of each of the `more` units of the second measurement; not below 0, whatever the machine's load."""
    few, many = measured
    seconds, size = max(many.seconds - few.seconds, 0.0) / more, max(many.peak_rss - few.peak_rss, 0) / more
    return [
        Cost(what=what, unit="s a million", costs={"": 1e6 * seconds}),
        Cost(what=f"{what}: the driver's memory", unit="bytes each", costs={"": size}),
    ]
