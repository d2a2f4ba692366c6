"""Differences between two versions, by content hash and by neighbours."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from index.analysis.compare import changes, shared_neighbours
from index.collection import Collection
from index.errors import QueryError
from index.search import Searcher
from tests.support.collections.hand_made import DIM, add_version, rows


def indexed(
    folder: Path, angles: dict[str, float], hashes: dict[str, str], deletes: list[str] | None = None
) -> Collection:
    """A collection with one more run of images on a circle, at angles in degrees."""
    collection = Collection.create_or_open(str(folder))
    vectors = np.zeros((len(angles), DIM), np.float32)
    radians = np.radians(list(angles.values()))
    vectors[:, 0], vectors[:, 1] = np.cos(radians), np.sin(radians)
    table = rows(list(angles), vectors, metadata={"content_hash": pa.array([hashes[name] for name in angles])})
    add_version(collection, table, deletes=deletes)
    return collection


def test_changes_are_found_by_content_hash(tmp_path: Path) -> None:
    collection = indexed(tmp_path, {"a": 0, "b": 10, "c": 20}, {"a": "1", "b": "2", "c": "3"})
    # b is embedded again unchanged, c is edited, d is new, a is deleted
    indexed(tmp_path, {"b": 10, "c": 50, "d": 30}, {"b": "2", "c": "33", "d": "4"}, deletes=["a"])
    found = changes(Searcher.open(collection, "000001"), Searcher.open(collection, "000002"))
    assert (found.added, found.removed, found.edited) == (("d",), ("a",), ("c",))
    live = Searcher.open(collection)
    assert changes(live, live) == changes(Searcher.open(collection, "000002"), live)
    assert changes(live, live).edited == ()


def test_shared_neighbours_are_counted_for_each_image(tmp_path: Path) -> None:
    hashes = dict.fromkeys("abcde", "1")
    one = Searcher.open(indexed(tmp_path / "1", {"a": 0, "b": 1, "c": 2, "d": 90, "e": 91}, hashes))
    other = Searcher.open(indexed(tmp_path / "2", {"a": 0, "b": 1, "c": 90, "d": 2, "e": 91}, hashes))
    # The nearest to a are b and c in one, and b and d in the other; to e, they are d and c in both.
    np.testing.assert_allclose(shared_neighbours(one, other, ["a", "e"], k=2), [0.5, 1.0])
    np.testing.assert_allclose(shared_neighbours(one, one, list("abcde"), k=3), np.ones(5))
    with pytest.raises(QueryError, match="holds no image 'z'"):
        shared_neighbours(one, other, ["z"])
