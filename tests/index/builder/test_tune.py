"""Tuning finds the cheapest parameters of the approximate search that reach the target recall."""

from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from index.builder.tune import tune
from index.segments.nearest import Part, nearest
from index.segments.segment import Segment
from tests.support.collections.hand_made import segment_of, unit_vectors

ROWS, DIM = 1_000, 16


def recall_at_10(segment: Segment, vectors: npt.NDArray[np.float32]) -> float:
    """Recall of the rows as queries, without themselves, against brute force."""
    exact = vectors @ vectors.T
    np.fill_diagonal(exact, -np.inf)
    found = nearest([Part(segment)], vectors, 11).positions
    best = np.argsort(-exact, axis=1)[:, :10]
    hits = [len(set(positions) & set(exact)) for positions, exact in zip(found, best, strict=True)]
    return float(np.mean(hits)) / 10


@pytest.fixture(autouse=True)
def all_rows_are_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.builder.tune._QUERIES", ROWS)


LONG = [pytest.param(factory, marks=pytest.mark.long) for factory in ("IVF32,PQ8x4fs", "SQ8")]


@pytest.mark.parametrize("factory", ["IVF32,Flat", "HNSW16", "IVF32,PQ8x4fs,Refine(SQ8)", *LONG])
def test_the_target_recall_is_reached(tmp_path: Path, factory: str) -> None:
    vectors = unit_vectors(ROWS, dim=DIM)
    segment = segment_of(tmp_path, vectors, factory)
    for target in (0.7, 0.95):
        assert tune(segment, target) == pytest.approx(recall_at_10(segment, vectors), abs=0.02)
        assert recall_at_10(segment, vectors) >= target
    parameters = segment.parameters
    segment.tune({"nprobe": 1.0, "efSearch": 8.0, "rescore": 1.0, "k_factor": 1.0})
    segment.tune(parameters)
    assert segment.parameters == parameters


def test_all_lists_are_probed_if_the_target_needs_it(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, unit_vectors(ROWS, dim=DIM), "IVF13,Flat")
    tune(segment, 1.0)
    assert segment.parameters["nprobe"] == 13


def test_the_best_parameters_are_used_if_none_reach_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.segments.kinds.kind.IndexKind.depths", [[{"rescore": 2.0}, {"rescore": 4.0}]])
    vectors = unit_vectors(ROWS, dim=DIM)
    segment = segment_of(tmp_path, vectors, "PCA1,IVF8,SQ4")
    best = tune(segment, 0.999)
    assert (segment.parameters["nprobe"], segment.parameters["rescore"]) == (8, 4)
    assert recall_at_10(segment, vectors) == pytest.approx(best, abs=0.02)
    segment.tune({"nprobe": 1.0, "rescore": 1.0})
    assert recall_at_10(segment, vectors) < best < 0.999


@pytest.mark.parametrize("count", [17, 40])
def test_a_segment_of_few_rows_can_be_tuned(tmp_path: Path, count: int) -> None:
    vectors = unit_vectors(count, dim=DIM)
    segment = segment_of(tmp_path, vectors, "IVF1,PQ8x4fs")
    tune(segment, 0.99)
    assert recall_at_10(segment, vectors) == 1
    assert faiss.try_extract_index_ivf(faiss.read_index(str(tmp_path / "ann.faiss"))).nlist == 1


def test_queries_amid_near_equal_rows_alone_get_a_deeper_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = unit_vectors(3_000, dim=DIM)
    vectors[:120] = vectors[0] + 0.1 * unit_vectors(120, seed=1, dim=DIM)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors[np.random.default_rng(0).permutation(len(vectors))]
    monkeypatch.setattr("index.segments.kinds.kind.IndexKind.depths", [[{"rescore": 2.0}, {"rescore": 4.0}]])
    segment = segment_of(tmp_path, vectors, "IVF16,SQ4")
    assert tune(segment, 0.985) >= 0.985
    assert 0.5 < segment.parameters["crowd"] < 1
    assert recall_at_10(segment, vectors) >= 0.98
    monkeypatch.setattr("index.segments.nearest._CROWD_DEPTH", 1.0)
    segment.tune(segment.parameters)
    assert recall_at_10(segment, vectors) < 0.98
    easy = segment_of(tmp_path, vectors, "IVF16,SQ8")
    tune(easy, 0.95)
    assert "crowd" not in easy.parameters
