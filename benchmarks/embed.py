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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
from rich.console import Console

from benchmarks.models import save_clip
from benchmarks.report import Bar, Goal, Report, print_table
from embedder.images import CropSpec, decode_image
from embedder.model import ClipEmbedder
from index.collection import Collection
from jobs.cluster import Pool, ray_cluster
from jobs.demo.gallery import make_gallery
from jobs.embed import embed
from jobs.options import DEMO_MODEL
from jobs.plan import make_plan
from jobs.report import EmbedReport
from jobs.request import EmbedOptions, ModelSource
from jobs.run import model_record
from jobs.sources import list_images
from jobs.stages import DecodeSettings, fetch_and_decode

CORES = os.cpu_count() or 1
NAIVE_BATCH = 32


class Silent:
    """A `Progress` that says nothing."""

    def advance(self, report: EmbedReport) -> None:
        pass


def pipeline_rate(
    listing: pa.Table, model: Path, folder: Path, *, block: int, batch: int, device: str = "cpu"
) -> float:
    """Images per second of the real job in steady state; Ray is connected."""
    load = ModelSource(model=str(model), revision=None, device=device, batch_size=batch)
    loaded = load()
    collection = Collection.create_or_open(str(folder))
    plan = make_plan(listing, collection, "benchmark", model_record(loaded.identity))
    options = EmbedOptions(block_size=block, max_reject_rate=1)
    pool = Pool(num_gpus=float(device == "cuda"))
    report = embed(plan, collection, load=load, crop=loaded.crop, options=options, pool=pool, progress=Silent())
    # By the actor's own clock, from the first block's forward pass to the last block on disk.
    return report.images_per_second


def forward_rate(model: Path, *, batch: int, seconds: float, device: str) -> float:
    """Images per second of the bare forward pass, on all cores or on the GPU."""
    embedder = ClipEmbedder.load(str(model), device=device, batch_size=batch, threads=CORES)
    side = embedder.crop.side
    pixels = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    embedder.embed_images(pixels)
    return rate(lambda: len(embedder.embed_images(pixels)), seconds)


def rate(work: Callable[[], int], seconds: float) -> float:
    """How many a second `work` gets done; it returns how many it did."""
    started, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        done += work()
    return done / elapsed


def decode_rate(listing: pa.Table, crop: CropSpec) -> float:
    """Images per second of fetching and decoding alone, with a process for each core."""
    settings = DecodeSettings(crop=crop, draft=True, threads=1)
    parts = [listing.slice(start, 32) for start in range(0, listing.num_rows, 32)]
    with ProcessPoolExecutor(CORES, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(partial(fetch_and_decode, settings=settings), parts[:CORES]))
        started = time.perf_counter()
        done = sum(table.num_rows for table in pool.map(partial(fetch_and_decode, settings=settings), parts))
        return done / (time.perf_counter() - started)


class NaiveActor:
    """What tutorials show: the stock processor and the model in one actor."""

    def __init__(self, model: str) -> None:
        import torch
        from transformers import CLIPImageProcessorPil, CLIPModel

        torch.set_num_threads(CORES)
        self.processor = CLIPImageProcessorPil.from_pretrained(model)
        self.model = CLIPModel.from_pretrained(model)  # in eval mode already

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import torch

        started = time.perf_counter()
        inputs = self.processor(images=list(batch["image"]), return_tensors="pt")
        with torch.inference_mode():
            vectors = self.model.get_image_features(**inputs).pooler_output
        times = {"started": [started] * len(vectors), "ended": [time.perf_counter()] * len(vectors)}
        return {"embedding": vectors.numpy(), **times}


