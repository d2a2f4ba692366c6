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
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pyarrow as pa

from benchmarks.common.models import save_clip
from benchmarks.common.report import Report
from benchmarks.embed.jobs import driver_memory, our_job, tutorial_job
from benchmarks.embed.rates import decode_rate, forward_rate, our_rate, stock_rate
from embedder.images import CropSpec
from embedder.models.clip import ClipEmbedder
from jobs.cluster.session import ray_cluster
from jobs.demo.gallery import Gallery, make_gallery
from jobs.sources.list_images import list_images
from jobs.values import DEMO_MODEL

VIT, DEMO = "ViT-B/32", "demo model"
FORWARD, DECODING = "bare forward pass", "decoding alone, all cores"
JOB, TUTORIAL = "the job, steady state", "tutorial script, steady state"
STOCK, OURS = "stock processor, one core, 224 pixels", "our decoding, one core, 224 pixels"

Rates = dict[str, list[float]]
"""Images per second. What is measured before and after the job has two, for the machine's speed drifts."""


def measure(gallery: Gallery, folder: Path, *, quick: bool, device: str) -> Rates:
    """Every rate in one run; the bare forward pass and decoding before and after the job."""
    listing = list_images(str(gallery.folder))
    good = [str(gallery.folder / exhibit.image_id) for exhibit in gallery.exhibits]
    large = save_clip(folder / "vit-b-32")
    on_gpu = device == "cuda"
    vit_images, batch = (20_000, 256) if on_gpu else (640 if quick else 1920, 32)
    seconds, repeats = (8.0 if quick else 30.0), (2 if quick and not on_gpu else 10)
    many = pa.concat_tables([_renamed(listing, f"{i}/") for i in range(repeats)])
    some = many.slice(0, vit_images)
    demo_crop = ClipEmbedder.load(str(DEMO_MODEL), device="cpu").crop
    rates: Rates = defaultdict(list)

    def alone() -> None:
        rates[f"{VIT}: {FORWARD}"].append(forward_rate(large, batch=batch, seconds=seconds, device=device))
        rates[f"{DEMO}: {FORWARD}"].append(forward_rate(DEMO_MODEL, batch=64, seconds=seconds, device=device))
        rates[f"{DEMO}: {DECODING}"].append(decode_rate(listing, demo_crop))

    alone()
    with ray_cluster(None, verbose=False):
        vit = our_job(some, large, folder / "vit", block=2 * batch, batch=batch, device=device)
        rates[f"{VIT}: {JOB}"].append(vit)
        rates[f"{VIT}: {TUTORIAL}"].append(tutorial_job(good[: vit_images // 2], large))
        demo = our_job(many, DEMO_MODEL, folder / "demo", block=256, batch=64, device=device)
        rates[f"{DEMO}: {JOB}"].append(demo)
        rates[f"{DEMO}: {TUTORIAL}"].append(tutorial_job(good, DEMO_MODEL))
    alone()
    rates[STOCK].append(stock_rate(good, large, seconds))
    rates[OURS].append(our_rate(good, CropSpec(side=224, shortest_edge=224), seconds))
    return rates


def _renamed(listing: pa.Table, prefix: str) -> pa.Table:
    ids = pa.array([f"{prefix}{name}" for name in listing["image_id"].to_pylist()], pa.string())
    return listing.set_column(0, "image_id", ids)


def judge(rates: Rates, small_mib: float, big_mib: float, report: Report) -> None:
    """The tables, and the bars: how busy the job keeps the model, and what the driver needs for more images."""
    forward, decoding = mean(rates[f"{DEMO}: {FORWARD}"]), mean(rates[f"{DEMO}: {DECODING}"])
    # What is possible where decoding and the forward pass need the same cores and neither ever waits.
    rates[f"{DEMO}: both, sharing the cores without a wait"] = [1 / (1 / decoding + 1 / forward)]
    report.table(
        "images/s",
        [{"": name, "mean": mean(found), "first": found[0], "last": found[-1]} for name, found in rates.items()],
    )
    report.table("driver's memory, MiB", [{"5,000 images": small_mib, "20,000 images": big_mib}])
    share = mean(rates[f"{VIT}: {JOB}"]) / mean(rates[f"{VIT}: {FORWARD}"])
    report.at_least(f"{VIT}: job ÷ bare forward pass", share, 0.90)
    # Out of reach where both need the same cores and cost alike: the bound is then half of the limit.
    share = mean(rates[f"{DEMO}: {JOB}"]) / min(decoding, forward)
    report.at_least(f"{DEMO}: job ÷ min(decoding, forward pass)", share, 0.80)
    report.at_most("driver MiB at 20,000 − at 5,000", big_mib - small_mib, 200)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer images; ends within 10 minutes on 2 cores")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model runs")
    options = parser.parse_args()
    # Ray's workers yield to every other process (nice 15); the bare forward pass does not.
    os.environ.setdefault("RAY_worker_niceness", "0")
    report = Report("embed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gallery = make_gallery(folder / "pictures", count=2000)
        rates = measure(gallery, folder, quick=options.quick, device=options.device)
        small, big = (driver_memory(gallery.folder, count, folder) for count in (5_000, 20_000))
    judge(rates, small, big, report)
    return report.conclude()


if __name__ == "__main__":
    sys.exit(main())
