"""Selections are those of the greedy choice by brute force, made at once or in steps."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from index.analysis.select import Selection, typicality
from index.arrays import Vectors
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from tests.support.collections.hand_made import searcher_of, unit_vectors

COUNT = 600
VECTORS = unit_vectors(COUNT, seed=3)
GROUPS = np.random.default_rng(1).choice(4, COUNT, p=[0.9, 0.06, 0.03, 0.01])


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    ids = [f"{number:04}" for number in range(COUNT)]
    return searcher_of(tmp_path_factory.mktemp("select"), ids, VECTORS, IndexSettings(segment_rows=300))


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that several rounds are needed."""
    monkeypatch.setattr("index.analysis.select._CANDIDATES", 30)
    monkeypatch.setattr("index.analysis.select._ROWS", 70)


def selection(searcher: Searcher, allowed: npt.NDArray[np.bool_] | None = None, *earlier: Any) -> Selection:
    every = np.ones(COUNT, bool)
    return Selection(searcher.segments, np.arange(COUNT), every if allowed is None else allowed, *earlier)


def order(made: Selection) -> list[int]:
    return [int(row) for row in np.argsort(made.ranks, kind="stable") if made.ranks[row]]


def greedy(count: int, *, diverse: float = 1.0, values: Any = 0.0, first: int | None = None) -> list[int]:
    """The picks by brute force."""
    cosines: Vectors = VECTORS @ VECTORS.T
    picks = [int((VECTORS @ VECTORS.mean(axis=0)).argmax()) if first is None else first]
    while len(picks) < count:
        gains = values - diverse * cosines[:, picks].max(axis=1)
        gains[picks] = -np.inf
        picks.append(int(gains.argmax()))
    return picks


def test_the_farthest_image_comes_next(searcher: Searcher) -> None:
    made = selection(searcher)
    made.extend(100)
    assert order(made) == greedy(100)
    cosines = VECTORS @ VECTORS[order(made)].T
    assert made.scores == pytest.approx(cosines.max(axis=1), abs=1e-6)
    assert made.nearest.tolist() == (cosines.argmax(axis=1) + 1).tolist()
    assert made.coverage == pytest.approx(cosines.max(axis=1).min(), abs=1e-6)
    made.extend(COUNT + 5)
    assert sorted(made.ranks.tolist()) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("diverse", [0.0, 0.3, 2.0])
def test_typical_images_and_a_mix(searcher: Searcher, diverse: float) -> None:
    values = typicality(searcher.segments, np.arange(COUNT))
    assert 0.5 < values.mean() <= values.max() <= 1 + 1e-6
    made = selection(searcher)
    made.extend(60, diverse=diverse, values=values)
    assert order(made) == greedy(60, diverse=diverse, values=values, first=int(values.argmax()))


def test_a_selection_continues_after_changes(searcher: Searcher) -> None:
    first = selection(searcher)
    first.extend(50)
    gone = np.zeros(COUNT, bool)
    gone[[order(first)[3], order(first)[20], 5]] = True
    ranks, nearest = np.where(gone, 0, first.ranks), np.where(np.arange(COUNT) % 7 == 0, 0, first.nearest)
    kept = [row for row in order(first) if not gone[row]]
    second = selection(searcher, ~gone, ranks, nearest, first.scores.copy())
    assert second.scores == pytest.approx((VECTORS @ VECTORS[kept].T).max(axis=1), abs=1e-6)
    second.extend(60)
    assert [row for row in order(second) if second.ranks[row] <= 50] == kept
    assert len(order(second)) == 60
    assert not gone[order(second)].any()
    again = selection(searcher)
    again.extend(60)
    assert order(again)[:50] == order(first)


def test_groups_get_the_same_number_as_far_as_they_have_so_many(searcher: Searcher) -> None:
    rows = np.bincount(GROUPS)
    made = selection(searcher)
    made.extend(100, groups=GROUPS)
    picked = np.bincount(GROUPS[made.ranks > 0])
    every = picked == rows
    assert 0 < every.sum() < len(rows)
    assert np.ptp(picked[~every]) <= 1
    assert picked[every].max() <= picked[~every].min()
    assert picked.sum() == 100
    made.extend(140, groups=GROUPS)
    assert np.count_nonzero(made.ranks) == 140


def test_equal_vectors_are_picked_last(searcher: Searcher, tmp_path: Any) -> None:
    vectors = np.concatenate([VECTORS[:5], np.repeat(VECTORS[5:6], 40, axis=0)])
    copies = searcher_of(tmp_path, [f"{number:02}" for number in range(45)], vectors)
    made = Selection(copies.segments, np.arange(45), np.ones(45, bool))
    made.extend(45)
    assert len({min(row, 5) for row in order(made)[:6]}) == 6
    assert sorted(made.ranks.tolist()) == list(range(1, 46))
