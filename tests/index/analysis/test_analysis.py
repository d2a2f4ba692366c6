"""Neighbourhoods: against brute force, and what they say of labels, outliers and the plane."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from index.analysis.neighbourhoods import Neighbourhoods, label_votes, neighbourhoods, principal_plane
from index.build.build_index import build_index
from index.collection import Collection
from index.errors import QueryError
from index.search import Searcher
from tests.support.collections.hand_made import DIM, add_run, rows, unit_vectors


def test_neighbourhoods_are_those_of_brute_force_through_segments_and_tombstones(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path / "c"))
    first, second = unit_vectors(90, seed=1), unit_vectors(30, seed=2)
    add_run(collection, rows([f"{n:03}" for n in range(90)], first))
    build_index(collection)
    add_run(collection, rows([f"{n:03}" for n in range(80, 110)], second))  # ten are replaced
    build_index(collection)
    vectors = dict(zip([f"{n:03}" for n in range(110)], [*first[:80], *second], strict=True))
    found = neighbourhoods(Searcher.open(collection), k=4)
    assert sorted(found.ids) == sorted(vectors)
    for image_id, vector, near, scores in zip(found.ids, found.vectors, found.neighbours, found.scores, strict=True):
        np.testing.assert_allclose(vector, vectors[image_id], atol=1e-6)
        cosines = {other: float(vectors[other] @ vector) for other in vectors if other != image_id}
        best = sorted(cosines, key=lambda other: -cosines[other])[:4]
        assert list(found.ids[near]) == best
        np.testing.assert_allclose(scores, [cosines[other] for other in best], atol=1e-6)


@pytest.mark.slow
def test_mend_01_neighbourhoods_of_20_000_rows_in_three_segments_with_tombstones(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path / "c"))
    vectors: dict[str, npt.NDArray[np.float32]] = {}
    for night, (start, end) in enumerate([(0, 12_000), (11_000, 17_000), (16_500, 20_500)]):
        names = [f"{number:05}" for number in range(start, end)]  # some of each night replace those of the one before
        gone = [f"{number:05}" for number in range(100 * night, 100 * night + 250 * night)]
        vectors |= dict(zip(names, unit_vectors(len(names), seed=night), strict=True))
        add_run(collection, rows(names, np.array([vectors[name] for name in names])), deletes=gone)
        vectors = {name: vector for name, vector in vectors.items() if name not in gone}
        build_index(collection)
    searcher = Searcher.open(collection)
    assert [segment.ntotal for segment in searcher.segments.parts] == [12_000, 6_000, 4_000]
    assert len(vectors) == searcher.ntotal < searcher.segments.ntotal

    found = neighbourhoods(searcher, k=5)
    assert sorted(found.ids) == sorted(vectors)
    mine = np.array([vectors[image_id] for image_id in found.ids])
    np.testing.assert_allclose(found.vectors, mine, atol=1e-6)
    for start in range(0, len(mine), 2_000):
        cosines = mine[start : start + 2_000] @ mine.T
        cosines[np.arange(len(cosines)), np.arange(start, start + len(cosines))] = -2
        np.testing.assert_allclose(found.scores[start : start + 2_000], -np.sort(-cosines)[:, :5], atol=1e-6)
    each = np.einsum("nd,nkd->nk", mine, mine[found.neighbours])
    np.testing.assert_allclose(each, found.scores, atol=1e-6)


def test_fewer_images_than_neighbours(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path / "c"))
    vectors = np.zeros((2, DIM), np.float32)
    vectors[:, :2] = [[1.0, 0.0], [0.6, 0.8]]
    add_run(collection, rows(["a", "b"], vectors))
    build_index(collection)
    found = neighbourhoods(Searcher.open(collection), k=3)
    np.testing.assert_array_equal(found.neighbours, [[1, -1, -1], [0, -1, -1]])
    np.testing.assert_allclose(found.crowding(), [0.6, 0.6], atol=1e-6)
    votes = label_votes(found, ["x", "y"])
    assert votes["agreement"].to_pylist() == [0, 0]
    with pytest.raises(QueryError, match="k is 0"):
        neighbourhoods(Searcher.open(collection), k=0)


def test_votes_are_counted_and_the_least_agreed_with_come_first() -> None:
    found = Neighbourhoods(
        ids=np.array(["a", "b", "c", "d", "e"], object),
        vectors=np.zeros((5, 2), np.float32),
        neighbours=np.array([[1, 2], [0, 2], [0, 1], [0, 1], [3, -1]]),
        scores=np.zeros((5, 2), np.float32),
    )
    votes = label_votes(found, ["cat", "cat", "cat", "dog", None])
    assert votes.column_names == ["image_id", "label", "agreement", "suggestion", "support"]
    found_rows = [tuple(row.values()) for row in votes.to_pylist()]
    assert found_rows == [("d", "dog", 0.0, "cat", 1.0), *((name, "cat", 1.0, "cat", 1.0) for name in "abc")]
    split = label_votes(found, ["cat", "dog", "cat", "dog", "cat"])
    assert split["image_id"].to_pylist()[0] == "b"
    by_id = {row["image_id"]: row for row in split.to_pylist()}
    assert (by_id["a"]["agreement"], by_id["a"]["support"]) == (0.5, 0.5)
    assert label_votes(found, [None] * 5).num_rows == 0
    with pytest.raises(QueryError, match="got 1 labels for 5 images"):
        label_votes(found, ["cat"])


def test_the_plane_holds_the_two_widest_directions() -> None:
    flat = (np.random.default_rng(0).standard_normal((200, 2)) * [3, 1]).astype(np.float32)
    turned = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0][:2].astype(np.float32)
    points, share = principal_plane((flat @ turned + 5).astype(np.float32))
    assert share == pytest.approx(1, abs=1e-5)
    spread = flat - flat.mean(axis=0)
    np.testing.assert_allclose(  # distances survive, and so does which axis is wider
        np.linalg.norm(points[:50, None] - points[None, :50], axis=2),
        np.linalg.norm(spread[:50, None] - spread[None, :50], axis=2),
        atol=1e-3,
    )
    assert points[:, 0].std() > points[:, 1].std()
    with pytest.raises(QueryError, match="got 2 vectors"):
        principal_plane(flat[:2])
