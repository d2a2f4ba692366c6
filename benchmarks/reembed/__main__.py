"""What a night costs, by the share of images that have changed: `python -m benchmarks.reembed [--quick]`.

Each night is a `likeness reembed` in a process of its own over small files, with the demo model. Its work is all of its
time but the start-up of Ray and of the model, and the index, which are reported apart. Beside that a million listed
rows are compared with a million live ones, in a new process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from PIL import Image
from rich.console import Console

from benchmarks.common.report import Bar, Goal, Report, print_table
from benchmarks.index.upkeep import in_new_process
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

    report: Mapping[str, object]
    imported: list[str]
    ray_processes: int
    wall_seconds: float

    @property
    def seconds(self) -> Mapping[str, float]:
        return self.report["seconds"]  # type: ignore[return-value]

    @property
    def listing(self) -> float:
        """Seconds of listing and comparing."""
        return self.seconds["list"] + self.seconds["compare"]

    @property
    def start(self) -> float:
        """Seconds of Ray's and the model's start-up; the decoding of the first block is in it."""
        return self.seconds.get("start", 0.0)

    @property
    def work(self) -> float:
        """Seconds from the process's start to its end, but for `start` and the index: hashing and commits are in it."""
        return self.wall_seconds - self.start - self.seconds["index"]

    @property
    def embedding(self) -> float:
        """Seconds of all workers: fetching, decoding, the model, writing."""
        return sum(self.report["worker_seconds"].values())  # type: ignore[attr-defined]


def draw(folder: Path, numbers: range, seed: int) -> None:
    """Write small PNGs that are like no others, over those of the same numbers."""
    rng = np.random.default_rng(seed)
    for number in numbers:
        path = folder / f"{number // 1000:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC).save(path, compress_level=1)


def run_night(pictures: Path, collection: Path, *options: str) -> Night:
    """One job in a process of its own."""
    command = [sys.executable, "-c", _JOB, str(pictures), str(collection), "--format", "json", *options]
    started, ray = time.perf_counter(), set[int]()
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        subprocess.Popen(command, stdout=out, stderr=err) as job,
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
        return Night(
            report=json.loads(out.read()),
            imported=json.loads(said.strip().splitlines()[-1]),
            ray_processes=len(ray),
            wall_seconds=wall,
        )


def patiently(expected: int, pictures: Path, collection: Path, *options: str) -> Night:
    """A night that embeds so many, tried again when Ray, on a busy machine, did not start within its 30 s."""
    for left in range(4, -1, -1):
        try:
            night = run_night(pictures, collection, *options)
            break
        except JobError as error:
            if not left or "Ray did not start" not in str(error):
                raise
            print(error, file=sys.stderr)
    if night.report["embedded"] != expected:  # what an earlier try has done would make this one look cheap
        raise JobError(f"expected {expected:,} images to be embedded, got {night.report['embedded']}")
    return night


def _children(pid: int) -> list[tuple[int, str]]:
    try:
        return [(child.pid, child.name()) for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []  # one has ended meanwhile


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4,000 files instead of 20,000")
    files = 4_000 if parser.parse_args().quick else 20_000
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with console.status("writing a million rows"):
            write_listed(folder / "listed")
        compared = in_new_process(compare_listed, folder / "listed")
        pictures, collection = folder / "pictures", folder / "collection"
        with console.status(f"drawing {files:,} pictures"):
            draw(pictures, range(files), seed=0)
        with console.status("embedding all of them"):
            full = patiently(files, pictures, collection, "--model", "demo")
        nights = {}
        for seed, share in enumerate(SHARES, start=1):
            with console.status(f"a night with {share:.1%} changed"):
                changed = round(files * share)
                draw(pictures, range(changed), seed=seed)
                nights[share] = patiently(changed, pictures, collection)
    return conclude(files, full, nights, compared, console)


def conclude(files: int, full: Night, nights: Mapping[float, Night], compared: Compared, console: Console) -> int:
    """Print the table, then the bars; returns the exit status."""
    print_table(
        f"seconds of a night over {files:,} files",
        ("changed", "embedded", "list, compare", "work", "Ray and model start", "index", "all", "workers'"),
        [
            (
                label,
                night.report["embedded"],
                night.listing,
                night.work,
                night.start,
                night.seconds["index"],
                night.wall_seconds,
                night.embedding,
            )
            for label, night in [("first run", full), *((f"{share:.1%}", night) for share, night in nights.items())]
        ],
        console,
    )
    still = nights[0.0]
    return Report(
        benchmark="reembed",
        figures={
            "files": files,
            "full_work_s": full.work,
            "full_start_s": full.start,
            "full_embedding_s": full.embedding,
            "nights": {
                f"{share:g}": {
                    "listing_s": night.listing,
                    "work_s": night.work,
                    "start_s": night.start,
                    "embedding_s": night.embedding,
                    "index_s": night.seconds["index"],
                    "wall_s": night.wall_seconds,
                }
                for share, night in nights.items()
            },
            "listed_rows": LISTED,
            "listed_seconds": compared.seconds,
            "listed_peak_gb": compared.peak_rss / 1e9,
        },
        bars=[
            Bar(name="0%: torch and Ray imported", value=len(still.imported), bar=0, goal=Goal.AT_MOST),
            Bar(name="0%: processes of Ray", value=still.ray_processes, bar=0, goal=Goal.AT_MOST),
            Bar(
                name="1%: work beyond that of 0%, ÷ that of the first run",
                value=(nights[0.01].work - still.work) / full.work,
                bar=0.03,
                goal=Goal.AT_MOST,
            ),
            # What is decoded while the model loads counts as its start above, and here.
            Bar(
                name="1%: all workers' seconds ÷ those of the first run",
                value=nights[0.01].embedding / full.embedding,
                bar=0.03,
                goal=Goal.AT_MOST,
            ),
            Bar(name="1,000,000 rows: listing and comparing, s", value=compared.seconds, bar=60, goal=Goal.AT_MOST),
            Bar(name="1,000,000 rows: peak memory, GB", value=compared.peak_rss / 1e9, bar=2, goal=Goal.AT_MOST),
        ],
    ).conclude(console)


if __name__ == "__main__":
    sys.exit(main())
