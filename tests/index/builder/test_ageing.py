"""What an index costs after many nights, and when it mends itself."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from index.builder.build_index import build_index
from index.builder.merge_policy import Merge
from index.builder.tune import tune
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.segments.vector_index import VectorIndex
from tests.support.collections.hand_made import MODEL, add_run, add_version, rows, unit_vectors

DIM = 16
SETTINGS = IndexSettings(latency_ms=1e-6, target_recall=0.9)  # at most 256 rows are scanned exactly
MODEL_16 = MODEL.model_copy(update={"dim": DIM})


def in_half(count: int, seed: int, first: int) -> npt.NDArray[np.float32]:
    """Unit vectors in eight of sixteen dimensions, and a little noise in the others."""
    vectors = 0.02 * unit_vectors(count, seed=seed, dim=DIM)
    vectors[:, first : first + DIM // 2] += unit_vectors(count, seed=seed + 1, dim=DIM // 2)
    unit: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def ids(start: int, stop: int) -> list[str]:
    return [f"{number:05d}" for number in range(start, stop)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 rows in one segment."""
    folder = tmp_path_factory.mktemp("template")
    collection = Collection.create_or_open(str(folder))
    add_version(collection, rows(ids(0, 2_000), in_half(2_000, 0, 0)), model=MODEL_16, settings=SETTINGS)
    return folder


def test_newer_rows_are_scanned_while_that_costs_less_than_probing_as_many_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.builder.merge_policy.TAIL_SHARE", 2)
    collection = Collection.create_or_open(str(tmp_path))
    add_run(collection, rows(ids(0, 4_000), in_half(4_000, 5, 0)), model=MODEL_16)
    large = build_index(collection, IndexSettings(latency_ms=1e-6, factory="IVF64,Flat", target_recall=0.95))
    limit = 256 + 32 * (int(large.segments[0].parameters["nprobe"]) + 16)
    assert 832 < limit < 4_000 // 2
    for first, last, factory in ((0, 300, "Flat"), (300, limit, "Flat"), (limit, limit + 1, "IVF64,Flat")):
        new = ids(4_000 + first, 4_000 + last)
        add_run(collection, rows(new, in_half(len(new), 7, 0)), model=MODEL_16)
        manifest = build_index(collection)
        kinds = [(segment.ntotal, segment.factory, segment.trained) for segment in manifest.segments]
        assert kinds == [(4_000, "IVF64,Flat", 4_000), (last, factory, 0 if factory == "Flat" else 4_000)]


def test_rows_unlike_those_that_the_index_was_trained_for_are_trained_for(
    collection: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    settings = IndexSettings(latency_ms=1e-6, factory="PCA8,IVF16,SQ8", target_recall=0.6)
    build_index(collection, settings)
    add_run(collection, rows(ids(2_000, 2_200), in_half(200, 5, 0)), model=MODEL_16)
    assert build_index(collection).base == "000002"
    add_run(collection, rows(ids(3_000, 3_750), in_half(750, 7, DIM // 2)), model=MODEL_16)
    manifest = build_index(collection)
    assert "the new rows are unlike those that the index was trained for: recall@10 0, expected 0.6" in caplog.text
    assert (manifest.base, [segment.trained for segment in manifest.segments]) == (None, [2_950])


def test_a_version_whose_queries_cost_twice_as_much_says_so_and_is_built_anew(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never = Merge([], with_new=False)
    monkeypatch.setattr("index.builder.segment_change.choose_growth", lambda *_: never)
    for night in range(4):
        new = ids(2_000 + night * 250, 2_250 + night * 250)
        add_run(collection, rows(new, in_half(250, night + 3, 0)), model=MODEL_16)
        # Twice as much beside one segment of newer rows is no reason: a small one costs the same whatever its size.
        monkeypatch.setattr("index.builder.measure._cost", lambda segments, _: 1.1 * len(segments.parts))
        manifest = build_index(collection)
        if manifest.aged:
            break
    assert (len(manifest.segments), manifest.ageing, manifest.built_cost) == (3, 3.3, 1.0)
    said = f"a query in index version {manifest.version} costs 3.3 times as much as after the last build from all rows"
    assert f"{said}: the next build will be one from all rows" in caplog.text
    mended = build_index(collection)  # although nothing has changed
    assert f"{said}: building from all rows" in caplog.text
    assert (mended.base, len(mended.segments), mended.ageing, mended.aged) == (None, 1, 1.0, False)
    assert build_index(collection) == mended


def test_the_cost_of_a_query_is_that_of_all_segments_beside_the_largest(collection: Collection) -> None:
    manifest = build_index(collection)
    assert (manifest.cost, manifest.built_cost, manifest.ageing) == (1.0, 1.0, 1.0)
    assert build_index(collection, IndexSettings(segment_rows=500, latency_ms=1e-6, target_recall=0.5)).cost > 1.5


def test_speed_is_measured_when_the_segments_have_changed_much(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = iter([1.1, 1.2, 1.3])
    monkeypatch.setattr("index.builder.measure._cost", lambda *_: next(costs))
    versions = [build_index(collection)]
    for start, stop in ((2_000, 2_010), (2_010, 2_015), (2_015, 2_075), (2_075, 2_275)):
        add_run(collection, rows(ids(start, stop), in_half(stop - start, start, 0)), model=MODEL_16)
        versions.append(build_index(collection))
    assert [[each.live for each in version.segments] for version in versions] == [
        [2_000], [2_000, 10], [2_000, 15], [2_000, 75], [2_275]
    ]  # fmt: skip
    assert [version.cost for version in versions] == [1.0, 1.1, 1.1, 1.2, 1.3]
    times = [(version.latency_ms, version.queries_per_second) for version in versions]
    assert times[1] == times[2]
    assert times[2] != times[3]


def test_images_are_searched_more_widely_if_the_rows_used_for_tuning_were_easier(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_narrow(segment: VectorIndex, target_recall: float) -> float:
        tune(segment, target_recall - 0.06)
        return target_recall

    monkeypatch.setattr("index.builder.segment.tune", too_narrow)
    manifest = build_index(collection, rebuild=True)
    image = manifest.kinds["image"]
    assert image.width > 1
    assert manifest.recall["10"] == image.recall >= SETTINGS.target_recall
    add_run(collection, rows(ids(2_000, 2_050), in_half(50, 5, 0)), model=MODEL_16)
    updated = build_index(collection)
    assert (updated.base, updated.kinds["image"].width) == (manifest.version, image.width)
