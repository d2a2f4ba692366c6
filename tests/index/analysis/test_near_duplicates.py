"""Near-duplicates in a whole collection, against brute force over all pairs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from index.analysis.near_duplicates import DuplicateGroup, near_duplicates
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.errors import QueryError
from index.search import Searcher
from tests.support.collections.hand_made import add_version, rows, searcher_of, unit_vectors
from tests.support.processes import python


def indexed(folder: Path, vectors: Mapping[str, npt.NDArray[Any]], segment_rows: int = 10_000) -> Searcher:
    return searcher_of(
        folder, list(vectors), np.array(list(vectors.values())), IndexSettings(segment_rows=segment_rows)
    )


def clumps(seed: int, count: int = 400) -> dict[str, npt.NDArray[np.float32]]:
    """Images around fewer centres, some of them identical."""
    random = np.random.default_rng(seed)
    centres = unit_vectors(count // 4, seed)
    vectors = centres[random.integers(0, len(centres), count)]
    apart = vectors + random.choice([0, 0.02, 0.08], (count, 1)) * random.standard_normal(vectors.shape)
    unit = (apart / np.linalg.norm(apart, axis=1, keepdims=True)).astype(np.float32)
    return dict(zip([f"{number:04d}" for number in random.permutation(count)], unit, strict=True))


def brute_force(vectors: Mapping[str, npt.NDArray[np.float32]], min_score: float) -> list[DuplicateGroup]:
    ids = sorted(vectors)
    matrix = np.array([vectors[image_id] for image_id in ids], np.float64)
    scores = np.round(matrix @ matrix.T, 6)
    np.fill_diagonal(scores, -2)
    groups, left = [], set(range(len(ids)))
    while left:
        group, edge = set(), {left.pop()}
        while edge:
            group |= edge
            edge = {int(other) for one in edge for other in np.flatnonzero(scores[one] >= min_score)} - group
        left -= group
        if len(group) > 1:
            members = sorted(group)
            nearest = [round(float(scores[member].max()), 6) for member in members]
            groups.append(DuplicateGroup(ids=tuple(ids[member] for member in members), scores=tuple(nearest)))
    return sorted(groups, key=lambda group: (-len(group.ids), group.ids))


def assert_same(found: list[DuplicateGroup], expected: list[DuplicateGroup]) -> None:
    assert [group.ids for group in found] == [group.ids for group in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=2e-6)


@pytest.mark.parametrize("segment_rows", [10_000, 90])
def test_groups_are_those_of_brute_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_rows: int) -> None:
    vectors = clumps(seed=1)
    searcher = indexed(tmp_path, vectors, segment_rows)
    monkeypatch.setattr("index.analysis.near_duplicates._ROWS", 64)
    for min_score in (0.9, 0.98, 0.9995, 1.0):
        expected = brute_force(vectors, min_score)
        assert len(expected) > 10
        for depths in ((16, 128, 1_024), (2, 3), (1,)):
            monkeypatch.setattr("index.analysis.near_duplicates._DEPTHS", depths)
            assert_same(near_duplicates(searcher, min_score), expected)


def test_replaced_and_deleted_images_are_in_no_group(tmp_path: Path) -> None:
    vectors = clumps(seed=7)
    indexed(tmp_path, vectors)
    gone = [f"{number:04d}" for number in range(0, 400, 9)]
    replaced = dict(zip([f"{number:04d}" for number in range(5, 400, 9)], unit_vectors(44, seed=8), strict=True))
    collection = Collection.open(str(tmp_path))
    add_version(collection, rows(list(replaced), np.array(list(replaced.values()))), deletes=gone)
    searcher = Searcher.open(collection)
    assert searcher.segments.ntotal > searcher.ntotal == 355
    left = {image_id: vector for image_id, vector in {**vectors, **replaced}.items() if image_id not in gone}
    assert_same(near_duplicates(searcher, 0.95), brute_force(left, 0.95))


def test_images_in_between_link_images_that_are_not_alike(tmp_path: Path) -> None:
    degrees = {"a": 0, "b": 10, "c": 20, "d": 90, "e": 95, "f": 180}
    vectors = {
        name: np.eye(8)[0] * np.cos(np.radians(n)) + np.eye(8)[1] * np.sin(np.radians(n)) for name, n in degrees.items()
    }
    ten, five = (round(float(np.cos(np.radians(n))), 6) for n in (10, 5))
    assert near_duplicates(indexed(tmp_path, vectors)) == [
        DuplicateGroup(ids=("a", "b", "c"), scores=(ten, ten, ten)),
        DuplicateGroup(ids=("d", "e"), scores=(five, five)),
    ]


def test_thousands_of_copies_are_one_group(tmp_path: Path) -> None:
    blank, nearly = np.eye(8)[0], np.eye(8)[0] * 0.99 + np.eye(8)[1] * np.sqrt(1 - 0.99**2)
    vectors = {f"{number:04d}": vector for number, vector in enumerate(unit_vectors(1_000))}
    vectors |= {f"blank {number:04d}": blank for number in range(3_000)} | {"nearly blank": nearly}
    searcher = indexed(tmp_path, vectors, segment_rows=1_500)
    progress: list[tuple[int, int]] = []
    group = near_duplicates(searcher, progress=lambda *counts: progress.append(counts))[0]
    assert group.ids == (*sorted(f"blank {number:04d}" for number in range(3_000)), "nearly blank")
    assert group.scores == (*[1.0] * 3_000, 0.99)
    assert progress[-1] == (4_001, 4_001)
    assert [seen for seen, _ in progress] == sorted(seen for seen, _ in progress)


def test_orthogonal_images_have_no_duplicates(tmp_path: Path) -> None:
    searcher = indexed(tmp_path, dict(zip("abcdefgh", np.eye(8, dtype=np.float32), strict=True)))
    assert near_duplicates(searcher) == []
    with pytest.raises(QueryError, match="min_score is 98: expected a number from -1 to 1"):
        near_duplicates(searcher, 98)


_PEAK = """
import resource, sys
from index.analysis.near_duplicates import near_duplicates
from index.collection import Collection
from index.search import Searcher
searcher = Searcher.open(Collection.open(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
groups = near_duplicates(searcher, 0.999)
print(len(groups[0].ids), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_two_thousand_images_alike_take_little_memory(tmp_path: Path) -> None:
    vectors, noise = unit_vectors(60_000), np.random.default_rng(0).standard_normal((2_000, 8))
    vectors[:2_000] = vectors[0] + 0.006 * noise
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [f"{number:05}" for number in np.random.default_rng(1).permutation(len(vectors))]
    searcher_of(tmp_path, ids, vectors, IndexSettings(factory="IVF128,SQ8", target_recall=0.5))
    alike, peak_kib = map(int, python("-c", _PEAK, tmp_path).stdout.split())
    assert alike == 2_000
    assert peak_kib < 1_000_000
