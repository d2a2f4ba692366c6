"""What the demo model knows: `python -m benchmarks.demo_model [--quick] [--model FOLDER]`.

Draws fresh pictures as the gallery has them (with a seed of its own), stores them as files and decodes those
as a job does. Among the 10 nearest of a picture, itself left out: the share with its colour, its shape, its
pattern. Among the 10 nearest of each caption such as "a striped red star": the share that fits it wholly.

Then recall@10 of an approximate index of these pictures, with queries of each kind that no tuning saw: other pictures,
mixes of them, and captions. The build is given every other caption, as an operator would by `--queries`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.common.report import Report, run
from embedder.images.decode import CropSpec, decode_image
from index.build.build_index import build_index
from index.collection import Collection
from index.collection.records import IndexSettings
from index.collection.rows import EMBEDDING, embedding_column
from index.search import Searcher
from jobs.demo.clustered import mixed_queries
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES, Subject
from jobs.demo.gallery import plan_exhibit
from jobs.indexing.query_texts import QueryTexts
from jobs.values import DEMO_MODEL

if TYPE_CHECKING:
    from embedder.models.clip import ClipEmbedder

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


def all_captions() -> list[str]:
    """Captions of all levels of detail, in many words, in no order."""
    from jobs.demo.captions import concepts, phrase  # here for the reason that `measure` gives

    rng = np.random.default_rng(SEED)
    captions = sorted({phrase(each, rng) for level in concepts().values() for each in level})
    return [captions[number] for number in rng.permutation(len(captions))]


def index_recall(embedder: ClipEmbedder, vectors: Vectors, others: Vectors, folder: Path, report: Report) -> None:
    """Index pictures, and search with `others` and captions, as far as each kind needs."""
    from jobs.embedding.model_source import model_record  # here for the reason that `measure` gives

    captions, ids = all_captions(), [str(number) for number in range(len(vectors))]
    rows = pa.table({"image_id": ids, "uri": ids, EMBEDDING: embedding_column(vectors)})
    collection = Collection.create_or_open(str(folder / "collection"))
    collection.add_run("memory:", model_record(embedder.identity), [rows])
    texts = QueryTexts(collection=collection, load=lambda _: embedder, texts=captions[::2])
    # So few vectors are scanned exactly, unless that is too slow however fast it is.
    manifest = build_index(collection, IndexSettings(latency_ms=1e-6), texts=texts)
    searcher = Searcher.open(collection)
    figures = []
    for kind, record in manifest.kinds.items():
        text = kind == "text"
        queries = embedder.embed_texts(captions[1::2]) if text else mixed_queries(kind, *np.split(others, 3))
        found = searcher.search(queries, NEAREST, kind=kind)
        hits = [
            {int(match.image_id) for match in matches}.intersection(truth.tolist())
            for matches, truth in zip(found, nearest(queries, vectors, NEAREST), strict=True)
        ]
        share = sum(map(len, hits)) / (NEAREST * len(hits))
        figures.append({"kind": kind, "queries": len(hits), "recall@10": share, "manifest": record.recall})
        report.at_least(f"recall@10 of kind {kind}", share, manifest.settings.target_of(kind))
        report.at_most(f"manifest's error for {kind}", abs(share - record.recall), 0.005)
    report.table(f"recall@10 of {manifest.kind}", figures)


def measure(model: str, *, pictures: int, queries: int, folder: Path, report: Report) -> None:
    """Draw, decode and embed so many pictures, and judge the neighbours of the first `queries` and of all captions, and
    an index of them by three times as many queries again.
    """
    # Imported here: the processes that draw import this module too, and have no use for a model.
    from embedder.models.clip import ClipEmbedder

    embedder = ClipEmbedder.load(model)
    crops = draw_crops(pictures + 3 * queries, embedder.crop)
    vectors, others = np.split(embedder.embed_images(crops), [pictures])
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
            "fingerprint": embedder.identity.fingerprint,
        },
    )
    for name, bar in BARS.items():
        report.at_least(name, shares[name], bar)
    index_recall(embedder, vectors, others, folder, report)


def main(report: Report, folder: Path, options: Any) -> None:
    pictures, queries = (4_000, 400) if options.quick else (10_000, 1_000)
    measure(options.model, pictures=pictures, queries=queries, folder=folder, report=report)


if __name__ == "__main__":
    run("demo_model", __doc__, main, "4,000 pictures and 400 queries", {"--model": {"default": str(DEMO_MODEL)}})
