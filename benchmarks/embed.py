"""How fast the embedding job is: `python -m benchmarks.embed [--quick]`.

Three questions, each answered against something measured in the same run:

- Does the pipeline keep the model busy? Its images per second in steady state over those of the bare forward pass,
  with a model of ViT-B/32's size (random weights). And with the demo model, where decoding matters, over the lower of
  what decoding and what the forward pass can do alone on all cores.
- What does it gain over the script that tutorials show (`read_images`, the stock processor inside the actor), and our
  decoding over the stock processor, per core?
- Does the driver's memory grow with the images?
"""

import argparse
import csv
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import mean

import numpy as np
import pyarrow as pa
from rich.console import Console

from benchmarks.models import save_clip
from benchmarks.report import Bar, Goal, Report, print_table
from benchmarks.tutorial import CORES, naive_rate, our_rate, rate, steady_rate, stock_rate
from embedder.images import CropSpec
from embedder.models.clip import ClipEmbedder
from index.collection import Collection
from jobs.cluster.pool import Pool
from jobs.cluster.session import ray_cluster
from jobs.demo.gallery import Gallery, make_gallery
from jobs.embedding.decode import DecodeSettings, fetch_and_decode
from jobs.embedding.model import ModelSource, model_record
from jobs.embedding.pipeline import write
from jobs.embedding.report import EmbedReport
from jobs.planning.changes import compare
from jobs.sources.list_images import list_images
from jobs.values import DEMO_MODEL


class Marks:
    """Notes, by the actor's clock, when how many images were on disk."""

    def __init__(self) -> None:
        self.ended: list[tuple[float, int]] = []

    def __call__(self, report: EmbedReport) -> None:
        self.ended.append((report.ended_at, report.embedded + report.rejected))


def pipeline_rate(
    listing: pa.Table, model: Path, folder: Path, *, block: int, batch: int, device: str = "cpu"
) -> float:
    """Images per second of the real job in steady state; Ray is connected."""
    load = ModelSource(model=str(model), revision=None, device=device, batch_size=batch)
    loaded = load()
    collection = Collection.create_or_open(str(folder))
    change = compare(
        listing, collection.snapshot(), "benchmark", model_record(loaded.identity), delete=False, verify_hash=False
    )
    plan = change.known[0].plan
    pool = Pool(num_gpus=float(device == "cuda"))
    marks = Marks()
    write(plan, collection, load=load, crop=loaded.crop, pool=pool, block_size=block, progress=marks)
    return steady_rate(marks.ended)


def forward_rate(model: Path, *, batch: int, seconds: float, device: str) -> float:
    """Images per second of the bare forward pass, on all cores or on the GPU."""
    embedder = ClipEmbedder.load(str(model), device=device, batch_size=batch, threads=CORES)
    side = embedder.crop.side
    pixels = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    embedder.embed_images(pixels)
    return rate(lambda: len(embedder.embed_images(pixels)), seconds)


def decode_rate(listing: pa.Table, crop: CropSpec) -> float:
    """Images per second of fetching and decoding alone, with a process for each core."""
    settings = DecodeSettings(crop=crop, draft=True, threads=1)
    parts = [listing.slice(start, 32) for start in range(0, listing.num_rows, 32)]
    with ProcessPoolExecutor(CORES, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(partial(fetch_and_decode, settings=settings), parts[:CORES]))
        started = time.perf_counter()
        done = sum(table.num_rows for table in pool.map(partial(fetch_and_decode, settings=settings), parts))
        return done / (time.perf_counter() - started)


def driver_memory(pictures: Path, count: int, folder: Path) -> float:
    """Peak MiB of a driver of its own that embeds `count` images: the gallery's files under ever new ids."""
    paths = [str(path) for path in sorted(pictures.rglob("*.*")) if path.is_file()]
    lists = folder / f"{count}.csv"
    with lists.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "uri"))
        writer.writerows((f"{i:06}", path) for i, path in zip(range(count), cycle(paths), strict=False))
    command = [sys.executable, "-m", "benchmarks.embed", "--driver", str(lists), str(folder / f"memory-{count}")]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(out.stdout.split()[-1])


