"""What a nightly job costs by the share of changed images: `python -m benchmarks.reembed [--quick]`.

Each night is a `likeness reembed` of small files with the demo model, from the command to the live version.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.common.process import likeness
from benchmarks.common.report import Report, run
from benchmarks.common.small_pictures import draw

FILES = 20_000
SHARES = (0.0, 0.001, 0.01, 0.1, 1.0)


def run_night(expected: int, pictures: Path, collection: Path, *options: str) -> dict[str, float]:
    """Run one job. Returns its seconds from start to end, and of all its workers: fetching, decoding, the model,
    writing. Raises RuntimeError if it does not embed the expected number of images.
    """
    done = likeness("reembed", str(pictures), str(collection), "--format", "json", *options)
    report = json.loads(done.printed)
    if report["embedded"] != expected:
        raise RuntimeError(f"expected {expected:,} images to be embedded, got {report['embedded']}")
    return {"embedded": expected, "all": done.seconds, "workers'": sum(report["worker_seconds"].values())}


def main(report: Report, folder: Path, options: Any) -> None:
    pictures, collection = folder / "pictures", folder / "collection"
    draw(pictures, range(FILES), seed=0)
    nights = {"first run": run_night(FILES, pictures, collection, "--model", "demo")}
    for seed, share in enumerate(SHARES[:3] if options.quick else SHARES, start=1):
        changed = round(FILES * share)
        draw(pictures, range(changed), seed=seed)
        nights[f"{share:.1%}"] = run_night(changed, pictures, collection)
    report.table(f"seconds of a night over {FILES:,} files, by the share that changed", nights)
    full, some = nights["first run"], nights["1.0%"]
    report.at_most("1%: seconds ÷ those of the first run", some["all"] / full["all"], 0.10)
    report.at_most("1%: all workers' seconds ÷ those of the first run", some["workers'"] / full["workers'"], 0.03)


if __name__ == "__main__":
    run("reembed", __doc__, main, "without the nights with 10 and 100 in 100 changed")
