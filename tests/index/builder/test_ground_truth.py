"""Held-out queries, their exact neighbours, and the recall that is measured with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import Ids
from index.builder.build_index import build_index
from index.builder.ground_truth import GroundTruth
from index.builder.measure import measure_recall
from index.builder.queries_file import read_queries, write_queries
from index.builder.recall import drop_own, recall
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.queries import KINDS, QueryKind
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex
from index.versions.opening import open_segments
from tests.support.collections.hand_made import add_run, rows, segment_of, unit_vectors

WEIGHTS = {"image": [1], "mix": [1, 1], "contrast": [1, -0.7, 0.7]}


def test_neighbours_are_those_of_brute_force_without_the_image_itself(tmp_path: Path) -> None:
    vectors = unit_vectors(500)
    vectors[7] = vectors[3]  # a duplicate is a neighbour
    segments = SegmentedIndex(
        [segment_of(tmp_path / "a", vectors[:200]), segment_of(tmp_path / "b", vectors[200:], start=200)]
    )
    segments.parts[0].add_tombstones(np.array([5, 6]))
    texts = unit_vectors(7, seed=5)
    held_out = GroundTruth.sample(segments, 50, texts)
    assert [len(held_out.of(kind)) for kind in KINDS] == [50, 25, 25, 7]
    live = [number for number in range(500) if number not in (5, 6)]
    made = iter(texts)
    for kind, parents, vector, neighbours, scores in zip(
        held_out.kinds, held_out.parents, held_out.vectors, neighbours_of(held_out), held_out.scores, strict=True
    ):
        own = [int(name) for name in parents if name is not None]
        expected = np.array(WEIGHTS[kind]) @ vectors[own] if own else next(made)
        assert np.allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)
        others = [number for number in live if number not in own]
        exact = vectors[others] @ vector
        assert np.allclose(scores, np.sort(exact)[::-1][:130], atol=1e-5)
        assert np.allclose(scores, [vectors[int(other)] @ vector for other in neighbours], atol=1e-5)
        assert not {*map(str, own)} & {*neighbours}
    write_queries(tmp_path / "queries.arrow", held_out)
    read = read_queries(tmp_path / "queries.arrow")
    assert np.array_equal(read.kinds, held_out.kinds)
    assert np.array_equal(read.parents, held_out.parents)
    assert np.array_equal(neighbours_of(read), neighbours_of(held_out))
    assert np.array_equal(read.scores, held_out.scores)
    assert np.array_equal(read.vectors, held_out.vectors)
    assert read.sampled_from == held_out.sampled_from == 498


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_rows_have_few_neighbours(tmp_path: Path, count: int) -> None:
    held_out = GroundTruth.sample(SegmentedIndex([segment_of(tmp_path, unit_vectors(count))])).of("image")
    assert np.isfinite(held_out.scores).sum(axis=1).tolist() == [count - 1] * count
    assert (neighbours_of(held_out)[:, count - 1 :] == None).all()  # noqa: E711


# How many rows are added, or replaced where an id exists; the first id; and the share of the others that is deleted.
changes = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 300), st.floats(0, 0.7)), min_size=1, max_size=6)


@settings(max_examples=settings().max_examples // 3)
@given(first=st.integers(3, 300), changes=changes, seed=st.integers(0, 1_000))
def test_an_update_gives_what_is_computed_from_scratch(
    tmp_path_factory: pytest.TempPathFactory, first: int, changes: list[tuple[int, int, float]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("changes")
    segments = SegmentedIndex([segment_of(folder / "first", unit_vectors(first, seed=seed))])
    held_out = GroundTruth.sample(segments, 10, unit_vectors(3, seed=9))
    for step, (added, start, share) in enumerate(changes):
        live = sorted(map(int, segments.ids(segments.live_positions())))
        deleted = [number for number in live if random.random() < share]
        new = range(start, start + added)
        if not set(live) - set(deleted) and not added:
            continue
        touched = pa.array([str(number) for number in (*deleted, *new)], pa.large_string() if step % 2 else pa.string())
        for segment in segments.parts:
            positions = segment.positions(touched)
            segment.add_tombstones(positions[positions >= 0])
        if added:
            new_segment = segment_of(folder / str(step), unit_vectors(added, seed=seed + step + 1), start=start)
            segments = SegmentedIndex([*segments.parts, new_segment])
        before = replace(held_out, recalls=np.full_like(held_out.recalls, 0.5))
        write_queries(folder / "queries.arrow", before.updated(touched, segments))
        held_out = read_queries(folder / "queries.arrow")
        scratch = held_out.exact(segments)
        same = np.isclose(held_out.scores[:, :10], before.scores[:, :10], atol=1e-6).all(axis=1)
        assert not (np.isfinite(held_out.recalls).any(axis=1) & ~same).any()
        assert np.allclose(
            np.nan_to_num(held_out.scores[:, :100], neginf=-9),
            np.nan_to_num(scratch.scores[:, :100], neginf=-9),
            atol=1e-5,
        )
        differ = neighbours_of(held_out)[:, :100] != neighbours_of(scratch)[:, :100]
        gaps = np.abs(np.diff(np.nan_to_num(scratch.scores[:, :101], neginf=-9), axis=1))
        assert not (differ & (gaps > 1e-5) & (np.roll(gaps, 1, axis=1) > 1e-5)).any()  # ties apart


@pytest.mark.parametrize(
    ("positions", "own", "expected"),
    [
        ([4, 7, 1], [7], [4, 1]),
        ([4, 7, 1], [9], [4, 7]),
        ([4, 7, 1, 3], [3, 4], [7, 1]),
        ([4, 7, 1, 3], [7, 7], [4, 1]),  # an image mixed with itself
        ([4, -1, -1], [4, -1], [-1]),
        ([4, 7], [], [4, 7]),
    ],
)
def test_the_parents_of_a_query_are_left_out(positions: list[int], own: list[int], expected: list[int]) -> None:
    hits = Hits.whole(-np.arange(len(positions), dtype=np.float32)[np.newaxis], np.array([positions]))
    assert drop_own(hits, np.array([own], np.int64)).positions.tolist() == [expected]


@pytest.mark.parametrize(
    ("found", "exact", "k", "expected"),
    [
        ([0.9, 0.8], [0.9, 0.8], 2, 1.0),
        ([0.9, 0.7], [0.9, 0.8], 2, 0.5),
        ([0.8, 0.7], [0.9, 0.8], 1, 0.0),
        ([0.8, 0.8], [0.9, 0.8], 2, 1.0),  # as near as the exact ones, so it counts, as in ann-benchmarks
        ([0.9, -np.inf], [0.9, -np.inf], 2, 1.0),  # there are no others
        ([-np.inf], [-np.inf], 1, 1.0),
        ([-np.inf, -np.inf], [0.9, 0.1], 2, 0.0),
        ([0.9, 0.8 - 1e-7], [0.9, 0.8], 2, 1.0),
        ([0.99, 0.98 - 4e-4], [0.99, 0.98], 2, 1.0),  # as two frames of a video
        ([0.99, 0.98 - 6e-4], [0.99, 0.98], 2, 0.5),
        ([0.9, 0.8 - 4e-4], [0.9, 0.8], 2, 0.5),  # ranks among others count
        ([0.9], [0.9], 10, 1.0),
    ],
)
def test_recall_is_the_share_that_is_found(found: list[float], exact: list[float], k: int, expected: float) -> None:
    assert recall(np.array([found], np.float32), np.array([exact], np.float32), k).tolist() == [expected]


def test_the_recall_of_a_version_is_that_of_brute_force(tmp_path: Path) -> None:
    vectors = unit_vectors(3_000, dim=8)
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    add_run(collection, rows([str(number) for number in range(3_000)], vectors))
    manifest = build_index(collection, IndexSettings(latency_ms=1e-6, factory="IVF64,Flat", target_recall=0.5))
    segments = open_segments(collection, manifest, tmp_path)
    held_out = read_queries(tmp_path / f"collection/index/{manifest.version}/queries.arrow")
    own = [int(name) for name in held_out.of("image").parents[:, 0]]
    assert manifest.queries == len(own) == 1_000
    exact = vectors[own] @ vectors.T
    exact[np.arange(len(own)), own] = -np.inf
    best = -np.sort(-exact, axis=1)
    for k in (1, 10, 100):
        queries = own[::10] if k == 100 else own
        # k + 1 for the image itself; recall@1 is measured with the search for ten.
        found = segments.search(vectors[queries], (100 if k == 100 else 10) + 1).positions
        shares = []
        for query, positions in enumerate(found):
            others = [position for position in positions if position != queries[query]][:k]
            row = own.index(queries[query])
            nearly = 5e-4 if best[row, k - 1] >= 0.95 else 1e-6
            shares.append(np.mean(exact[row, others] >= best[row, k - 1] - nearly))
        assert manifest.recall[str(k)] == pytest.approx(np.mean(shares), abs=1e-4)
    assert 0.5 <= manifest.recall["10"] < 1


@pytest.mark.parametrize(
    ("count", "factory", "target", "below", "new", "sizes"),
    [
        (3_000, "IVF64,Flat", 0.95, 0.01, [50, 50, 50, 50], [[3_000], [3_000], [3_150], [3_150]]),
        (10_000, "IVF256,Flat", 0.8, 0.05, [140, 130, 100, 110], [[10_000], [10_000, 270], [10_000, 370], [10_480]]),
    ],
    ids=["a scanned tail", "a tail with an index, which joins the large segment"],
)
def test_recall_after_updates_is_that_of_all_queries_measured_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    factory: str,
    target: float,
    below: float,
    new: list[int],
    sizes: list[list[int]],
) -> None:
    """Although an update measures only queries whose nearest neighbours have changed."""
    monkeypatch.setattr("index.segments.kinds.ivf._SCANNED_PER_LIST", 0)
    vectors = unit_vectors(count + sum(new), dim=8)
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    add_run(collection, rows([str(number) for number in range(count)], vectors[:count]))
    build_index(collection, IndexSettings(latency_ms=1e-6, factory=factory, target_recall=target))
    for step, approximate in enumerate(sizes):
        numbers = range(count + sum(new[:step]), count + sum(new[: step + 1]))
        gone = [str(number) for number in range(step, count, 60)]
        add_run(collection, rows([str(n) for n in numbers], vectors[numbers.start : numbers.stop]), deletes=gone)
        manifest = build_index(collection)
        assert manifest.base == f"{step + 1:06d}"
        held_out = read_queries(tmp_path / f"collection/index/{manifest.version}/queries.arrow")
        segments = open_segments(collection, manifest, tmp_path)
        assert [part.ntotal for part in segments.parts if part.parameters] == approximate
        again, measured = measure_recall(segments, held_out.unmeasured(), width=manifest.kinds["image"].width)
        known, full = held_out.of("image").recalls[:, :2], measured.of("image").recalls[:, :2]
        assert (known <= full).all()
        assert (known < 1).any()
        assert (known == 1).sum() > 100
        for k, lower in (("1", below), ("10", below), ("100", 2 * below)):
            # Tombstones widen searches, so recalls measured before them are rather too low.
            assert again[k] - lower <= manifest.recall[k] <= again[k] + 0.002


def test_a_segment_that_gained_rows_is_searched_for_older_ones_that_it_misses(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    add_run(collection, rows([str(number) for number in range(4_000)], unit_vectors(4_000, dim=8)))
    manifest = build_index(collection, IndexSettings(latency_ms=1e-6, factory="IVF64,Flat", target_recall=0.9))
    segments = open_segments(collection, manifest, tmp_path)
    [segment] = segments.parts
    held_out = GroundTruth.sample(segments).of("image")
    widths: dict[QueryKind, float] = {"image": 1.0}
    segment.tune({"nprobe": 64.0})
    found = held_out.measured(segments, "image", (1, 10))
    assert (found.recalls[:, :2] == 1).all()
    assert (found.unmeasured_near(segments, {0: 3_990}, widths).recalls[:, :2] == 1).all()
    segment.tune({"nprobe": 8.0})
    kept = found.unmeasured_near(segments, {0: 3_990}, widths).recalls_of("image", 10)
    missed = held_out.measured(segments, "image", (10,)).recalls_of("image", 10) < 1
    assert 0.2 < missed.mean() < 0.9
    assert (np.isnan(kept) == missed).all()


def neighbours_of(held_out: GroundTruth) -> Ids:
    """Ids of the nearest, `(n, depth)`, None where there are fewer."""
    neighbours: Ids = np.array([*held_out.ids.to_pylist(), None], object)[held_out.nearest]
    return neighbours


@pytest.mark.parametrize(
    ("true", "found", "expected"),
    [
        (range(10), range(50, 60), 1.0),  # other frames of the same clip
        (range(10), [*range(50, 54), *range(100, 106)], 0.4),
        ([0, *range(100, 109)], range(50, 60), 0.1),  # each true neighbour counts once
        ([0, *range(100, 109)], [50, *range(100, 105), *range(120, 124)], 0.6),
        ([*range(5), *range(100, 105)], [*range(200, 205), 100, 101, *range(60, 63)], 0.5),
        (range(100, 110), range(110, 120), 0.0),
    ],
)
def test_one_of_many_near_equal_images_counts_as_another(
    tmp_path: Path, true: list[int], found: list[int], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 0 to 99 are frames of one clip, with cosines from 0.997; the query is not near to them."""
    vectors = unit_vectors(300)
    vectors[:100] = vectors[0] + 0.04 * unit_vectors(100, seed=1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    segments = SegmentedIndex([segment_of(tmp_path / "a", vectors)])
    held_out = GroundTruth.sample(segments, 5, unit_vectors(1, seed=5)).of("text")
    held_out = replace(
        held_out,
        parents=np.full((1, 3), None, object),
        ids=pa.array([str(row) for row in range(300)]),
        nearest=np.array([[*true]], np.int32),
        scores=np.full((1, 10), 0.5, np.float32),
    )
    answer = Hits.whole(np.full((1, 10), 0.4, np.float32), np.array([[*found]], np.int64))
    monkeypatch.setattr(SegmentedIndex, "search", lambda *_, **__: answer)
    assert held_out.measured(segments, "text", (10,)).recalls[0, 1] == expected
