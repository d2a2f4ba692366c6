"""Searching: matches and scores against brute force, order, limits and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.build.build_index import build_index
from index.collection import Collection
from index.errors import QueryError
from index.queries import MAX_K
from index.search import Searcher
from tests.support.collections.hand_made import DIM, add_run, rows, unit_vectors

COUNT = 300
IDS = [f"{number:03d}" for number in range(COUNT)]
VECTORS = unit_vectors(COUNT)


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("collection")))
    label = [f"label {number % 7}" for number in range(COUNT)]
    # Written out of order, in files of uneven length.
    order = np.random.default_rng(3).permutation(COUNT)
    tables = [
        rows(
            [IDS[row] for row in part],
            VECTORS[part],
            metadata={"label": [label[row] for row in part], "number": part},
        )
        for part in np.split(order, [10, 170])
    ]
    add_run(collection, *tables)
    build_index(collection)
    return Searcher.open(collection)


@pytest.mark.parametrize("k", [1, 10, 100, COUNT])
def test_matches_and_scores_equal_brute_force(searcher: Searcher, k: int) -> None:
    queries = unit_vectors(25, seed=1)
    exact = queries @ VECTORS.T
    for matches, scores in zip(searcher.search(queries, k), exact, strict=True):
        best = np.argsort(-scores)[:k]
        assert [match.image_id for match in matches] == [IDS[row] for row in best]
        assert np.allclose([match.score for match in matches], scores[best], atol=2e-6)
        assert [match.metadata["number"] for match in matches] == best.tolist()
    first = searcher.search(queries[:1], 1)[0][0]
    row = int(first.image_id)
    assert first.uri == f"memory:{row:03d}"
    assert first.metadata == {"label": f"label {row % 7}", "number": row}


def test_scores_on_hand_made_vectors(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    vectors = np.zeros((4, DIM), np.float32)
    vectors[0, 0] = vectors[1, 1] = 1
    vectors[2, 0] = -1
    vectors[3, :2] = 0.6, 0.8
    add_run(collection, rows(["east", "north", "west", "between"], vectors))
    build_index(collection)
    matches = Searcher.open(collection).search(np.eye(1, DIM) * 1e-3, 10)[0]
    assert [(match.image_id, match.score) for match in matches] == [
        ("east", 1.0),
        ("between", 0.6),
        ("north", 0.0),
        ("west", -1.0),
    ]


@pytest.mark.parametrize("k", [0, -1, MAX_K + 1, 1_000_000, 2.5, True, "10", None])
def test_a_k_that_makes_no_sense_is_refused(searcher: Searcher, k: Any) -> None:
    with pytest.raises(QueryError, match="expected a whole number from 1 to 10,000"):
        searcher.search(VECTORS[:1], k)


@pytest.mark.parametrize("shape", [(DIM,), (1, DIM + 1), (1, 1, DIM), (0,)])
def test_another_shape_is_refused_with_both_numbers(searcher: Searcher, shape: tuple[int, ...]) -> None:
    with pytest.raises(QueryError) as caught:
        searcher.search(np.ones(shape), 3)
    assert str(caught.value) == f"got vectors of shape {shape}: the index takes (n, {DIM})"


@pytest.mark.parametrize("value", [0, np.nan, np.inf])
def test_a_vector_without_a_direction_is_refused(searcher: Searcher, value: float) -> None:
    vectors = np.ones((3, DIM))
    vectors[2] = value
    with pytest.raises(QueryError, match="vector 2 is zero or not finite"):
        searcher.search(vectors, 3)


def test_the_callers_array_is_left_alone(searcher: Searcher) -> None:
    query = np.full((1, 2 * DIM), 7, np.float32)[:, ::2]
    query.flags.writeable = False
    matches = searcher.search(query, 5)
    assert (query == 7).all()
    assert matches == searcher.search(query / 100, 5)
    assert searcher.search(np.empty((0, DIM)), 5) == []
    assert searcher.search(query, np.int64(5)) == matches  # type: ignore[arg-type]


def test_mend_07_a_filter_is_called_so_and_other_names_are_refused(searcher: Searcher) -> None:
    [found] = searcher.search(VECTORS[:1], 5, filter={"label": "label 1"})
    assert {match.metadata["label"] for match in found} == {"label 1"}
    misspelt: Any = {"where": {"label": "label 1"}}
    with pytest.raises(TypeError, match="'where'"):
        searcher.search(VECTORS[:1], 5, **misspelt)
    with pytest.raises(TypeError, match="'where'"):
        searcher.more_like([("042", 1)], **misspelt)


def test_an_id_in_place_of_ids_to_exclude_is_refused(searcher: Searcher) -> None:
    with pytest.raises(QueryError, match="exclude is '042': expected a set or a list of ids"):
        searcher.search(VECTORS[:1], 5, exclude="042")
