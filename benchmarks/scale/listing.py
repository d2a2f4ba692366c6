"""What listing a source and comparing it with the live rows costs, in time and in the driver's memory."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.index.upkeep import in_new_process, peak_rss
from benchmarks.reembed.rows import compare_listed, write_listed
from benchmarks.scale.costs import Listing
from jobs.sources.list_images import list_images

_FOLDER = 1_000  # files of one


def listing(folder: Path, *, files: int, rows: int, manifest_bytes_per_file: float) -> Listing:
    """Of so many files in folders, and of so many rows: what they take beyond a tenth of them, since a process takes
    some for none. Each in a new process.
    """
    listed, compared = [], []
    for share in (10, 1):
        home = folder / f"listing-{share}"
        _touch(home / "pictures", files // share)
        listed.append(in_new_process(_list, home / "pictures"))
        write_listed(home, rows // share)
        compared.append(in_new_process(compare_listed, home, rows // share))
    more_files, more_rows = files - files // 10, rows - rows // 10
    return Listing(
        listed=files,
        listing_s=_beyond(listed[0][0], listed[1][0], more_files),
        listing_bytes=_beyond(listed[0][1], listed[1][1], more_files),
        compared=rows,
        comparing_s=_beyond(compared[0].seconds, compared[1].seconds, more_rows),
        comparing_bytes=_beyond(compared[0].peak_rss, compared[1].peak_rss, more_rows),
        manifest_bytes_per_file=manifest_bytes_per_file,
    )


def _touch(pictures: Path, files: int) -> None:
    for first in range(0, files, _FOLDER):
        part = pictures / f"album-{first // _FOLDER:04}"
        part.mkdir(parents=True)
        for number in range(first, min(first + _FOLDER, files)):
            (part / f"IMG_{number:07}.jpg").touch()


def _list(pictures: Path) -> tuple[float, int]:
    """Seconds, and the most bytes that the process held."""
    started = time.perf_counter()
    list_images(str(pictures))
    return time.perf_counter() - started, peak_rss()


def _beyond(few: float, many: float, units: int) -> float:
    """Of each unit that `many` has more. No less than what is nothing, for few units on a busy machine: others divide
    by it.
    """
    return max(many - few, 1e-6) / units
