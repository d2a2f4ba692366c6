"""A segment: exact scores, k results if k rows are eligible, no others; with every kind of index and without one."""

import errno
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from index.builder.choose import ann_factory, choose
from index.builder.segment import SegmentJob, write_ann
from index.builder.segment_rows import write_rows
from index.collection.layout import ANN, VECTORS
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import SegmentRecord
from index.errors import DamagedVersionError, FactoryError
from index.segments.exact import max_exact_rows
from index.segments.nearest import Part, nearest
from index.segments.segment import Segment
from index.segments.vector_file import flat_header
from index.segments.vector_index import MIN_DEPTH
from index.storage import Storage
from tests.support.collections.hand_made import rows, segment_of, unit_vectors

DIM, ROWS = 16, 1_000
FACTORIES = ["Flat", "IVF16,Flat", "HNSW16", "HNSW16,SQ8", "SQ8", "IVF16,PQ4x4fs", "PCA8,IVF16,SQ8"]
FACTORIES += ["OPQ4_8,IVF16,PQ4x4fs,Refine(SQ8)"]
Built: TypeAlias = Callable[[str], tuple[Path, SegmentRecord]]


def build(folder: Path, vectors: npt.NDArray[np.float32], settings: IndexSettings) -> SegmentRecord:
    """Of rows with the ids "0", "1", …, which come from another segment."""
    job = SegmentJob(
        storage=Storage.open(folder),
        name="000001-00",
        sources=[segment_of(folder.with_name(f"{folder.name}-rows"), vectors)],
        options=choose(len(vectors), vectors.shape[1], settings),
        settings=settings,
        max_exact_rows=0 if settings.factory else max_exact_rows(settings, vectors.shape[1]),
    )
    record = job.run()
    assert record is not None
    return record


