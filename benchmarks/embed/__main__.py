"""How fast the embedding job is: `python -m benchmarks.embed [--quick]`.

It answers three questions by comparisons within one run:

- Does the pipeline keep the model busy? Its images per second in steady state are compared with those of the bare
  forward pass, with a model of ViT-B/32's size (random weights). With the demo model, where decoding matters,
  they are compared with the most that decoding and the model can reach on shared cores.
- How much faster is the job than the usual tutorial script (`read_images`, the stock processor in the actor), and our
  decoding than the stock processor, per core?
- Does the job's memory grow with the images, and from how many images on is Ray worthwhile on this machine?
"""

import os
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa

from benchmarks.common.process import Command, in_new_process
from benchmarks.common.report import Report, run
from benchmarks.embed.jobs import command, our_job, tutorial_job
from benchmarks.embed.rates import decode_rate, forward_rate, our_rate, photographs, stock_rate
from benchmarks.models.random_models import save_clip
from embedder.images import CropSpec
from embedder.models.checkpoint import DEMO_MODEL, Checkpoint
from jobs.cluster.pool import Pool
from jobs.cluster.session import ray_cluster
from jobs.demo.gallery import Gallery, make_gallery
from jobs.embedding.placement import Place
from jobs.sources.list_images import list_images

VIT, DEMO = "ViT-B/32", "demo model"
FORWARD, DECODING = "bare forward pass", "decoding alone, all cores"
JOB, ON_RAY = "the job, steady state", "the job on Ray, steady state"
TUTORIAL = "tutorial script, steady state"
STOCK, OURS = "stock processor, one core, 224 pixels", "our decoding, one core, 224 pixels"
GALLERY, PHOTOGRAPHS = "gallery", "JPEGs of 500 × 375"

PLACES, COUNTS = ("local", "ray"), (500, 5_000, 20_000)

Rates = dict[str, list[float]]
"""Images per second. Rates measured before and after a job have several values, because the machine's speed drifts."""


