"""Complete jobs: ours, and the usual tutorial script."""

from __future__ import annotations

import csv
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data

from benchmarks.common.embedding import embed
from benchmarks.common.process import CORES, Command, likeness
from benchmarks.embed.rates import steady_rate
from jobs.embedding.model_source import ModelSource
from jobs.embedding.placement import Place

_NAIVE_BATCH = 32


def our_job(
    listing: pa.Table,
    model: Path,
    folder: Path,
    *,
    where: Place,
    block: int,
    batch: int,
    device: str = "cpu",
) -> float:
    """Images per second of the real job in steady state. A place on Ray needs a connected Ray."""
    load = ModelSource(model=str(model), revision=None, device=device, batch_size=batch)
    progress = embed(listing, folder, load(), load, block=block, where=where)
    return steady_rate([(at, done) for at, done, _ in progress.records])


def command(pictures: Path, count: int, folder: Path, on: str) -> Command:
    """Run `likeness embed` with the demo model on `count` images: the gallery's files, each time with a new id."""
    paths = [str(path) for path in sorted(pictures.rglob("*.*")) if path.is_file()]
    images = folder / f"{count}.csv"
    with images.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "uri"))
        writer.writerows((f"{i:06}", path) for i, path in zip(range(count), cycle(paths), strict=False))
    options = ("--model", "demo", "--on", on, "--no-index", "--max-reject-rate", "1")
    return likeness("embed", str(images), str(folder / f"{on}-{count}"), *options)


class NaiveActor:
    """The stock processor and the model in one actor, as in tutorials."""

    def __init__(self, model: str) -> None:
        import torch
        from transformers import CLIPImageProcessorPil, CLIPModel

        torch.set_num_threads(CORES)
        self.processor = CLIPImageProcessorPil.from_pretrained(model)
        self.model = CLIPModel.from_pretrained(model)  # in eval mode already

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import torch

        inputs = self.processor(images=list(batch["image"]), return_tensors="pt")
        with torch.inference_mode():
            vectors = self.model.get_image_features(**inputs).pooler_output
        return {"embedding": vectors.numpy(), "ended": [time.perf_counter()] * len(vectors)}


def tutorial_job(paths: list[str], model: Path) -> float:
    """Images per second of the tutorial script in steady state. A broken file would end it."""
    rows = ray.data.read_images(paths, mode="RGB", override_num_blocks=max(1, len(paths) // _NAIVE_BATCH)).map_batches(
        NaiveActor,
        fn_constructor_kwargs={"model": str(model)},
        batch_size=_NAIVE_BATCH,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    ended = sorted(rows.to_pandas()["ended"])
    return steady_rate([(float(at), count) for count, at in enumerate(ended, 1)])
