"""Near-equal rows, such as frames of a video or placeholders, do not decide the kind of index for all."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from index.builder.recall import recall
from index.collection.records.index_settings import IndexSettings
from tests.support.collections.hand_made import searcher_of

ROWS, DIM, ALIKE = 5_000, 64, 150
Vectors = npt.NDArray[np.float32]


def normal(rng: np.random.Generator, count: int, length: float = 1.0) -> Vectors:
    """Random vectors of about this length, `(count, 64)`."""
    vectors: Vectors = rng.standard_normal((count, DIM)).astype(np.float32) * np.float32(length / DIM**0.5)
    return vectors


def placeholders(rng: np.random.Generator) -> Vectors:
    return np.repeat(normal(rng, 1), ALIKE, axis=0)


def recompressed(rng: np.random.Generator, noise: float = 0.03) -> Vectors:
    return placeholders(rng) + normal(rng, ALIKE, noise)


def frames(rng: np.random.Generator) -> Vectors:
    """Of a camera that hardly moves."""
    return placeholders(rng) + np.cumsum(normal(rng, ALIKE, 0.003), axis=0) + normal(rng, ALIKE, 0.02)


def loosely_alike(rng: np.random.Generator) -> Vectors:
    return recompressed(rng, 0.2)


LONG = [pytest.param(alike, marks=pytest.mark.long) for alike in (recompressed, frames)]


@pytest.mark.parametrize("alike", [placeholders, loosely_alike, *LONG])
def test_an_index_stays_approximate(tmp_path: Path, alike: object) -> None:
    rng = np.random.default_rng(0)
    centres = normal(rng, 200)
    vectors = centres[rng.integers(0, 200, ROWS)] + normal(rng, ROWS, 0.5)
    vectors[:ALIKE] = alike(rng)  # type: ignore[operator]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors[rng.permutation(ROWS)]
    ids = [f"{row}" for row in range(ROWS)]
    searcher = searcher_of(tmp_path / "c", ids, vectors, IndexSettings(latency_ms=0.05, target_recall=0.98))
    manifest = searcher.manifest
    assert manifest.kind != "Flat"
    assert manifest.recall["10"] >= 0.98
    queries = vectors[::10]
    exact = -np.sort(-(queries @ vectors.T), axis=1)[:, :11]
    found = searcher.search(queries, 11, kind="image")
    scores = np.array([[match.score for match in matches] for matches in found], np.float32)
    assert recall(scores, exact, 11).mean() >= 0.975