def naive_rate(paths: list[str], model: Path) -> float:
    """Images per second of the tutorials' script in steady state. Good files only: a broken one ends it."""
    rows = ray.data.read_images(paths, mode="RGB", override_num_blocks=max(1, len(paths) // NAIVE_BATCH)).map_batches(
        NaiveActor,
        fn_constructor_kwargs={"model": str(model)},
        batch_size=NAIVE_BATCH,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    marks = rows.to_pandas()[["started", "ended"]]
    return len(marks) / float(marks["ended"].max() - marks["started"].min())


def stock_rate(paths: list[str], model: Path, seconds: float) -> float:
    """Images per second of opening and the stock processor, on one core."""
    from PIL import Image
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil.from_pretrained(str(model))
    files = cycle(paths)

    def one() -> int:
        with Image.open(next(files)) as image:
            processor(images=image.convert("RGB"), return_tensors="np")
        return 1

    return rate(one, seconds)


def our_rate(paths: list[str], crop: CropSpec, seconds: float) -> float:
    """Images per second of our decoding, on one core."""
    files = cycle(paths)

    def one() -> int:
        decode_image(Path(next(files)).read_bytes(), crop)
        return 1

    return rate(one, seconds)


def cycle(paths: list[str]) -> Iterator[str]:
    while True:
        yield from paths


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
        return measure(Path(name), quick=options.quick, device=options.device, console=Console())


def measure(folder: Path, *, quick: bool, device: str, console: Console) -> int:
    gallery = make_gallery(folder / "pictures", count=2000)
    listing = list_images(str(gallery.folder))
    good = [str(gallery.folder / exhibit.image_id) for exhibit in gallery.exhibits]
    large = save_clip(folder / "vit-b-32")
    vit_images, seconds = (640, 8.0) if quick else (1920, 30.0)
    batch = 32
    if device == "cuda":
        vit_images, batch = 20_000, 256
    repeats = 2 if quick and device == "cpu" else 10

    # The forward pass is measured before and after the pipeline: the machine's speed drifts.
    vit_forward = [forward_rate(large, batch=batch, seconds=seconds, device=device)]
    demo_forward = [forward_rate(DEMO_MODEL, batch=64, seconds=seconds, device=device)]
    demo_crop = ClipEmbedder.load(str(DEMO_MODEL), device="cpu").crop
    demo_decode = [decode_rate(listing, demo_crop)]
    many = pa.concat_tables([_renamed(listing, f"{i}/") for i in range(repeats)])
    with ray_cluster(None, verbose=False):
        vit = pipeline_rate(
            many.slice(0, vit_images), large, folder / "vit", block=2 * batch, batch=batch, device=device
        )
        vit_naive = naive_rate(good[: vit_images // 2], large)
        demo = pipeline_rate(many, DEMO_MODEL, folder / "demo", block=256, batch=64, device=device)
        demo_naive = naive_rate(good, DEMO_MODEL)
    demo_decode.append(decode_rate(listing, demo_crop))
    demo_forward.append(forward_rate(DEMO_MODEL, batch=64, seconds=seconds, device=device))
    vit_forward.append(forward_rate(large, batch=batch, seconds=seconds, device=device))
    vit_crop = CropSpec(side=224, shortest_edge=224)
    stock, ours = stock_rate(good, large, seconds), our_rate(good, vit_crop, seconds)
    small, big = (driver_memory(gallery.folder, count, folder) for count in (5_000, 20_000))

    bare, limit = float(np.mean(vit_forward)), min(float(np.mean(demo_decode)), float(np.mean(demo_forward)))
    # Decoding and the forward pass share the cores: this is what is possible when neither ever waits.
    shared = 1 / (1 / float(np.mean(demo_decode)) + 1 / float(np.mean(demo_forward)))
    print_table(
        "images/s",
        ("", "ViT-B/32", "demo model"),
        [
            ("bare forward pass, all cores", bare, float(np.mean(demo_forward))),
            ("decoding alone, all cores", "", float(np.mean(demo_decode))),
            ("both, sharing the cores without a wait", "", shared),
            ("the job, steady state", vit, demo),
            ("tutorial script, steady state", vit_naive, demo_naive),
            ("stock processor, one core, 224 pixels", stock, ""),
            ("our decoding, one core, 224 pixels", ours, ""),
        ],
        console,
    )
    return Report(
        benchmark="embed",
        figures={
            "vit_forward_images_per_s": vit_forward,
            "vit_job_images_per_s": vit,
            "vit_tutorial_images_per_s": vit_naive,
            "demo_forward_images_per_s": demo_forward,
            "demo_decode_images_per_s": demo_decode,
            "demo_job_images_per_s": demo,
            "demo_tutorial_images_per_s": demo_naive,
            "demo_share_of_sharing_bound": demo / shared,
            "stock_processor_images_per_s": stock,
            "our_decoding_images_per_s": ours,
            "driver_mib_5000": small,
            "driver_mib_20000": big,
        },
        bars=[
            Bar(name="ViT-B/32: job ÷ bare forward pass", value=vit / bare, bar=0.90),
            Bar(name="demo model: job ÷ min(decoding, forward pass)", value=demo / limit, bar=0.80),
            Bar(name="driver MiB at 20,000 − at 5,000", value=big - small, bar=200, goal=Goal.AT_MOST),
        ],
    ).conclude(console)


def _renamed(listing: pa.Table, prefix: str) -> pa.Table:
    ids = pa.array([f"{prefix}{name}" for name in listing["image_id"].to_pylist()], pa.string())
    return listing.set_column(0, "image_id", ids)


if __name__ == "__main__":
    sys.exit(main())
