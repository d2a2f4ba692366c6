"""How good the demo model is: `python -m benchmarks.demo_model [--quick] [--model FOLDER]`.

Draws fresh pictures like the gallery's (with another seed), stores them as files and decodes them as a job does. Among
the 10 nearest of a picture, without itself: the share with its colour, its shape, its pattern. Among the 10 nearest of
a caption such as "a striped red star": the share that fits it completely.

Then it measures recall@10 of an approximate index of these pictures, with queries of each kind that tuning has not
seen: other pictures, mixes of them, and captions. The build gets every other caption, as with `--queries`.
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

from benchmarks.common.clustered import mixed_queries
from benchmarks.common.report import Report, run
from embedder.images.decode import CropSpec, decode_image
from embedder.models.checkpoint import DEMO_MODEL
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.rows import EMBEDDING, embedding_column
from index.search import Searcher
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES, Subject
from jobs.demo.gallery import plan_exhibit
from jobs.indexing.query_texts import QueryTexts

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
    """Rows of the `k` highest dot products, best first, `(n, k)`. `leave_out`, `(n,)`: a row to skip per query."""
    scores = queries @ vectors.T
    if leave_out is not None:
        scores[np.arange(len(queries)), leave_out] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def agreement(vectors: Vectors, words: Words, queries: int) -> dict[str, float]:
    """For the first `queries` pictures, the share of the nearest with the same pattern, colour and shape."""
    rows = np.arange(queries)
    neighbours = nearest(vectors[:queries], vectors, NEAREST, leave_out=rows)
    same = words[neighbours] == words[rows, None]
    return {name: float(same[..., i].mean()) for i, name in enumerate(ATTRIBUTES)}


def captions() -> Words:
    """Pattern, colour and shape of every caption, `(320, 3)`."""
    return np.array([(p, c, s) for p in PATTERNS for c in COLOURS for s in SHAPES])


def text_precision(text_vectors: Vectors, vectors: Vectors, words: Words) -> float:
    """Share of the 10 nearest of each caption that fit it completely.

    If fewer than 10 pictures fit, only as many of the nearest count; captions that no picture fits are skipped.
    """
    shares = []
    for caption, row in zip(captions(), nearest(text_vectors, vectors, NEAREST), strict=True):
        fits = (words == caption).all(axis=1)
        if k := min(NEAREST, int(fits.sum())):
            shares.append(float(fits[row[:k]].mean()))
    return float(np.mean(shares))


def _crop(number: int, *, crop: CropSpec) -> NDArray[np.uint8]:
    """The picture with this number, encoded in its format and decoded again."""
    return decode_image(plan_exhibit(number, seed=SEED).data(), crop).pixels


def draw_crops(count: int, crop: CropSpec) -> NDArray[np.uint8]:
    """`(count, side, side, 3)` uint8, drawn on all cores."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return np.stack(list(pool.map(partial(_crop, crop=crop), range(count), chunksize=50)))


def all_captions() -> list[str]:
    """Captions of all levels of detail in various words, shuffled."""
    from benchmarks.models.captions import concepts, phrase  # imported here for the reason in `measure`

    rng = np.random.default_rng(SEED)
    captions = sorted({phrase(each, rng) for level in concepts().values() for each in level})
    return [captions[number] for number in rng.permutation(len(captions))]


def index_recall(embedder: ClipEmbedder, vectors: Vectors, others: Vectors, folder: Path, report: Report) -> None:
    """Index pictures, and measure recall with `others` and captions as queries."""
    from jobs.embedding.model_source import model_record  # imported here for the reason in `measure`

    captions, ids = all_captions(), [str(number) for number in range(len(vectors))]
    rows = pa.table({"image_id": ids, "uri": ids, EMBEDDING: embedding_column(vectors)})
    collection = Collection.create_or_open(str(folder / "collection"))
    collection.add_run("memory:", model_record(embedder.identity), [rows])
    texts = QueryTexts(collection=collection, load=lambda _: embedder, texts=captions[::2])
    # So few vectors would be searched exactly; no exact search meets this latency.
    manifest = build_index(collection, IndexSettings(latency_ms=1e-6), texts=texts)
    searcher = Searcher.open(collection)
    figures = []
    for kind, record in manifest.kinds.items():
        text = kind == "text"
        queries = embedder.embed_texts(captions[1::2]) if text else mixed_queries(kind, *np.split(others, 3))
        results = searcher.search(queries, NEAREST, kind=kind)
        hits = [
            {int(match.image_id) for match in matches}.intersection(truth.tolist())
            for matches, truth in zip(results, nearest(queries, vectors, NEAREST), strict=True)
        ]
        share = sum(map(len, hits)) / (NEAREST * len(hits))
        figures.append({"kind": kind, "queries": len(hits), "recall@10": share, "manifest": record.recall})
        report.at_least(f"recall@10 of kind {kind}", share, manifest.settings.target_of(kind))
        report.at_most(f"manifest's error for {kind}", abs(share - record.recall), 0.005)
    report.table(f"recall@10 of {manifest.kind}", figures)


def measure(model: str, *, pictures: int, queries: int, folder: Path, report: Report) -> None:
    """Draw, decode and embed pictures, and judge the neighbours of the first `queries` and of all captions, then an
    index of the pictures with three times as many other pictures as queries.
    """
    # Imported here because the processes that draw also import this module, and need no model.
    from embedder.models.clip import ClipEmbedder

    embedder = ClipEmbedder.load(model)
    crops = draw_crops(pictures + 3 * queries, embedder.crop)
    vectors, others = np.split(embedder.embed_images(crops), [pictures])
    words = words_of([plan_exhibit(number, seed=SEED).subject for number in range(pictures)])
    shares = agreement(vectors, words, queries)
    texts = embedder.embed_texts([f"a {pattern} {colour} {shape}" for pattern, colour, shape in captions()])
    shares["text"] = text_precision(texts, vectors, words)
    for name, bar in BARS.items():
        report.at_least(name, shares[name], bar)
    index_recall(embedder, vectors, others, folder, report)


def main(report: Report, folder: Path, options: Any) -> None:
    pictures, queries = (4_000, 400) if options.quick else (10_000, 1_000)
    measure(options.model, pictures=pictures, queries=queries, folder=folder, report=report)


if __name__ == "__main__":
    run("demo_model", __doc__, main, "4,000 pictures and 400 queries", {"--model": {"default": str(DEMO_MODEL)}})
