"""How int8 compares with fp32 in results and speed on this processor: `python -m benchmarks.precision [--quick]`.

A model of ViT-B/32's size (random weights) is used for photographs, texts and speed. The demo model, which is trained,
is used for neighbours: of the same pictures in both precisions, and of int8 queries among fp32 vectors.
"""

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image

from benchmarks.common.models import save_clip
from benchmarks.common.process import by_turns, seconds_of
from benchmarks.common.report import Report, run
from benchmarks.demo_model import captions, draw_crops, nearest
from embedder.identity import Precision
from embedder.models.load import load_embedder
from embedder.protocol import Embedder
from jobs.values import DEMO_MODEL

PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "retina", "hubble_deep_field")
PASS = 32
PRECISIONS: Final[tuple[Precision, ...]] = ("int8", "fp32")


def photographs(count: int, side: int) -> NDArray[np.uint8]:
    """Parts of scikit-image's photographs, `(count, side, side, 3)`."""
    numbers = np.random.default_rng(0)
    sources = [Image.fromarray(getattr(skimage.data, name)()).convert("RGB") for name in PHOTOGRAPHS]
    crops = []
    for number in range(count):
        source = sources[number % len(sources)]
        edge = int(numbers.integers(min(source.size) // 4, min(source.size)))
        left, top = (int(numbers.integers(0, length - edge + 1)) for length in source.size)
        crops.append(np.asarray(source.resize((side, side), box=(left, top, left + edge, top + edge))))
    return np.stack(crops)


def lowest_cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float((one * other).sum(axis=1).min())


def words() -> list[str]:
    return [f"a {pattern} {colour} {shape}" for pattern, colour, shape in captions()]


def speed(report: Report, int8: Embedder, fp32: Embedder, *, rounds: int) -> None:
    """Agreement on 300 photographs and 300 texts, and the speed of a batch and of one picture."""
    crops, texts = photographs(300, int8.crop.side), words()[:300]
    pictures = lowest_cosine(int8.embed_images(crops), fp32.embed_images(crops))
    report.at_least("ViT-B/32: lowest cosine, photographs", pictures, 0.999)
    report.at_least(
        "ViT-B/32: lowest cosine, texts", lowest_cosine(int8.embed_texts(texts), fp32.embed_texts(texts)), 0.999
    )
    models = {"int8": int8, "fp32": fp32}
    passes, single = (
        by_turns({name: partial(seconds_of, partial(each.embed_images, batch)) for name, each in models.items()}, times)
        for batch, times in ((crops[:PASS], rounds), (crops[:1], rounds * 5))
    )
    report.table(
        "ViT-B/32",
        [
            {"": name, f"images/s in passes of {PASS}": PASS / passes[name], "one picture, ms": 1000 * single[name]}
            for name in models
        ],
    )
    report.at_least("ViT-B/32: images/s, int8 ÷ fp32", passes["fp32"] / passes["int8"], 1.9)
    report.at_most("ViT-B/32: p50 of one picture, int8 ÷ fp32", single["int8"] / single["fp32"], 0.6)


def neighbours(report: Report, int8: Embedder, fp32: Embedder, *, pictures: int) -> None:
    """The ten nearest of the demo's pictures in each precision, and the first match of int8 queries in fp32 vectors."""
    crops = draw_crops(pictures, int8.crop)
    ours, exact = int8.embed_images(crops), fp32.embed_images(crops)
    itself = np.arange(500)
    int8_nearest, fp32_nearest = (nearest(rows[itself], rows, 10, leave_out=itself) for rows in (ours, exact))
    shared = [len(set(one) & set(other)) / 10 for one, other in zip(int8_nearest, fp32_nearest, strict=True)]
    report.at_least("demo: share of the ten nearest that both find", float(np.mean(shared)), 0.98)
    queries = {
        "pictures": (ours[itself], exact[itself], itself),
        "texts": (int8.embed_texts(words()), fp32.embed_texts(words()), None),
    }
    gaps = {}
    for name, (low, full, leave_out) in queries.items():
        first, expected = (nearest(rows, exact, 1, leave_out=leave_out)[:, 0] for rows in (low, full))
        report.at_least(
            f"demo: int8 queries with the same first match, {name}", float((first == expected).mean()), 0.99
        )
        gaps[name] = float(((exact[expected] - exact[first]) * full).sum(axis=1).max())
    report.values("demo: greatest loss of cosine by another first match", gaps)


def main(report: Report, folder: Path, options: Any) -> None:
    large, rounds = str(save_clip(folder / "vit-b-32")), 5 if options.quick else 20
    speed(report, *(load_embedder(large, precision=each) for each in PRECISIONS), rounds=rounds)
    int8, fp32 = (load_embedder(str(DEMO_MODEL), device="cpu", precision=each) for each in PRECISIONS)
    neighbours(report, int8, fp32, pictures=2000)


if __name__ == "__main__":
    run("precision", __doc__, main, "fewer rounds")
