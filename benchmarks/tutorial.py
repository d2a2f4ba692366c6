"""What tutorials show and what a processor does by itself: the other side of `benchmarks.embed`."""

import os
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import ray
import ray.data

from embedder.images import CropSpec, decode_image

CORES = os.cpu_count() or 1
NAIVE_BATCH = 32


def rate(work: Callable[[], int], seconds: float) -> float:
    """How many a second `work` gets done; it returns how many it did."""
    started, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        done += work()
    return done / elapsed


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
