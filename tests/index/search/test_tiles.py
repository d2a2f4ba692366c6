"""Tiles of pictures: a search returns each picture once, by its nearest part, in a whole index or in shards, before
and after updates. Everything but a search uses whole pictures.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from index.analysis.near_duplicates import near_duplicates
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.errors import ModelMismatchError
from index.matches import Match
from index.search import Searcher
from tests.support.collections.hand_made import DIM, MODEL, add_run, add_version, rows, unit_vectors
from tests.support.collections.sharded import InProcessShards

COUNT, PARTS = 320, 5
TILED = MODEL.model_copy(update={"tiles": "2x2"})
Tiled = tuple[Collection, dict[str, npt.NDArray[np.float32]]]


def tiled_rows(ids: list[str], vectors: npt.NDArray[np.float32]) -> pa.Table:
    """Rows of `(n, PARTS, DIM)` vectors."""
    tiles = pa.FixedSizeListArray.from_arrays(pa.array(vectors[:, 1:].ravel()), (PARTS - 1) * DIM)
    metadata = {"tiles": tiles, "even": pa.array([int(image_id) % 2 == 0 for image_id in ids])}
    return rows(ids, np.ascontiguousarray(vectors[:, 0]), metadata=metadata)


@pytest.fixture(scope="module", params=["Flat", "IVF8,Flat"])
def tiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiled:
    """Segments with tombstones, some of them merged; and the vectors by id."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("tiled")))
    ids = [f"{number:03d}" for number in range(COUNT)]
    vectors = unit_vectors(COUNT * PARTS, dim=DIM).reshape(COUNT, PARTS, DIM)
    vectors[7, 1:] = vectors[8, 1:]  # pictures that share their tiles, but differ as a whole
    add_run(collection, tiled_rows(ids, vectors), model=TILED)
    build_index(collection, IndexSettings(segment_rows=160, factory=request.param, target_recall=1.0))
    new = unit_vectors(30 * PARTS, seed=5, dim=DIM).reshape(30, PARTS, DIM)
    for first in range(0, 30, 6):  # often enough for a merge
        some = tiled_rows(ids[10 + first : 16 + first], new[first : first + 6])
        manifest = add_version(collection, some, model=TILED, deletes=["100", "200"])
    assert len(manifest.segments) < 6
    all_vectors = dict(zip(ids, vectors, strict=True)) | dict(zip(ids[10:40], new, strict=True))
    return collection, {image_id: all_vectors[image_id] for image_id in ids if image_id not in ("100", "200")}


def nearest(tiled: Tiled, query: npt.NDArray[np.float32], ids: list[str], k: int) -> list[tuple[str, Any, int]]:
    """By brute force: id, score and part."""
    scores = np.stack([tiled[1][image_id] for image_id in ids]) @ query
    best = scores.max(axis=1)
    return [
        (ids[at], pytest.approx(float(best[at]), abs=1e-4), int(scores[at].argmax())) for at in np.argsort(-best)[:k]
    ]


def found(matches: list[Match]) -> list[tuple[str, float, int]]:
    boxes = (None, *TILED.boxes)
    return [(match.image_id, match.score or 0.0, boxes.index(match.box)) for match in matches]


def test_each_picture_is_found_once_by_its_nearest_part(tiled: Tiled) -> None:
    searcher, ids = Searcher.open(tiled[0]), list(tiled[1])
    even = [image_id for image_id in ids if int(image_id) % 2 == 0]
    for query in unit_vectors(6, seed=11, dim=DIM):
        assert found(searcher.search(query[np.newaxis], 25)[0]) == nearest(tiled, query, ids, 25)
        assert found(searcher.search(query[np.newaxis], 20, offset=5)[0]) == nearest(tiled, query, ids, 25)[5:]
        assert found(searcher.search(query[np.newaxis], 9, filter={"even": True})[0]) == nearest(tiled, query, even, 9)
        by_id = searcher.search(query[np.newaxis], COUNT, sort="image_id")[0]
        assert found(by_id) == [match for image_id in ids for match in nearest(tiled, query, [image_id], 1)]
    everything = searcher.search(unit_vectors(1, seed=2, dim=DIM), COUNT)[0]
    assert sorted(match.image_id for match in everything) == ids
    assert everything[0].metadata == {"even": int(everything[0].image_id) % 2 == 0}


def test_shards_answer_as_the_whole_does(tiled: Tiled) -> None:
    whole, queries = Searcher.open(tiled[0]), unit_vectors(4, seed=3, dim=DIM)
    for count in (2, 3):
        shards = InProcessShards(tiled[0], count).searcher()
        for options in ({}, {"filter": {"even": False}}, {"distinct": 0.9}, {"diversity": 0.4}):
            assert shards.search(queries, 12, **options) == whole.search(queries, 12, **options)


def test_everything_but_a_search_uses_whole_pictures(tiled: Tiled) -> None:
    searcher = Searcher.open(tiled[0])
    assert (searcher.ntotal, searcher.searched) == (COUNT - 2, COUNT - 2)
    assert searcher.facets().values["even"] == {True: COUNT // 2 - 2, False: COUNT // 2}
    assert searcher.filterable.keys().isdisjoint({"tiles", "embedding"})
    assert near_duplicates(searcher, 0.999) == []
    np.testing.assert_allclose(searcher.vector("020"), tiled[1]["020"][0], atol=1e-6)
    others = searcher.search([searcher.vector("007")], 50, exclude={"007"})[0]
    assert "007" not in {match.image_id for match in others}
    # Tiles that two pictures share find both.
    both = searcher.search(tiled[1]["007"][1:2], 2)[0]
    assert [(match.image_id, match.score) for match in both] == [("007", 1.0), ("008", 1.0)]


def test_rows_with_and_without_tiles_are_not_indexed_together(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    vectors: Any = unit_vectors(3 * PARTS, dim=DIM).reshape(3, PARTS, DIM)
    add_run(collection, tiled_rows(["1", "2", "3"], vectors), model=TILED)
    add_run(collection, rows(["4"]), model=MODEL)
    with pytest.raises(ModelMismatchError, match="tiles 2x2"):
        build_index(collection)
