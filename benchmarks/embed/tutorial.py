"""What tutorials show and what a processor does by itself: the other side of `benchmarks.embed`."""

import os
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import ray
import ray.data

from embedder.images.decode import CropSpec, decode_image

CORES = os.cpu_count() or 1
NAIVE_BATCH = 32


def rate(work: Callable[[], int], seconds: float) -> float:
    """How many a second `work` gets done; it returns how many it did."""
    started, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        done += work()
    return done / elapsed


def steady_rate(ended: Sequence[tuple[float, int]]) -> float:
    """Images per second once a quarter is done: until then Ray still starts processes on the cores that count.

    `ended` has times in seconds, each with how many images were done by then.
    """
    last_at, total = ended[-1]
    first_at, before = next((at, count) for at, count in reversed(ended) if count <= max(total / 4, ended[0][1]))
    return (total - before) / (last_at - first_at)


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

        inputs = self.processor(images=list(batch["image"]), return_tensors="pt")
        with torch.inference_mode():
            vectors = self.model.get_image_features(**inputs).pooler_output
        return {"embedding": vectors.numpy(), "ended": [time.perf_counter()] * len(vectors)}


def naive_rate(paths: list[str], model: Path) -> float:
    """Images per second of the tutorials' script in steady state. Good files only: a broken one ends it."""
    rows = ray.data.read_images(paths, mode="RGB", override_num_blocks=max(1, len(paths) // NAIVE_BATCH)).map_batches(
        NaiveActor,
        fn_constructor_kwargs={"model": str(model)},
        batch_size=NAIVE_BATCH,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    ended = sorted(rows.to_pandas()["ended"])
    return steady_rate([(float(at), count) for count, at in enumerate(ended, 1)])


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
