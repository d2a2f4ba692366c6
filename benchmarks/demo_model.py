"""What the demo model knows: `python -m benchmarks.demo_model [--quick] [--model FOLDER]`.

Draws fresh pictures as the gallery has them (with a seed of its own), stores them as files and decodes those
as a job does. Among the 10 nearest of a picture, itself left out: the share with its colour, its shape, its
pattern. Among the 10 nearest of each caption such as "a striped red star": the share that fits it wholly.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.report import Report, run
from embedder.images.decode import CropSpec, decode_image
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES, Subject
from jobs.demo.gallery import plan_exhibit
from jobs.values import DEMO_MODEL

SEED = 31
NEAREST = 10
BARS = {"colour": 0.95, "shape": 0.90, "pattern": 0.85, "text": 0.90}
ATTRIBUTES = ("pattern", "colour", "shape")

Vectors = NDArray[np.float32]
# (n, 3) words: pattern, colour and shape of each picture
Words = NDArray[np.str_]


def words_of(subjects: Sequence[Subject]) -> Words:
    return np.array([[getattr(subject, name) for name in ATTRIBUTES] for subject in subjects])


def nearest(
    queries: Vectors, vectors: Vectors, k: int, *, leave_out: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Rows of the `k` highest dot products, best first, `(n, k)`.

    `leave_out`, `(n,)`, names for each query a row that does not count.
    """
    scores = queries @ vectors.T
    if leave_out is not None:
        scores[np.arange(len(queries)), leave_out] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def agreement(vectors: Vectors, words: Words, queries: int) -> dict[str, float]:
    """Share of the nearest of the first `queries` pictures with their colour, shape, pattern, all three."""
    rows = np.arange(queries)
    found = nearest(vectors[:queries], vectors, NEAREST, leave_out=rows)
    same = words[found] == words[rows, None]
    shares = {name: float(same[..., i].mean()) for i, name in enumerate(ATTRIBUTES)}
    return shares | {"all three": float(same.all(axis=-1).mean())}


def captions() -> Words:
    """Pattern, colour and shape of every caption, `(320, 3)`."""
    return np.array([(p, c, s) for p in PATTERNS for c in COLOURS for s in SHAPES])


def text_precision(text_vectors: Vectors, vectors: Vectors, words: Words) -> float:
    """Share of the 10 nearest of each caption that fit it wholly.

    Where fewer than 10 pictures fit, of as many as do; a caption that none fits does not count.
    """
    shares = []
    for caption, row in zip(captions(), nearest(text_vectors, vectors, NEAREST), strict=True):
        fits = (words == caption).all(axis=1)
        wanted = min(NEAREST, int(fits.sum()))
        if wanted:
            shares.append(float(fits[row[:wanted]].mean()))
    return float(np.mean(shares))


def _crop(number: int, *, crop: CropSpec) -> NDArray[np.uint8]:
    """The picture of that number, through a file of its format and back."""
    return decode_image(plan_exhibit(number, seed=SEED).data(), crop).pixels


def draw_crops(count: int, crop: CropSpec) -> NDArray[np.uint8]:
    """`(count, side, side, 3)` uint8, drawn by all cores."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return np.stack(list(pool.map(partial(_crop, crop=crop), range(count), chunksize=50)))


def measure(model: str, *, pictures: int, queries: int, report: Report) -> None:
    """Draw, decode and embed so many pictures, and judge the neighbours of the first `queries` and of all captions."""
    # Imported here: the processes that draw import this module too, and have no use for torch.
    from embedder.models.clip import ClipEmbedder

    embedder = ClipEmbedder.load(model)
    started = time.perf_counter()
    crops = draw_crops(pictures, embedder.crop)
    drawn = time.perf_counter()
    vectors = embedder.embed_images(crops)
    embedded = time.perf_counter()
    words = words_of([plan_exhibit(number, seed=SEED).subject for number in range(pictures)])
    shares = agreement(vectors, words, queries)
    texts = embedder.embed_texts([f"a {pattern} {colour} {shape}" for pattern, colour, shape in captions()])
    shares["text"] = text_precision(texts, vectors, words)
    report.values(
        "demo_model",
        {
            "pictures": pictures,
            "queries": queries,
            "captions": len(texts),
            "all_three": shares["all three"],
            "draw_and_decode_s": drawn - started,
            "embed_s": embedded - drawn,
            "fingerprint": embedder.identity.fingerprint,
        },
    )
    for name, bar in BARS.items():
        report.at_least(name, shares[name], bar)


def main(report: Report, folder: Path, options: Any) -> None:
    pictures, queries = (4_000, 400) if options.quick else (10_000, 1_000)
    measure(options.model, pictures=pictures, queries=queries, report=report)


if __name__ == "__main__":
    run("demo_model", __doc__, main, "4,000 pictures and 400 queries", {"--model": {"default": str(DEMO_MODEL)}})
