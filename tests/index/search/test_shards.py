"""A version in shards gives the same answers as a whole one, bit for bit; if some are lost, those of the others."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.records.record import FileRecord
from index.collection.records.version_manifest import SegmentRecord
from index.errors import DamagedVersionError, QueryError
from index.search import Searcher, VersionSearcher
from index.search.shard import Shard, split_into_shards
from index.search.sharded_index import ShardsLostError
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.collections.sharded import InProcessShards, ids_of

COUNT = 350
FILTERS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"label": "cat"},
    {"label": {"$in": ["cat", "dog"]}, "number": {"$gte": 200}},
    {"late": {"$gt": 10}},  # a column that the first run lacks
    {"label": "cow"},
)


@pytest.fixture(scope="module", params=["flat", "approximate"])
def collection(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Segments of uneven sizes, all with tombstones; 60 images with the same vector, spread over all segments."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("collection")))
    factory = "IVF8,PQ8x4fs,Refine(SQ8)" if request.param == "approximate" else "Flat"
    limits = IndexSettings(segment_rows=90, factory=factory)
    vectors = unit_vectors(COUNT)
    vectors[5 : COUNT : COUNT // 60] = vectors[5]
    ids = [f"{number:04d}" for number in np.random.default_rng(7).permutation(COUNT)]
    labels = ["cat" if number % 3 else "dog" for number in range(COUNT)]
    metadata = {"label": pa.array(labels), "number": pa.array(range(COUNT), pa.int32())}
    add_version(collection, rows(ids, vectors, metadata=metadata), settings=limits)
    again = np.arange(0, COUNT, 9)
    # Doubles, so the numbers of earlier rows are returned as doubles too.
    late = {"label": pa.array(["cat"] * len(again)), "number": pa.array(again * 1.5), "late": pa.array(again)}
    table = rows([ids[row] for row in again], unit_vectors(len(again), seed=3), metadata=late)
    add_version(collection, table, deletes=ids[1:COUNT:13], settings=limits)
    return collection


OPTIONS: tuple[dict[str, Any], ...] = (
    *({"k": k} for k in (1, 10, 75, COUNT)),
    {"k": 20, "offset": 15},
    {"k": 20, "kind": "contrast"},
    {"k": 20, "min_score": 0.3},
    {"k": 20, "distinct": 0.6},
    {"k": 20, "exclude": {"0001", "0005", "0300"}},
    {"k": 20, "distinct": 0.6, "diversity": 0.4, "offset": 15},
)


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 2, 4, 5))])
@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_shards_answer_as_the_whole_does(collection: Collection, where: dict[str, Any] | None, count: int) -> None:
    whole, sharded = Searcher.open(collection), InProcessShards(collection, count).searcher()
    assert len(whole.manifest.segments) >= 5
    assert (sharded.filterable, sharded.searched) == (whole.filterable, whole.ntotal)
    queries = np.concatenate([unit_vectors(1, seed=11), whole.vector("0003")[np.newaxis]])
    for options in OPTIONS:
        expected = whole.search(queries, filter=where, **options)
        assert sharded.search(queries, filter=where, **options) == expected, options


@pytest.mark.parametrize("count", [1, 3, 5])
def test_rows_and_vectors_are_those_of_the_whole(collection: Collection, count: int) -> None:
    whole, sharded = Searcher.open(collection), InProcessShards(collection, count).searcher()
    known = [match.image_id for match in whole.search(unit_vectors(1), COUNT)[0]]
    assert len(known) == whole.ntotal
    for image_id in known[::20]:
        assert whole.row(image_id) == sharded.row(image_id)
        np.testing.assert_array_equal(whole.vector(image_id), sharded.vector(image_id))
    assert sharded.row("nobody") is None
    with pytest.raises(QueryError, match="holds no image 'nobody'"):
        sharded.vector("nobody")


def test_ties_are_spread_over_all_shards(collection: Collection) -> None:
    """Otherwise the tests above would not cover ties."""
    shards = InProcessShards(collection, 4)
    ties = [match.image_id for match in shards.searcher().search(unit_vectors(COUNT)[5:6], 100, min_score=1)[0]]
    assert len(ties) > 40
    assert ties == sorted(ties)
    owners = {number for number, shard in shards.shards.items() if (shard.positions(ties) >= 0).any()}
    assert owners == {0, 1, 2, 3}


# Shards that do not answer


@pytest.mark.parametrize("lost", [{0}, {2}, {1, 3}])
@pytest.mark.parametrize("method", ["page", "rows"])
def test_other_shards_answer_as_if_they_were_all(collection: Collection, lost: set[int], method: str) -> None:
    """In whichever round of a search some are lost."""
    whole, shards = Searcher.open(collection), InProcessShards(collection, 4)
    shards.lost_from = {method: lost}
    searcher, query = shards.searcher(), unit_vectors(1, seed=5)
    with pytest.raises(ShardsLostError, match=r"shards? [\d, ]+ do(es)? not answer: [\d,]+ of [\d,]+ images") as caught:
        searcher.search(query, COUNT)
    rest = VersionSearcher(shards.manifest, caught.value.rest)
    assert rest.searched == whole.ntotal - sum(shards.parts[number].live for number in lost)
    gone = set().union(*(ids_of(shards.shards[number]) for number in lost))
    every = [(match.image_id, match.score) for match in whole.search(query, COUNT)[0]]
    expected = [each for each in every if each[0] not in gone]
    for k in (10, COUNT):
        found = [(match.image_id, match.score) for match in rest.search(query, k)[0]]
        assert found == expected[:k]


def test_hits_come_with_all_that_a_few_matches_show(collection: Collection) -> None:
    """Otherwise each search would take a second round of all shards, for their rows."""
    whole, shards = Searcher.open(collection), InProcessShards(collection, 4)
    shards.lost_from = {"rows": {*shards.shards}}
    query = unit_vectors(1, seed=5)
    assert shards.searcher().search(query, 10) == whole.search(query, 10)


def test_an_image_is_found_by_id_unless_its_own_shard_is_lost(collection: Collection) -> None:
    whole, shards = Searcher.open(collection), InProcessShards(collection, 4)
    shards.lost = {1}
    searcher = shards.searcher()
    here, away = min(ids_of(shards.shards[0])), min(ids_of(shards.shards[1]))
    assert searcher.row(here) == whole.row(here)
    for ask in (searcher.row, searcher.vector):
        for image_id in (away, "nobody"):  # only the lost shard could tell whether it has it
            with pytest.raises(ShardsLostError, match="shard 1 does not answer"):
                ask(image_id)


def test_a_search_without_any_shard_fails(collection: Collection) -> None:
    shards = InProcessShards(collection, 2)
    shards.lost = {0, 1}
    with pytest.raises(ShardsLostError) as caught:
        shards.searcher().search(unit_vectors(1), 10)
    assert len(caught.value.rest) == 0


# Which segments a shard holds


@given(sizes=st.lists(st.integers(1, 1_000), max_size=30), count=st.integers(1, 12))
def test_segments_are_split_evenly_and_in_order(sizes: list[int], count: int) -> None:
    shards = split_into_shards(segments_of(sizes), count)
    assert len(shards) == count
    assert [segment.ntotal for part in shards for segment in part.segments] == sizes
    totals = [sum(segment.ntotal for segment in part.segments) for part in shards]
    assert [part.start for part in shards] == np.cumsum([0, *totals])[:-1].tolist()
    filled = [total > 0 for total in totals]
    assert filled == [True] * min(count, len(sizes)) + [False] * (count - min(count, len(sizes)))
    if sizes:
        assert max(totals) <= sum(sizes) / count + max(sizes)


def segments_of(sizes: list[int]) -> list[SegmentRecord]:
    files = dict.fromkeys(["vectors.faiss", "rows.arrow", "ids.arrow"], FileRecord(size=0, sha256="0" * 64))
    return [
        SegmentRecord(
            name=f"000001-{n:02}", ntotal=size, live=size, factory="Flat", parameters={}, memory=size, files=files
        )
        for n, size in enumerate(sizes)
    ]


def test_a_shard_reads_and_verifies_only_its_own_segments(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    add_run(collection, rows([f"{n:03d}" for n in range(100)], unit_vectors(100)))
    manifest = build_index(collection, IndexSettings(segment_rows=50))
    one, other = split_into_shards(manifest.segments, 2)
    for part, after in pairwise([one, other, one]):
        path = tmp_path / "index/segments" / part.segments[0].name / "vectors.faiss"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert Shard.open(collection, manifest, after).positions(["000", "099"]).tolist() != [-1, -1]
        with pytest.raises(DamagedVersionError, match="has been altered"):
            Shard.open(collection, manifest, part)
        path.write_bytes(whole)