def open_segment(folder: Path, record: SegmentRecord, **options: Any) -> Segment:
    home = folder / "index/segments" / record.name
    return Segment(home, parameters=record.parameters, files=record.files, **options)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A segment of `unit_vectors(ROWS, dim=DIM)` for a factory, built once and not to be changed."""

    @cache
    def of(factory: str) -> tuple[Path, SegmentRecord]:
        folder = tmp_path_factory.mktemp("segment")
        return folder, build(folder, unit_vectors(ROWS, dim=DIM), IndexSettings(factory=factory, latency_ms=1e-6))

    return of


def brute_force(
    queries: npt.NDArray[np.float32], vectors: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_], k: int
) -> npt.NDArray[np.int64]:
    scores = np.where(mask, queries @ vectors.T, -np.inf)
    return np.argsort(-scores, axis=1)[:, :k]


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_kind_of_index_finds_the_nearest_eligible_rows(built: Built, factory: str) -> None:
    vectors, queries = unit_vectors(ROWS, dim=DIM), unit_vectors(60, seed=1, dim=DIM)
    folder, record = built(factory)
    assert (record.factory, ANN in record.files, record.ntotal) == (factory, factory != "Flat", ROWS)
    dead = np.arange(0, ROWS, 7)
    segment = open_segment(folder, record, tombstones=dead)
    assert {name: pytest.approx(value) for name, value in segment.parameters.items()} == record.parameters
    live = np.ones(ROWS, bool)
    live[dead] = False
    for share in (1.0, 0.5, 0.2, 0.01, 0.003):
        mask = np.random.default_rng(2).random(ROWS) < share
        eligible = None if share == 1 else segment.eligible(mask)
        allowed = live & mask if eligible else live
        k = min(10, int(allowed.sum()))
        found = nearest([Part(segment, eligible)], queries, 10)
        scores, positions = found.scores, found.positions
        assert (positions[:, k:] == -1).all()
        positions = positions[:, :k]
        assert allowed[positions].all()
        assert (np.diff(np.sort(positions, axis=1), axis=1) > 0).all()  # none twice
        exact = np.einsum("nd,nkd->nk", queries, vectors[positions])
        assert np.allclose(scores[:, :k], exact, atol=1e-5)
        assert (np.diff(scores[:, :k], axis=1) <= 0).all()
        best = brute_force(queries, vectors, allowed, k)
        recall = np.mean([len(set(a) & set(b)) / k for a, b in zip(positions, best, strict=True)])
        # Codes of 4 or 8 bits cannot do better.
        assert recall >= (0.9 if "8" in factory.split(",")[0] or "PQ4x4fs" in factory else 0.95)


@pytest.mark.parametrize("factory", [*FACTORIES, *(ann_factory(ROWS, DIM, refine=refine) for refine in (True, False))])
def test_more_width_never_lowers_a_score(built: Built, factory: str) -> None:
    """For any query and rank: neither if a search with a filter widens itself, nor if a greater width is requested and
    all candidates are ranked by exact vectors.

    With fewer candidates, a wider search may lose a little: compressed vectors may rank others before a better one.
    """
    queries, ks = unit_vectors(20, seed=1, dim=DIM), (1, 10, 60) if factory.endswith("Flat") else (1, 10)
    segment = open_segment(*built(factory))
    segment.tune({"nprobe": 1.0})
    every = segment.eligible(np.ones(ROWS, bool))
    for k in ks:
        among_all, tuned = (nearest([Part(segment, passing)], queries, k).scores for passing in (every, None))
        assert (among_all >= tuned - 1e-6).all()
    segment.tune({"rescore": ROWS / MIN_DEPTH, "k_factor": 1.0})
    for k in ks:
        found = [nearest([Part(segment)], queries, k, width=width).scores for width in (1, 1.5, 2, 4, 16, 64)]
        assert (np.diff(found, axis=0) >= -1e-6).all()


@pytest.mark.parametrize("factory", ["IVF64,Flat", "IVF64,PQ16x4fs,Refine(SQ8)", "HNSW16"])
def test_neighbours_are_found_if_the_eligible_rows_are_far_from_the_query(tmp_path: Path, factory: str) -> None:
    """A filter on the content of pictures passes whole clusters and excludes others."""
    rng = np.random.default_rng(3)
    cluster = rng.integers(0, 100, 3_000)
    vectors = unit_vectors(100, seed=4, dim=DIM)[cluster] + 0.15 * unit_vectors(3_000, seed=5, dim=DIM)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    record = build(tmp_path, vectors, IndexSettings(factory=factory, latency_ms=1e-6))
    segment = open_segment(tmp_path, record)
    queries = vectors[rng.choice(3_000, 100, replace=False)]
    for share in (0.9, 0.5, 0.2):
        mask = cluster < 100 * share
        positions = nearest([Part(segment, segment.eligible(mask))], queries, 10).positions
        best = brute_force(queries, vectors, mask, 10)
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(positions, best, strict=True)]) >= 0.98, share


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("PQ4x4", "cannot be filled and searched with a selection of its rows: invalid search params; name another"),
        ("PQ4x4fs", "with a selection of its rows: search params not supported for this index; name another"),
        ("NSG16", "with a selection of its rows: search params not supported for this index; name another"),
        ("IVF16,RQ4x4", "with a selection of its rows: id selector not supported for this index; name another"),
        ("IDMap,Flat", "add does not make sense with IndexIDMap"),
        ("HNSW16,PQ4", "'HNSW16,PQ4' for 16 dimensions: faiss supports it only for Euclidean distances"),
        ("IMI2x4,Flat", "MultiIndex not implemented for inner prod search"),
        ("nonsense", "'nonsense' for 16 dimensions: could not parse index string nonsense"),
        ("IVF99999999999,Flat", "'IVF99999999999,Flat' for 16 dimensions: expected sizes below 10,000,000"),
        ("PQ3", "multiple of the number of subquantizers"),
        ("HNSW0", "'HNSW0' for 16 dimensions: expected sizes above 0"),
        ("HNSW1", "'HNSW1' for 16 dimensions: expected sizes above 0, and 2 or more for HNSW"),
        ("IVF0,Flat", "expected sizes above 0"),
        ("IVF5000,Flat", "cannot be trained on 600 vectors: .*; name one with fewer lists or codes with --factory"),
        ("IVF4,Flat,Refine(IVF8,Flat)", r"expected Flat, SQ or PQ in Refine\(…\), got IndexIVFFlat"),
        ("HNSW100000000", "expected sizes below 10,000,000"),
        ("HNSW9999999", "bad_alloc|too large"),
        ("PCA99,Flat", "cannot output 99 dimensions from 16"),
    ],
)
def test_an_unusable_factory_is_refused_in_one_line(tmp_path: Path, factory: str, message: str) -> None:
    with pytest.raises(FactoryError, match=message) as caught:
        build(tmp_path, unit_vectors(600, dim=DIM), IndexSettings(factory=factory))
    assert "\n" not in str(caught.value)
    assert "/faiss/" not in str(caught.value)
    assert not list(tmp_path.rglob("*.faiss"))


@pytest.mark.parametrize("factory", ["Flat", "IVF16,Flat"])
def test_k_results_are_returned_if_k_rows_are_eligible(built: Built, factory: str) -> None:
    vectors = unit_vectors(ROWS, dim=DIM)
    # Few of the probed lists have an eligible row, because those are far from the query.
    segment = open_segment(*built(factory))
    segment.tune({"nprobe": 1.0})
    far = np.argsort(vectors @ vectors[0])[:400]
    eligible = segment.eligible(np.isin(np.arange(ROWS), far))
    for k in (1, 10, 12, 399, 400, 401, 2_000):
        found = nearest([Part(segment, eligible)], vectors[:1], k)
        scores, positions = found.scores, found.positions
        assert positions.shape == scores.shape == (1, k)
        matches = positions[0, : min(k, 400)]
        assert np.isin(matches, far).all()
        assert len(set(matches)) == len(matches)
        assert (positions[0, 400:] == -1).all()
    assert set(nearest([Part(segment)], vectors[:1], 2_000).positions[0].tolist()) == {*range(ROWS), -1}


@pytest.mark.parametrize("factory", ["Flat", "IVF16,Flat"])
def test_a_range_search_returns_every_live_row_at_or_above_the_score(tmp_path: Path, factory: str) -> None:
    vectors = unit_vectors(ROWS, dim=DIM)
    vectors[5] = vectors[4]
    record = build(tmp_path, vectors, IndexSettings(factory=factory, latency_ms=1e-6))
    segment = open_segment(tmp_path, record, tombstones=np.array([9]))
    for query, bar in [(vectors[4], 0.3), (vectors[9], 0.5), (vectors[4], -1.1), (vectors[4], 1.1)]:
        found = segment.within(query, bar)
        scores, positions = found.scores[0], found.positions[0]
        exact = vectors @ query
        exact[9] = -2
        assert np.allclose(scores, exact[positions], atol=1e-5)
        assert set(positions) == set(np.flatnonzero(exact >= bar))
    odd = segment.eligible(np.arange(ROWS) % 2 == 1)
    assert set(segment.within(vectors[4], 0.3, odd).positions[0]) == {
        n for n in np.flatnonzero(vectors @ vectors[4] >= 0.3) if n % 2 and n != 9
    }


def test_live_rows_are_found_by_id(tmp_path: Path) -> None:
    vectors = unit_vectors(ROWS, dim=DIM)
    record = build(tmp_path, vectors, IndexSettings())
    segment = open_segment(tmp_path, record, tombstones=np.array([3, 750]))
    found = segment.positions(pa.array(["999", "3", "none", "0", "750", "700"]))
    assert found.tolist() == [999, -1, -1, 0, -1, 700]
    assert segment.rows(np.array([700, 2]), ["image_id", "uri"]) == [
        {"image_id": "700", "uri": "memory:700"},
        {"image_id": "2", "uri": "memory:2"},
    ]
    assert segment.ids(np.array([999, 0, 350])).tolist() == ["999", "0", "350"]
    assert np.allclose(segment.vectors(np.array([7, 2, 7])), vectors[[7, 2, 7]], atol=1e-6)
    assert (len(segment), segment.ntotal, segment.dead_positions().tolist()) == (ROWS - 2, ROWS, [3, 750])
    segment.add_tombstones(np.array([4, 3]))
    assert segment.dead_positions().tolist() == [3, 4, 750]
    assert segment.eligible(np.arange(ROWS) < 6).count == 4
    ids = [image_id for batch in segment.embedded() for image_id in batch.column("image_id").to_pylist()]
    assert ids == [str(number) for number in range(ROWS) if number not in (3, 4, 750)]


def test_rows_are_stored_in_large_batches(tmp_path: Path) -> None:
    vectors = unit_vectors(50_000, dim=2)
    table = rows([str(number) for number in range(50_000)], vectors)
    write_rows(tmp_path, table.to_batches(max_chunksize=700), table.schema)
    segment = Segment(tmp_path)
    assert [len(batch) for batch in segment.batches] == [16_800, 16_800, 16_400]
    segment.add_tombstones(np.array([3, 20_000]))
    positions, blocks = zip(*segment.live_blocks(), strict=True)
    assert len(blocks) > 1
    assert np.array_equal(np.concatenate(positions), segment.live_positions())
    assert np.allclose(np.concatenate(blocks), vectors[segment.live_positions()], atol=1e-6)


def test_a_segment_with_more_rows_than_vectors_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    record = build(one, unit_vectors(5, dim=DIM), IndexSettings())
    build(two, unit_vectors(6, dim=DIM), IndexSettings())
    for name in ("rows.arrow", "ids.arrow"):
        place = f"index/segments/{record.name}/{name}"
        (two / place).replace(one / place)
    with pytest.raises(DamagedVersionError, match="has 5 vectors but 6 rows: build the index again"):
        open_segment(one, record)


def test_a_disk_without_room_for_the_approximate_index_is_named(tmp_path: Path) -> None:
    vectors = unit_vectors(2_000)
    (tmp_path / VECTORS).write_bytes(flat_header(vectors.shape[1], len(vectors)) + vectors.tobytes())
    (tmp_path / ANN).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as error:
        write_ann(tmp_path, "HNSW8,SQ8", len(vectors), vectors)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / ANN))
