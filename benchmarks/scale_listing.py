"""What listing a source and comparing it with the live rows costs, in time and in the driver's memory."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.compute as pc

from benchmarks.reembed_rows import compare_listed, usual_images, write_listed
from benchmarks.scale_costs import Listing
from benchmarks.upkeep import in_new_process, peak_rss
from jobs.sources import list_images

_FOLDER = 1_000  # files of one


def listing(folder: Path, *, files: int, rows: int, manifest_bytes_per_file: float) -> Listing:
    """Of so many files in folders, and of so many rows; each in a new process."""
    pictures = folder / "pictures"
    for first in range(0, files, _FOLDER):
        part = pictures / f"album-{first // _FOLDER:04}"
        part.mkdir(parents=True)
        for number in range(first, min(first + _FOLDER, files)):
            (part / f"IMG_{number:07}.jpg").touch()
    listing_s, listing_bytes = in_new_process(_list, pictures)
    write_listed(folder, rows)
    bare = in_new_process(_bare)
    compared = in_new_process(compare_listed, folder, rows)
    return Listing(
        listed=files,
        listing_s=listing_s / files,
        listing_bytes=listing_bytes / files,
        compared=rows,
        comparing_s=compared.seconds / rows,
        comparing_bytes=(compared.peak_rss - bare) / rows,
        manifest_bytes_per_file=manifest_bytes_per_file,
        id_bytes=float(pc.mean(pc.binary_length(usual_images(range(_FOLDER))["image_id"])).as_py()),
    )


def _bare() -> int:
    """The most bytes of a process that has imported as much and done nothing."""
    return peak_rss()


def _list(pictures: Path) -> tuple[float, int]:
    """Seconds, and the most bytes that it took."""
    before, started = peak_rss(), time.perf_counter()
    list_images(str(pictures))
    return time.perf_counter() - started, peak_rss() - before