def measure(gallery: Gallery, folder: Path, *, quick: bool, device: str) -> Rates:
    """All rates; the bare forward pass and decoding are measured just before and after the jobs compared with them."""
    listing = list_images(str(gallery.folder)).read()
    good = [str(gallery.folder / exhibit.image_id) for exhibit in gallery.exhibits]
    large = save_clip(folder / "vit-b-32")
    on_gpu = device == "cuda"
    vit_images, batch = (20_000, 256) if on_gpu else (640 if quick else 1920, 32)
    seconds, repeats = (8.0 if quick else 30.0), (2 if quick and not on_gpu else 10)
    many = pa.concat_tables([_renamed(listing, f"{i}/") for i in range(repeats)])
    some = many.slice(0, vit_images)
    demo_crop = Checkpoint.find(str(DEMO_MODEL), None).preprocessing.crop
    rates: Rates = defaultdict(list)

    def alone(name: str, model: Path, *, batch: int) -> None:
        bare = partial(forward_rate, model, batch=batch, seconds=seconds, device=device)
        # In a new process, since its threads and memory would slow down Ray's actor.
        rates[f"{name}: {FORWARD}"].append(in_new_process(bare))

    def demo_alone() -> None:
        alone(DEMO, DEMO_MODEL, batch=64)
        rates[f"{DEMO}: {DECODING}"].append(decode_rate(listing, demo_crop))

    def vit_job(name: str, where: Place) -> Callable[[], float]:
        job = partial(our_job, some, large, folder / f"vit {name}", where=where, device=device)
        return partial(job, block=2 * batch, batch=batch)

    def demo_job(name: str, where: Place) -> Callable[[], float]:
        job = partial(our_job, many, DEMO_MODEL, folder / f"demo {name}", where=where, device=device)
        return partial(job, block=256, batch=64)

    vit_alone = partial(alone, VIT, large, batch=batch)
    vit_alone()
    rates[f"{VIT}: {JOB}"].append(in_new_process(vit_job(JOB, Place())))
    vit_alone()
    demo_alone()
    rates[f"{DEMO}: {JOB}"].append(in_new_process(demo_job(JOB, Place())))
    demo_alone()
    on_ray = Place(pool=Pool(num_gpus=float(device == "cuda")))
    vit_alone()
    with ray_cluster(None, verbose=False):
        rates[f"{VIT}: {ON_RAY}"].append(vit_job(ON_RAY, on_ray)())
    vit_alone()
    with ray_cluster(None, verbose=False):
        rates[f"{DEMO}: {ON_RAY}"].append(demo_job(ON_RAY, on_ray)())
        rates[f"{VIT}: {TUTORIAL}"].append(tutorial_job(good[: vit_images // 2], large))
        rates[f"{DEMO}: {TUTORIAL}"].append(tutorial_job(good, DEMO_MODEL))
    for name, paths in ((GALLERY, good), (PHOTOGRAPHS, photographs(folder / "photographs"))):
        rates[f"{name}: {STOCK}"].append(stock_rate(paths, large, seconds))
        rates[f"{name}: {OURS}"].append(our_rate(paths, CropSpec(side=224, shortest_edge=224), seconds))
    return rates


def _renamed(listing: pa.Table, prefix: str) -> pa.Table:
    ids = pa.array([f"{prefix}{name}" for name in listing["image_id"].to_pylist()], pa.string())
    return listing.set_column(0, "image_id", ids)


def judge(rates: Rates, commands: dict[tuple[str, int], Command], report: Report) -> None:
    """Add the tables and the bars: how busy the job keeps the model, and how its memory grows."""
    forward, decoding = mean(rates[f"{DEMO}: {FORWARD}"]), mean(rates[f"{DEMO}: {DECODING}"])
    # The maximum if decoding and the forward pass share the cores and neither ever waits.
    limit = 1 / (1 / decoding + 1 / forward)
    rates[f"{DEMO}: both, sharing the cores without a wait"] = [limit]
    table = {name: {"mean": mean(some), "first": some[0], "last": some[-1]} for name, some in rates.items()}
    report.table("images/s", table)
    report.table(
        "a whole `likeness embed` of the demo model",
        {
            f"{count:,} images, {on}": {"seconds": run.seconds, "peak MiB": run.peak_mib}
            for (on, count), run in commands.items()
        },
    )
    bare = rates[f"{VIT}: {FORWARD}"]
    for name, around in ((JOB, bare[:2]), (ON_RAY, bare[2:])):
        share = mean(rates[f"{VIT}: {name}"]) / mean(around)
        report.at_least(f"{VIT}: {name} ÷ bare forward pass", share, 0.95)
    report.at_least(f"{DEMO}: {JOB} ÷ both, sharing the cores", mean(rates[f"{DEMO}: {JOB}"]) / limit, 0.90)
    for on in PLACES:
        small, big = commands[on, COUNTS[1]].peak_mib, commands[on, COUNTS[2]].peak_mib
        report.at_most(f"MiB at 20,000 − at 5,000, {on}", big - small, 200)
    for count in COUNTS:
        share = commands["local", count].seconds / commands["ray", count].seconds
        report.at_most(f"seconds for {count:,} images, local ÷ ray", share, 1.0)


def main(report: Report, folder: Path, options: Any) -> None:
    # By default Ray's workers run at nice 15; the bare forward pass does not.
    os.environ.setdefault("RAY_worker_niceness", "0")
    gallery = make_gallery(folder / "pictures", count=2000)
    rates = measure(gallery, folder, quick=options.quick, device=options.device)
    commands = {(on, count): command(gallery.folder, count, folder, on) for count in COUNTS for on in PLACES}
    judge(rates, commands, report)


DEVICE = {"choices": ("cpu", "cuda"), "default": "cpu", "help": "where the model runs"}
if __name__ == "__main__":
    run("embed", __doc__, main, "fewer images; ends within 10 minutes on 2 cores", {"--device": DEVICE})
