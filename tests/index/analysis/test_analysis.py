"""Neighbourhoods against brute force; votes on labels, planes, and clusters."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from index.analysis.clusters import cluster, common_labels, distinct_names, distinctive_words, nearest_words
from index.analysis.neighbourhoods import Neighbourhoods, label_votes, neighbourhoods
from index.analysis.plane import neighbour_plane, principal_plane
from index.builder.build_index import build_index
from index.collection import Collection
from index.errors import QueryError
from index.search import Searcher
from tests.support.collections.hand_made import DIM, add_run, rows, searcher_of, unit_vectors


def test_neighbourhoods_are_those_of_brute_force(tmp_path: Path) -> None:
    """With several segments and tombstones: each night replaces some of the previous images, and deletes some."""
    nights = [(0, 120), (110, 170), (165, 205)]
    collection = Collection.create_or_open(str(tmp_path / "c"))
    vectors: dict[str, npt.NDArray[np.float32]] = {}
    for night, (start, end) in enumerate(nights):
        names = [f"{number:05}" for number in range(start, end)]
        gone = [f"{number:05}" for number in range(night, 2 * night)]
        vectors |= dict(zip(names, unit_vectors(len(names), seed=night), strict=True))
        add_run(collection, rows(names, np.array([vectors[name] for name in names])), deletes=gone)
        vectors = {name: vector for name, vector in vectors.items() if name not in gone}
        build_index(collection)
    searcher = Searcher.open(collection)
    assert [segment.ntotal for segment in searcher.segments.parts] == [end - start for start, end in nights]
    assert len(vectors) == searcher.ntotal < searcher.segments.ntotal

    found = neighbourhoods(searcher, k=5)
    assert sorted(found.ids) == sorted(vectors)
    mine = np.array([vectors[image_id] for image_id in found.ids])
    cosines = mine @ mine.T
    np.fill_diagonal(cosines, -2)
    np.testing.assert_allclose(found.scores, -np.sort(-cosines)[:, :5], atol=1e-6)
    cosines = np.einsum("nd,nkd->nk", mine, mine[found.neighbours])
    np.testing.assert_allclose(cosines, found.scores, atol=1e-6)


def test_fewer_images_than_neighbours(tmp_path: Path) -> None:
    vectors = np.zeros((2, DIM))
    vectors[:, :2] = [[1.0, 0.0], [0.6, 0.8]]
    searcher = searcher_of(tmp_path, ["a", "b"], vectors)
    found = neighbourhoods(searcher, k=3)
    np.testing.assert_array_equal(found.neighbours, [[1, -1, -1], [0, -1, -1]])
    votes = label_votes(found, ["x", "y"])
    assert votes["agreement"].to_pylist() == [0, 0]
    with pytest.raises(QueryError, match="k is 0"):
        neighbourhoods(searcher, k=0)


def test_votes_are_counted_and_the_lowest_agreement_comes_first() -> None:
    found = Neighbourhoods(
        ids=np.array(["a", "b", "c", "d", "e"], object),
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


def test_the_principal_plane_is_that_of_a_singular_value_decomposition(tmp_path: Path) -> None:
    angles, lengths = np.random.default_rng(0).uniform(0, 1, (2, 200))
    flat = np.stack([np.cos(angles), np.sin(angles), np.full(200, 2.0)], axis=1) * [3, 1, 1] + lengths[:, np.newaxis]
    turned = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))[0][:3]
    vectors = flat @ turned / np.linalg.norm(flat, axis=1, keepdims=True)
    segments = searcher_of(tmp_path / "c", [f"{n:03}" for n in range(200)], vectors).segments
    points = principal_plane(segments)
    centred = vectors - vectors.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(points), np.abs(left[:, :2] * sizes[:2]), atol=1e-4)
    np.testing.assert_array_equal(points, principal_plane(segments))


def test_neighbours_are_near_each_other_on_a_map(tmp_path: Path) -> None:
    true, vectors = groups_of_three(40)
    searcher = searcher_of(tmp_path, [f"{n:03}" for n in range(120)], vectors)
    found = neighbourhoods(searcher, k=5)
    points = neighbour_plane(searcher.segments, found)
    apart = np.linalg.norm(points[:, np.newaxis] - points, axis=2)
    nearest = np.argsort(apart, axis=1)[:, 1:6]
    assert (true[nearest] == true[:, np.newaxis]).mean() == 1
    kept = np.mean([len({*near} & {*mine}) / 5 for near, mine in zip(nearest, found.neighbours, strict=True)])
    assert kept > 0.4  # by chance 0.04
    np.testing.assert_array_equal(points, neighbour_plane(searcher.segments, found))


@pytest.mark.parametrize("count", [1, 2])
def test_a_map_of_one_or_two_images(tmp_path: Path, count: int) -> None:
    searcher = searcher_of(tmp_path, ["a", "b"][:count], np.eye(8, dtype=np.float32)[:count])
    points = neighbour_plane(searcher.segments, neighbourhoods(searcher, k=5))
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()
    assert len(np.unique(points, axis=0)) == count


def groups_of_three(count: int = 20) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Unit vectors around three axes, the numbers of which come first."""
    true = np.repeat([0, 1, 2], count)
    vectors = np.eye(8)[true] + np.random.default_rng(0).normal(0, 0.05, (3 * count, 8))
    return true, (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_clusters_are_those_of_the_vectors_the_largest_first() -> None:
    true, vectors = groups_of_three()
    centres, clusters = cluster(vectors[5:], 3)
    assert np.bincount(clusters).tolist() == [20, 20, 15]
    assert len({(one, other) for one, other in zip(clusters.tolist(), true[5:].tolist(), strict=True)}) == 3
    np.testing.assert_array_equal((vectors[5:] @ centres.T).argmax(axis=1), clusters)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, atol=1e-6)
    with pytest.raises(QueryError, match="got 61 clusters for 60 vectors: expected 1 to 60"):
        cluster(vectors, 61)
    one, same = np.unique(vectors[:1].repeat(9, axis=0), axis=0), vectors[:1].repeat(9, axis=0)
    assert cluster(one, 1)[1].tolist() == [0]
    assert cluster(same, 4)[0].shape == (4, 8)


