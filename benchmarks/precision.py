"""How precisions on CPUs compare in results and speed: `python -m benchmarks.precision [--quick]`.

A model of ViT-B/32's size (random weights) is used for photographs, texts and speed. The demo model, which is trained,
is used for neighbours: of the same pictures in each precision and in fp32, and of queries among fp32 vectors.
"""

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image

from benchmarks.common.process import by_turns, seconds_of
from benchmarks.common.report import Figure, Report, run
from benchmarks.demo_model import captions, draw_crops, nearest
from benchmarks.models.random_models import save_clip
from embedder.identity import Precision
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from embedder.models.load import load_embedder
from embedder.protocol import Embedder

PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "retina", "hubble_deep_field")
PASS = 32
BARS: Final[dict[Precision, tuple[float, float]]] = {"bf16": (0.9998, 0.99), "int8": (0.9995, 0.98)}
"""Lowest cosine to fp32, and share of queries with the same first match."""


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


def speed(report: Report, model: str, *, rounds: int) -> None:
    """Agreement on 300 photographs and 300 texts, and the speed of a batch and of one picture."""
    torch = ClipEmbedder.load(model, device="cpu")
    models: dict[str, Embedder] = {"torch, fp32": torch}
    models |= {each: load_embedder(model, device="cpu", precision=each) for each in ("fp32", *BARS, "auto")}
    crops, texts = photographs(300, torch.crop.side), words()[:300]
    pictures, words_ = torch.embed_images(crops), torch.embed_texts(texts)
    passes, single = (
        by_turns({name: partial(seconds_of, partial(each.embed_images, batch)) for name, each in models.items()}, times)
        for batch, times in ((crops[:PASS], rounds), (crops[:1], rounds * 5))
    )
    table: list[dict[str, Figure]] = []
    for name, each in models.items():
        vectors = each.embed_images(crops)
        cosines = {
            "photographs": lowest_cosine(vectors, pictures),
            "texts": lowest_cosine(each.embed_texts(texts), words_),
        }
        table.append(
            {
                "": name,
                f"images/s in passes of {PASS}": PASS / passes[name],
                "÷ torch": passes["torch, fp32"] / passes[name],
                "one picture, ms": 1000 * single[name],
                **{f"lowest cosine to torch, {kind}": cosine for kind, cosine in cosines.items()},
            }
        )
        if name in BARS:
            for kind, cosine in cosines.items():
                report.at_least(f"ViT-B/32 in {name}: lowest cosine, {kind}", cosine, BARS[name][0])
        if not isinstance(each, ClipEmbedder):
            same = all((each.embed_images(crops[:n]) == vectors[:n]).all() for n in (1, 7, 64))
            report.at_least(f"ViT-B/32 in {name}: the same bits in batches of 1, 7 and 64", float(same), 1)
    report.table("ViT-B/32", table)
    report.at_least("ViT-B/32: images/s, auto ÷ torch in fp32", passes["torch, fp32"] / passes["auto"], 1.9)
    best = min(seconds for name, seconds in passes.items() if name != "auto")
    report.at_least("ViT-B/32: images/s, auto ÷ the fastest precision", best / passes["auto"], 0.9)


def neighbours(report: Report, model: str, *, pictures: int) -> None:
    """The ten nearest of the demo's pictures in each precision, and the first match of its queries in fp32 vectors."""
    fp32 = ClipEmbedder.load(model, device="cpu")
    crops, itself = draw_crops(pictures, fp32.crop), np.arange(500)
    exact, exact_texts = fp32.embed_images(crops), fp32.embed_texts(words())
    gaps = {}
    for precision, (_, same_first) in BARS.items():
        low = load_embedder(model, device="cpu", precision=precision)
        ours = low.embed_images(crops)
        low_nearest, fp32_nearest = (nearest(rows[itself], rows, 10, leave_out=itself) for rows in (ours, exact))
        shared = [len(set(one) & set(other)) / 10 for one, other in zip(low_nearest, fp32_nearest, strict=True)]
        report.at_least(f"demo in {precision}: share of the ten nearest that both find", float(np.mean(shared)), 0.98)
        queries = {
            "pictures": (ours[itself], exact[itself], itself),
            "texts": (low.embed_texts(words()), exact_texts, None),
        }
        for name, (rows, full, leave_out) in queries.items():
            first, expected = (nearest(each, exact, 1, leave_out=leave_out)[:, 0] for each in (rows, full))
            share = float((first == expected).mean())
            report.at_least(f"demo: {precision} queries with the same first match, {name}", share, same_first)
            gaps[f"{precision}, {name}"] = float(((exact[expected] - exact[first]) * full).sum(axis=1).max())
    report.values("demo: greatest loss of cosine by another first match", gaps)


def main(report: Report, folder: Path, options: Any) -> None:
    speed(report, str(save_clip(folder / "vit-b-32")), rounds=5 if options.quick else 20)
    neighbours(report, str(DEMO_MODEL), pictures=2000)


if __name__ == "__main__":
    run("precision", __doc__, main, "fewer rounds")
