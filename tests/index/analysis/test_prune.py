"""Pruning keeps what a greedy choice by brute force keeps, after changes too."""

import numpy as np
import pytest

from index.analysis.prune import Pruning
from index.arrays import Positions, Vectors, rounded
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from tests.support.collections.hand_made import searcher_of, unit_vectors

CUT = 0.95


def crowded(seed: int = 0) -> Vectors:
    """Single images, chains of which only neighbours are near-equal, and 200 copies of one image."""
    rng = np.random.default_rng(seed)
    single = unit_vectors(150, seed=1)
    steps = single[:40, np.newaxis] + 0.07 * np.cumsum(rng.standard_normal((40, 6, 8)), axis=1)
    copies = single[-1] + 0.01 * rng.standard_normal((200, 8))
    vectors = np.concatenate([single, steps.reshape(-1, 8), copies]).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[rng.permutation(len(vectors))]


def greedy(vectors: Vectors, order: Positions, cut: float = CUT) -> dict[int, int]:
    """The keeper of each row, by brute force."""
    keeper: dict[int, int] = {}
    alike = rounded(vectors @ vectors.T) >= cut
    for row in order.tolist():
        near = [kept for kept in keeper if keeper[kept] == kept and alike[row, kept]]
        keeper[row] = near[0] if near else row
    return keeper


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    vectors = crowded()
    ids = [f"{number:04}" for number in range(len(vectors))]
    return searcher_of(tmp_path_factory.mktemp("crowded"), ids, vectors, IndexSettings(segment_rows=300))


@pytest.mark.parametrize("cut", [CUT, 0.5, 0.99])
def test_the_preferred_image_of_near_equal_ones_is_kept(searcher: Searcher, cut: float) -> None:
    vectors, order = crowded(), np.random.default_rng(2).permutation(searcher.ntotal)
    expected = greedy(vectors, order, cut)
    pruning = Pruning(searcher.segments, order, cut)
    pruning.run()
    assert dict(enumerate(pruning.keeper.tolist())) == expected
    scores = [float(vectors[row] @ vectors[kept]) for row, kept in sorted(expected.items())]
    assert pruning.scores.tolist() == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_what_changes_is_decided_as_if_everything_were(searcher: Searcher, seed: int) -> None:
    """Some images leave, others come that may be preferred to the kept ones."""
    vectors, rng = crowded(), np.random.default_rng(seed)
    order = rng.permutation(searcher.ntotal)
    before = order[rng.random(len(order)) < 0.9]
    after = order[rng.random(len(order)) < 0.9]
    first = Pruning(searcher.segments, before, CUT)
    first.run()
    assert {row: int(first.keeper[row]) for row in before.tolist()} == greedy(vectors, before)
    assert (np.delete(first.keeper, before) == -1).all()
    looked_up = []
    second = Pruning(searcher.segments, after, CUT, first.keeper, first.scores)
    second.run(lambda done, total: looked_up.append(total))
    rank = dict(zip(after.tolist(), range(len(after)), strict=True))
    for row, expected in greedy(vectors, after).items():
        kept = int(second.keeper[row])
        assert (kept == row) == (expected == row)
        assert kept == row or (second.keeper[kept] == kept and rank[kept] < rank[row])  # one of several perhaps
        assert second.scores[row] == pytest.approx(float(vectors[row] @ vectors[kept]), abs=1e-6)
        assert second.scores[row] >= CUT - 1e-6
    assert looked_up[0] < len(after)
