"""What a nightly job costs by the share of changed images: `python -m benchmarks.reembed [--quick]`.

Each night is a `likeness reembed` of small files with the demo model, from the command to the live version. In
addition, a million listed rows are compared with a million live ones in a new process.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.common.process import in_new_process, likeness
from benchmarks.common.report import Report, run
from benchmarks.reembed.rows import LISTED, Compared, compare_listed, write_listed

FILES = 20_000
SHARES = (0.0, 0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True, kw_only=True)
class Night:
    """Seconds of a job from start to end, and of all its workers: fetching, decoding, the model, writing."""

    embedded: int
    seconds: float
    workers: float


def draw(folder: Path, numbers: range, seed: int) -> None:
    """Write small PNGs, all different; those with the same numbers are overwritten."""
    rng = np.random.default_rng(seed)
    for number in numbers:
        path = folder / f"{number // 1000:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC).save(path, compress_level=1)


def run_night(expected: int, pictures: Path, collection: Path, *options: str) -> Night:
    """Run one job. Raises RuntimeError if it does not embed the expected number of images."""
    done = likeness("reembed", str(pictures), str(collection), "--format", "json", *options)
    report = json.loads(done.printed)
    if report["embedded"] != expected:
        raise RuntimeError(f"expected {expected:,} images to be embedded, got {report['embedded']}")
    return Night(embedded=expected, seconds=done.seconds, workers=sum(report["worker_seconds"].values()))


def judge(full: Night, nights: Mapping[float, Night], compared: Compared, report: Report) -> None:
    """Add the tables and the bars of a night with few changes."""
    labelled = {"first run": full, **{f"{share:.1%}": night for share, night in nights.items()}}
    report.table(
        f"seconds of a night over {FILES:,} files",
        [
            {"changed": label, "embedded": night.embedded, "all": night.seconds, "workers'": night.workers}
            for label, night in labelled.items()
        ],
    )
    peak_gb = compared.peak_rss / 1e9
    report.table(f"{LISTED:,} rows listed and compared", [{"seconds": compared.seconds, "peak memory, GB": peak_gb}])
    some = nights[0.01]
    report.at_most("1%: seconds ÷ those of the first run", some.seconds / full.seconds, 0.10)
    report.at_most("1%: all workers' seconds ÷ those of the first run", some.workers / full.workers, 0.03)
    report.at_most(f"{LISTED:,} rows: listing and comparing, s", compared.seconds, 60)
    report.at_most(f"{LISTED:,} rows: peak memory, GB", peak_gb, 2)


def main(report: Report, folder: Path, options: Any) -> None:
    write_listed(folder / "listed")
    compared = in_new_process(compare_listed, folder / "listed")
    pictures, collection = folder / "pictures", folder / "collection"
    draw(pictures, range(FILES), seed=0)
    full = run_night(FILES, pictures, collection, "--model", "demo")
    nights = {}
    for seed, share in enumerate(SHARES[:3] if options.quick else SHARES, start=1):
        changed = round(FILES * share)
        draw(pictures, range(changed), seed=seed)
        nights[share] = run_night(changed, pictures, collection)
    judge(full, nights, compared, report)


if __name__ == "__main__":
    run("reembed", __doc__, main, "without the nights with 10 and 100 in 100 changed")
