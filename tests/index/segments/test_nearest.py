"""Segments with approximate indexes are searched like a single one: the same answers as brute force, and no more exact
vectors read.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from index.segments.nearest import Part, nearest
from index.segments.segmented_index import SegmentedIndex
from index.segments.vector_file import VectorFile
from index.segments.vector_index import VectorIndex
from tests.support.collections.hand_made import MODEL, add_version, rows, unit_vectors

DIM, ROWS, SEGMENTS = 16, 1_800, 3
GONE = np.arange(0, ROWS, 11)
QUERIES = unit_vectors(60, seed=1, dim=DIM)


@pytest.fixture(scope="module", params=["IVF16,PQ8x4fsr", "HNSW16,SQ8,Refine(SQ8)"])
def segments(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SegmentedIndex:
    """Three equal segments with deleted rows, and a small fourth one that is searched exactly."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("collection")))
    settings = IndexSettings(factory=request.param, segment_rows=ROWS // SEGMENTS)
    ids, model = [f"{number:05}" for number in range(ROWS + 100)], MODEL.model_copy(update={"dim": DIM})
    vectors = unit_vectors(ROWS + 100, dim=DIM)
    add_version(collection, rows(ids[:ROWS], vectors[:ROWS]), settings=settings, model=model)
    add_version(
        collection, rows(ids[ROWS:], vectors[ROWS:]), settings=settings, model=model, deletes=[ids[row] for row in GONE]
    )
    return Searcher.open(collection).segments


@pytest.mark.parametrize("share", [None, 0.9, 0.3, 0.02, 0.002])
@pytest.mark.parametrize("k", [1, 10, 50])
def test_several_segments_answer_as_brute_force_does(segments: SegmentedIndex, share: float | None, k: int) -> None:
    assert [bool(segment.parameters) for segment in segments.parts] == [True] * SEGMENTS + [False]
    positions = segments.live_positions()
    passes = np.ones(len(positions), bool) if share is None else np.random.default_rng(2).random(len(positions)) < share
    eligible = None if share is None else segments.eligible_at(positions[passes])
    found = segments.search(QUERIES, k, eligible)
    exact = np.where(passes, QUERIES @ segments.vectors(positions).T, -np.inf)
    count = min(k, int(passes.sum()))
    best = positions[np.argsort(-exact, axis=1)[:, :count]]
    assert found.positions.shape == (len(QUERIES), k)
    assert (found.positions[:, count:] == -1).all()
    shares = [len(set(mine) & set(true)) / count for mine, true in zip(found.positions, best, strict=True)]
    assert np.mean(shares) >= 0.97
    where = np.searchsorted(positions, found.positions[:, :count])
    assert np.array_equal(positions[where], found.positions[:, :count])  # live rows
    assert passes[where].all()
    assert np.allclose(found.scores[:, :count], np.take_along_axis(exact, where, axis=1), atol=1e-5)
    assert (np.diff(found.scores[:, :count], axis=1) <= 0).all()


def test_no_more_vectors_are_read_than_in_one_segment(
    segments: SegmentedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of vectors that are on disk, all are requested before they are read."""
    in_memory = segments.search(QUERIES, 10)
    requested: list[int] = []
    monkeypatch.setattr(VectorIndex, "reads_disk", lambda *_: True)
    request = VectorFile.request

    def count(file: VectorFile, positions: npt.NDArray[np.int64]) -> None:
        requested.append(len(positions))
        request(file, positions)

    monkeypatch.setattr(VectorFile, "request", count)
    for query in QUERIES:
        alone = []
        for segment in segments.parts[:SEGMENTS]:
            requested.clear()
            nearest([Part(segment)], query[np.newaxis], 10)
            alone.append(sum(requested))
        requested.clear()
        segments.search(query[np.newaxis], 10)
        assert 10 <= sum(requested) <= max(alone)
    on_disk = segments.search(QUERIES, 10)
    assert np.array_equal(in_memory.positions, on_disk.positions)
    assert np.array_equal(in_memory.scores, on_disk.scores)


def test_near_equal_rows_in_one_of_several_segments_are_told_apart(tmp_path: Path) -> None:
    """Rows so close to each other that codes cannot rank them: such searches rank more candidates exactly."""
    rng = np.random.default_rng(5)
    vectors = unit_vectors(1_200, seed=6, dim=DIM)
    vectors[:120] = vectors[0] + 0.004 * rng.standard_normal((120, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    collection = Collection.create_or_open(str(tmp_path))
    table = rows([f"{number:05}" for number in range(len(vectors))], vectors)
    add_version(
        collection,
        table,
        settings=IndexSettings(factory="IVF16,SQ4", segment_rows=600),
        model=MODEL.model_copy(update={"dim": DIM}),
    )
    segments = Searcher.open(collection).segments
    for segment in segments.parts:
        segment.tune({"rescore": 1.5, "nprobe": 16, "crowd": 2.0})
    queries = vectors[:120:6]
    best = np.sort(queries @ vectors.T, axis=1)[:, ::-1][:, :10]

    def found() -> float:
        return float(np.mean(segments.search(queries, 10).scores >= best[:, 9:] - 1e-6))

    before = found()
    segments.parts[0].tune({"crowd": 0.99})
    assert before < 0.9 < 0.99 < found()
