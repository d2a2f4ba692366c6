"""What a night costs, by the share of images that have changed: `python -m benchmarks.reembed [--quick]`.

Each night is a `likeness reembed` in a process of its own over small files, with the demo model: from the command to
the live version. Beside that a million listed rows are compared with a million live ones, in a new process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from benchmarks.common.process import in_new_process
from benchmarks.common.report import Report, run
from benchmarks.reembed.rows import LISTED, Compared, compare_listed, write_listed
from jobs.errors import JobError

SHARES = (0.0, 0.001, 0.01, 0.1, 1.0)
_JOB = """
import atexit, json, sys
from jobs.cli import app
heavy = ("torch", "ray")
atexit.register(lambda: print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr))
sys.argv = ["likeness", "reembed", *sys.argv[1:]]
app.main()
"""


@dataclass(frozen=True, kw_only=True)
class Night:
    """What one job was: its own report, what it imported, and the processes of Ray that it started."""

    report: Mapping[str, Any]
    imported: list[str]
    ray_processes: int
    wall_seconds: float

    @property
    def seconds(self) -> Mapping[str, float]:
        """By step."""
        steps: Mapping[str, float] = self.report["seconds"]
        return steps

    @property
    def embedding(self) -> float:
        """Seconds of all workers: fetching, decoding, the model, writing."""
        return float(sum(self.report["worker_seconds"].values()))


def draw(folder: Path, numbers: range, seed: int) -> None:
    """Write small PNGs that are like no others, over those of the same numbers."""
    rng = np.random.default_rng(seed)
    for number in numbers:
        path = folder / f"{number // 1000:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC).save(path, compress_level=1)


def run_night(expected: int, pictures: Path, collection: Path, *options: str) -> Night:
    """One job in a process of its own, which is to embed so many images."""
    command = [sys.executable, "-c", _JOB, str(pictures), str(collection), "--format", "json", *options]
    environment = {**os.environ, "RAY_raylet_start_wait_time_s": "300"}  # on a busy machine its own 30 s are too few
    started, ray = time.perf_counter(), set[int]()
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        subprocess.Popen(command, stdout=out, stderr=err, env=environment) as job,
    ):
        while job.poll() is None:
            ray |= {pid for pid, name in _children(job.pid) if name in ("raylet", "gcs_server")}
            time.sleep(0.05)
        wall = time.perf_counter() - started
        out.seek(0)
        err.seek(0)
        said = err.read()
        if job.returncode:
            raise JobError(f"the job exited with {job.returncode}: {said}")
        report = json.loads(out.read())
        if report["embedded"] != expected:
            raise JobError(f"expected {expected:,} images to be embedded, got {report['embedded']}")
        return Night(
            report=report,
            imported=json.loads(said.strip().splitlines()[-1]),
            ray_processes=len(ray),
            wall_seconds=wall,
        )


def _children(pid: int) -> list[tuple[int, str]]:
    try:
        return [(child.pid, child.name()) for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []  # one has ended meanwhile


def judge(files: int, full: Night, nights: Mapping[float, Night], compared: Compared, report: Report) -> None:
    """The tables, and what a night may cost whose images have hardly changed."""
    labelled = {"first run": full, **{f"{share:.1%}": night for share, night in nights.items()}}
    report.table(
        f"seconds of a night over {files:,} files",
        [
            {
                "changed": label,
                "embedded": int(night.report["embedded"]),
                "list, compare": night.seconds["list"] + night.seconds["compare"],
                "until the first block": night.seconds.get("start", 0.0),
                "index": night.seconds["index"],
                "all": night.wall_seconds,
                "workers'": night.embedding,
            }
            for label, night in labelled.items()
        ],
    )
    peak_gb = compared.peak_rss / 1e9
    report.table(f"{LISTED:,} rows listed and compared", [{"seconds": compared.seconds, "peak memory, GB": peak_gb}])
    still, some = nights[0.0], nights[0.01]
    report.at_most("0%: torch and Ray imported", len(still.imported), 0)
    report.at_most("0%: processes of Ray", still.ray_processes, 0)
    report.at_most("1%: seconds ÷ those of the first run", some.wall_seconds / full.wall_seconds, 0.10)
    report.at_most("1%: all workers' seconds ÷ those of the first run", some.embedding / full.embedding, 0.03)
    report.at_most(f"{LISTED:,} rows: listing and comparing, s", compared.seconds, 60)
    report.at_most(f"{LISTED:,} rows: peak memory, GB", peak_gb, 2)


def main(report: Report, folder: Path, options: Any) -> None:
    files = 4_000 if options.quick else 20_000
    with report.console.status("writing a million rows"):
        write_listed(folder / "listed")
    compared = in_new_process(compare_listed, folder / "listed")
    pictures, collection = folder / "pictures", folder / "collection"
    with report.console.status(f"drawing {files:,} pictures"):
        draw(pictures, range(files), seed=0)
    with report.console.status("embedding all of them"):
        full = run_night(files, pictures, collection, "--model", "demo")
    nights = {}
    for seed, share in enumerate(SHARES, start=1):
        with report.console.status(f"a night with {share:.1%} changed"):
            changed = round(files * share)
            draw(pictures, range(changed), seed=seed)
            nights[share] = run_night(changed, pictures, collection)
    judge(files, full, nights, compared, report)


if __name__ == "__main__":
    run("reembed", __doc__, main, "4,000 files instead of 20,000")