def test_a_crowd_is_divided_so_that_clusters_can_be_browsed() -> None:
    """Nine of ten vectors are near each other, and apart from two hundred small groups."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((200, 32))
    centres[0] += 20
    inside = np.where(rng.random(8_000) < 0.9, 0, rng.integers(1, 200, 8_000))
    vectors = (centres[inside] + 0.3 * rng.standard_normal((8_000, 32))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sizes = np.bincount(cluster(vectors, 100)[1], minlength=100)
    assert sizes.max() <= 6 * sizes.mean()
    assert sizes.min() >= 1


def test_clusters_are_named_by_labels_texts_or_words() -> None:
    true, vectors = groups_of_three()
    axes = np.eye(8, dtype=np.float32)
    words = {name: 0.1 * axes[number] + axes[7] for number, name in enumerate(["sea", "hill", "town"])}
    assert nearest_words(vectors, words) == ["sea"] * 20 + ["hill"] * 20 + ["town"] * 20
    # Two labels, one, and none.
    assert common_labels(true, ["sea"] * 12 + ["boat"] * 8 + ["hill"] * 20 + [None] * 20, 4) == [
        *("sea or boat", "hill", "", "")
    ]
    texts = ["A boat at sea"] * 15 + ["a Sea"] * 5 + ["a hill"] * 20 + ["a", None] * 10
    assert distinctive_words(true, texts, 3) == ["sea, at, boat", "hill", ""]
    assert distinct_names(["sea", "", "sea", "hill", ""]) == ["sea 1", "2", "sea 2", "hill", "5"]
    assert distinct_names(["2", ""]) == ["2 1", "2 2"]