def drive(source: str, folder: str) -> None:
    """The child of `driver_memory`: one job, then the peak resident memory of this process in MiB."""
    with ray_cluster(None, verbose=False):
        pipeline_rate(list_images(source), DEMO_MODEL, Path(folder), block=256, batch=64)
    # Not ru_maxrss, which a child inherits from its parent.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    print(int(peak.split()[1]) / 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer images; ends within 10 minutes on 2 cores")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model runs")
    parser.add_argument("--driver", nargs=2, metavar=("SOURCE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        drive(*options.driver)
        return 0
    # Ray's workers yield to every other process (nice 15); the bare forward pass does not.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gallery = make_gallery(folder / "pictures", count=2000)
        rates = measure(gallery, folder, quick=options.quick, device=options.device)
        small, big = (driver_memory(gallery.folder, count, folder) for count in (5_000, 20_000))
        return conclude(rates, small, big, Console())


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Images per second. What is measured before and after the job is a list, for the machine's speed drifts."""

    vit_forward: list[float]
    vit_job: float
    vit_tutorial: float
    demo_forward: list[float]
    demo_decode: list[float]
    demo_job: float
    demo_tutorial: float
    stock_processor: float
    our_decoding: float

    @property
    def demo_limit(self) -> float:
        """The lower of what decoding and the forward pass reach alone, each on all cores."""
        return min(mean(self.demo_decode), mean(self.demo_forward))

    @property
    def demo_sharing_bound(self) -> float:
        """What is possible where decoding and the forward pass need the same cores and neither ever waits."""
        return 1 / (1 / mean(self.demo_decode) + 1 / mean(self.demo_forward))


def measure(gallery: Gallery, folder: Path, *, quick: bool, device: str) -> Rates:
    """Every rate in one run; the bare forward pass and decoding before and after the job."""
    listing = list_images(str(gallery.folder))
    good = [str(gallery.folder / exhibit.image_id) for exhibit in gallery.exhibits]
    large = save_clip(folder / "vit-b-32")
    on_gpu = device == "cuda"
    vit_images, batch = (20_000, 256) if on_gpu else (640 if quick else 1920, 32)
    seconds, repeats = (8.0 if quick else 30.0), (2 if quick and not on_gpu else 10)
    many = pa.concat_tables([_renamed(listing, f"{i}/") for i in range(repeats)])
    demo_crop = ClipEmbedder.load(str(DEMO_MODEL), device="cpu").crop

    def alone() -> tuple[float, float, float]:
        return (
            forward_rate(large, batch=batch, seconds=seconds, device=device),
            forward_rate(DEMO_MODEL, batch=64, seconds=seconds, device=device),
            decode_rate(listing, demo_crop),
        )

    before = alone()
    with ray_cluster(None, verbose=False):
        vit = pipeline_rate(
            many.slice(0, vit_images), large, folder / "vit", block=2 * batch, batch=batch, device=device
        )
        vit_tutorial = naive_rate(good[: vit_images // 2], large)
        demo = pipeline_rate(many, DEMO_MODEL, folder / "demo", block=256, batch=64, device=device)
        demo_tutorial = naive_rate(good, DEMO_MODEL)
    vit_forward, demo_forward, demo_decode = (list(pair) for pair in zip(before, alone(), strict=True))
    return Rates(
        vit_forward=vit_forward,
        vit_job=vit,
        vit_tutorial=vit_tutorial,
        demo_forward=demo_forward,
        demo_decode=demo_decode,
        demo_job=demo,
        demo_tutorial=demo_tutorial,
        stock_processor=stock_rate(good, large, seconds),
        our_decoding=our_rate(good, CropSpec(side=224, shortest_edge=224), seconds),
    )


def conclude(rates: Rates, small_mib: float, big_mib: float, console: Console) -> int:
    """Print the table, then the bars; returns the exit status."""
    print_table(
        "images/s",
        ("", "ViT-B/32", "demo model"),
        [
            ("bare forward pass", mean(rates.vit_forward), mean(rates.demo_forward)),
            ("decoding alone, all cores", "", mean(rates.demo_decode)),
            ("both, sharing the cores without a wait", "", rates.demo_sharing_bound),
            ("the job, steady state", rates.vit_job, rates.demo_job),
            ("tutorial script, steady state", rates.vit_tutorial, rates.demo_tutorial),
            ("stock processor, one core, 224 pixels", rates.stock_processor, ""),
            ("our decoding, one core, 224 pixels", rates.our_decoding, ""),
        ],
        console,
    )
    figures = {f"{name}_images_per_s": value for name, value in asdict(rates).items()}
    share = rates.demo_job / rates.demo_sharing_bound
    return Report(
        benchmark="embed",
        figures={
            **figures,
            "demo_share_of_sharing_bound": share,
            "driver_mib_5000": small_mib,
            "driver_mib_20000": big_mib,
        },
        bars=[
            Bar(name="ViT-B/32: job ÷ bare forward pass", value=rates.vit_job / mean(rates.vit_forward), bar=0.90),
            # Out of reach where both need the same cores and cost alike: the bound is then half of the limit.
            Bar(
                name="demo model: job ÷ min(decoding, forward pass)", value=rates.demo_job / rates.demo_limit, bar=0.80
            ),
            Bar(name="driver MiB at 20,000 − at 5,000", value=big_mib - small_mib, bar=200, goal=Goal.AT_MOST),
        ],
    ).conclude(console)


def _renamed(listing: pa.Table, prefix: str) -> pa.Table:
    ids = pa.array([f"{prefix}{name}" for name in listing["image_id"].to_pylist()], pa.string())
    return listing.set_column(0, "image_id", ids)


if __name__ == "__main__":
    sys.exit(main())
