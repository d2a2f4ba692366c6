"""What a job on Ray costs its driver, with stages that do nothing: `python -m benchmarks.driver [--quick]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.null_job import Cost, null_job
from benchmarks.common.process import in_new_process
from benchmarks.common.report import Report, run

SIZES = (200_000, 1_000_000)
QUICK_SIZES = (300_000, 600_000)
MICROSECONDS_BAR = 15.0
MEMORY_BAR = 1.1


def main(report: Report, folder: Path, options: Any) -> None:
    """Run the job with two numbers of images, each in a process of its own, so that start-up cancels out."""
    sizes = QUICK_SIZES if options.quick else SIZES
    judge([in_new_process(null_job, images, folder / str(images)) for images in sizes], report)


def judge(costs: list[Cost], report: Report) -> None:
    """Add the table and the bars."""
    few, many = costs
    table = [{"images": each.images, "CPU s": each.cpu_s, "peak MiB": each.peak / 2**20} for each in costs]
    report.table("the driver", table)
    per_image = (many.cpu_s - few.cpu_s) / (many.images - few.images)
    report.at_most("µs of CPU an image", per_image * 1e6, MICROSECONDS_BAR)
    report.at_most(f"peak memory ÷ that with {few.images:,} images", many.peak / few.peak, MEMORY_BAR)


if __name__ == "__main__":
    run("driver", __doc__, main, f"{QUICK_SIZES[0]:,} and {QUICK_SIZES[1]:,} images")
