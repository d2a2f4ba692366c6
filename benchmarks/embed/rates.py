"""Images per second of each stage of embedding alone."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image, ImageOps

from benchmarks.common.process import CORES
from embedder.images import CropSpec
from embedder.images.decoder_pool import DecodePool
from embedder.models.load import load_embedder
from embedder.protocol import Embedder
from jobs.embedding.stages import DecodeSettings, fetch_and_decode


def rate(work: Callable[[], int], seconds: float) -> float:
    """Items per second of `work`, which returns how many it has done."""
    started, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        done += work()
    return done / elapsed


def steady_rate(ended: Sequence[tuple[float, int]]) -> float:
    """Images per second after the first quarter, during which Ray still starts processes on the same cores.

    `ended` has times in seconds, each with the number of images done by then.
    """
    last_at, total = ended[-1]
    first_at, before = next((at, count) for at, count in reversed(ended) if count <= max(total / 4, ended[0][1]))
    return (total - before) / (last_at - first_at)


def forward_rate(
    model: Path, load: Callable[..., Embedder] = load_embedder, *, batch: int, seconds: float, device: str
) -> float:
    """The forward pass alone, on all cores or on the GPU."""
    embedder = load(str(model), device=device, batch_size=batch, threads=CORES)
    side = embedder.crop.side
    pixels = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    embedder.embed_images(pixels)
    return rate(lambda: len(embedder.embed_images(pixels)), seconds)


def decode_rate(listing: pa.Table, crop: CropSpec) -> float:
    """Fetching and decoding alone, with a process for each core."""
    work = partial(fetch_and_decode, settings=DecodeSettings(crop=crop, draft=True, threads=1))
    parts = [listing.slice(start, 32) for start in range(0, listing.num_rows, 32)]
    with ProcessPoolExecutor(CORES, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(work, parts[:CORES]))
        started = time.perf_counter()
        done = sum(table.num_rows for table in pool.map(work, parts))
        return done / (time.perf_counter() - started)


def stock_rate(paths: list[str], model: Path, seconds: float) -> float:
    """Opening files and the stock processor, on one core."""
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil.from_pretrained(str(model))
    files = cycle(paths)

    def one() -> int:
        with Image.open(next(files)) as image:
            processor(images=image.convert("RGB"), return_tensors="np")
        return 1

    return rate(one, seconds)


def our_rate(paths: list[str], crop: CropSpec, seconds: float) -> float:
    """Our decoding, on one core: the caller and its decoding process never run at the same time."""
    files = cycle(paths)
    with closing(DecodePool(1)) as pool:

        def one() -> int:
            pool.decode(Path(next(files)).read_bytes(), crop)
            return 1

        one()
        return rate(one, seconds)


def photographs(folder: Path) -> list[str]:
    """JPEGs of 500 × 375, from scikit-image's wheel."""
    import skimage.data

    folder.mkdir()
    paths = []
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        paths.append(str(folder / f"{name}.jpg"))
        picture = ImageOps.fit(Image.fromarray(getattr(skimage.data, name)()), (500, 375), Image.Resampling.BICUBIC)
        picture.save(paths[-1], quality=85)
    return paths
