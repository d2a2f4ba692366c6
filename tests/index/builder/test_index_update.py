"""Updates of a version: what they write, what they share with it, and when everything is built anew."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from index.builder.build_index import build_index
from index.builder.ground_truth import GroundTruth
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import VersionManifest
from index.errors import EmptyCollectionError, FactoryError, RecallTooLowError
from index.search import Searcher
from index.storage import Storage
from index.versions.promotion import promote
from tests.support.collections.hand_made import MODEL, add_run, rows, unit_vectors

IDS = [f"{number:04d}" for number in range(600)]
APPROXIMATE = IndexSettings(latency_ms=1e-6, factory="IVF16,Flat", target_recall=0.9)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    add_run(collection, rows(IDS, unit_vectors(600)))
    return collection


def tombstones(collection: Collection, manifest: VersionManifest) -> dict[str, list[int]]:
    with pa.memory_map(f"{collection.location}/index/{manifest.version}/tombstones.arrow") as file:
        table = pa.ipc.open_file(file).read_all()
    found: dict[str, list[int]] = {}
    for row in table.to_pylist():
        found.setdefault(row["segment"], []).append(row["position"])
    return found


def names(manifest: VersionManifest) -> list[tuple[str, int, int]]:
    return [(segment.name, segment.ntotal, segment.live) for segment in manifest.segments]


def test_an_update_adds_a_segment_and_tombstones(collection: Collection) -> None:
    first = build_index(collection)
    changed = rows(["new", "0001"], unit_vectors(2, seed=5), rejected={"0002": "corrupt"})
    add_run(collection, changed, deletes=["0003", "-"])
    second = build_index(collection)
    assert (second.base, second.ntotal) == ("000001", 599)
    assert names(second) == [("000001-00", 600, 597), ("000002-00", 2, 2)]
    assert second.segments[0].files == first.segments[0].files
    assert tombstones(collection, second) == {"000001-00": [1, 2, 3]}
    add_run(collection, rows(["0002", "0001"], unit_vectors(2, seed=6)), deletes=["new"])
    third = build_index(collection)  # no row of the second version's segment is left
    assert names(third) == [("000001-00", 600, 597), ("000003-00", 2, 2)]
    assert tombstones(collection, third) == {"000001-00": [1, 2, 3]}
    assert third.runs == [run.run_id for run in collection.runs()]
    assert third.settings == first.settings
    assert Searcher.open(collection, "000001").ntotal == 600
    assert Searcher.open(collection, "000002").row("new") is not None
    assert Searcher.open(collection).row("new") is None


def test_an_update_reads_no_segment_that_this_machine_has_built_to_check_it(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(storage: Storage, path: str) -> str:
        assert not path.startswith("index/segments/")
        return of_file(storage, path)

    of_file = Storage.sha256
    monkeypatch.setattr(Storage, "sha256", digest)
    first = build_index(collection, APPROXIMATE)
    add_run(collection, rows(["new"], unit_vectors(1, seed=5)), deletes=["0001"])
    second = build_index(collection)
    assert (second.base, second.segments[0].files) == ("000001", first.segments[0].files)


def test_a_collection_without_images_has_no_new_version(collection: Collection) -> None:
    build_index(collection)
    add_run(collection, rows([], unit_vectors(0)), deletes=IDS)
    with pytest.raises(EmptyCollectionError, match=r"every image of .* has been deleted; .* still finds the .* embed"):
        build_index(collection)
    with pytest.raises(EmptyCollectionError, match="has been deleted"):
        build_index(collection, rebuild=True)
    assert collection.versions() == [collection.current()] == ["000001"]
    add_run(collection, rows([], unit_vectors(0), rejected={"0001": "corrupt"}))
    with pytest.raises(EmptyCollectionError, match=r"embedded 0 of 1 rows .* a live index version still finds"):
        build_index(collection)
    add_run(collection, rows(["back"]))
    assert names(build_index(collection)) == [("000002-00", 1, 1)]


@pytest.mark.parametrize("first", [600, 50])
def test_segments_have_at_most_segment_rows(collection: Collection, first: int) -> None:
    settings = IndexSettings(segment_rows=250)
    if first < 600:
        add_run(collection, rows([], unit_vectors(0)), deletes=IDS[first:])
    manifest = build_index(collection, settings)
    assert [segment.live for segment in manifest.segments] == ([200, 200, 200] if first == 600 else [50])
    add_run(collection, rows([f"new-{number}" for number in range(501)], unit_vectors(501, seed=5)), deletes=IDS[:20])
    manifest = build_index(collection)
    assert manifest.base == "000001"
    assert [segment.live for segment in manifest.segments][-3:] == [167, 167, 167]
    assert all(segment.ntotal <= 250 for segment in manifest.segments)


def test_new_rows_join_a_rewritten_segment_if_they_fit(collection: Collection) -> None:
    build_index(collection, IndexSettings(segment_rows=600))
    add_run(collection, rows([f"new-{number}" for number in range(300)], unit_vectors(300, seed=5)), deletes=IDS[:250])
    manifest = build_index(collection)
    assert [segment.live for segment in manifest.segments] == [350, 300]
    add_run(collection, rows(["one more"], unit_vectors(1, seed=6)), deletes=[f"new-{number}" for number in range(150)])
    assert [segment.live for segment in build_index(collection).segments] == [350, 151]


def test_everything_is_built_anew_when_necessary(collection: Collection) -> None:
    build_index(collection)
    assert build_index(collection, rebuild=True).base is None
    assert build_index(collection).version == "000002"
    assert build_index(collection, IndexSettings(segment_rows=300)).base is None
    assert build_index(collection).version == "000003"  # the settings of the live version
    add_run(collection, rows(["new"]))
    assert build_index(collection).base == "000003"
    other = MODEL.model_copy(update={"fingerprint": "b" * 64})
    add_run(collection, rows([*IDS, "new"], unit_vectors(601)), model=other)
    manifest = build_index(collection)
    assert (manifest.base, manifest.model, manifest.settings.segment_rows) == (None, other, 300)


def test_few_new_rows_are_searched_exactly_whatever_index_is_requested(collection: Collection) -> None:
    assert [segment.factory for segment in build_index(collection, APPROXIMATE).segments] == ["IVF16,Flat"]
    for step in range(3):
        add_run(collection, rows([f"new-{step}"], unit_vectors(1, seed=step + 5)), deletes=[f"new-{step - 1}"])
        manifest = build_index(collection)
        assert manifest.base == f"{step + 1:06d}"
    assert [segment.factory for segment in manifest.segments][:1] == ["IVF16,Flat"]
    assert {segment.factory for segment in manifest.segments[1:]} == {"Flat"}
    assert manifest.recall["10"] >= 0.9


def test_an_update_fills_the_trained_index_further_until_the_rows_have_doubled(collection: Collection) -> None:
    settings = IndexSettings(latency_ms=1e-6, factory="IVF16,Flat", target_recall=0.1)
    first = build_index(collection, settings)
    add_run(collection, rows([f"new-{number}" for number in range(500)], unit_vectors(500, seed=5)), deletes=IDS[:3])
    second = build_index(collection)  # too few rows for an index of their own
    assert (second.base, names(second)) == ("000001", [("000002-00", 1_100, 1_097)])
    assert tombstones(collection, second) == {"000002-00": [0, 1, 2]}
    record = second.segments[0]
    assert (record.factory, record.parameters) == ("IVF16,Flat", first.segments[0].parameters)
    assert (record.trained, first.segments[0].trained) == (600, 600)
    add_run(collection, rows([f"more-{number}" for number in range(200)], unit_vectors(200, seed=6)))
    third = build_index(collection)
    assert (third.base, names(third)) == ("000002", [("000003-00", 1_297, 1_297)])
    assert (third.segments[0].trained, list(third.files)) == (1_297, ["queries.arrow"])
    found = Searcher.open(collection).search(unit_vectors(600)[3:], 1)
    assert [match.image_id for [match] in found] == IDS[3:]


def test_a_collection_that_outgrows_exact_scans_is_searched_approximately(collection: Collection) -> None:
    settings = IndexSettings(latency_ms=1e-6, target_recall=0.8)  # at most 256 rows are scanned exactly
    add_run(collection, rows([], unit_vectors(0)), deletes=IDS[100:])
    assert [segment.factory for segment in build_index(collection, settings).segments] == ["Flat"]
    vectors = unit_vectors(600, seed=5)
    for step in range(2):
        new = range(step * 300, (step + 1) * 300)
        add_run(collection, rows([f"new-{number}" for number in new], vectors[new.start : new.stop]))
        manifest = build_index(collection)
        assert manifest.base == f"{step + 1:06d}"
        assert [option.name for option in manifest.choice if option.chosen] != ["Flat"]
        assert all(segment.factory != "Flat" or segment.ntotal <= 256 for segment in manifest.segments)
    assert manifest.recall["10"] >= 0.8


def test_memory_is_limited_in_updates_too(collection: Collection) -> None:
    settings = IndexSettings(max_memory=40_000, target_recall=0.1)
    assert build_index(collection, settings).memory <= 40_000
    add_run(collection, rows([f"new-{number}" for number in range(400)], unit_vectors(400, seed=5)))
    assert build_index(collection).memory <= 40_000
    add_run(collection, rows([f"newer-{number}" for number in range(9_000)], unit_vectors(9_000, seed=6)))
    with pytest.raises(FactoryError, match="the smallest takes"):
        build_index(collection)
    assert collection.current() == "000002"


def test_newer_rows_are_one_approximate_segment_until_they_join_the_large_one(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.builder.merge_policy.TAIL_SHARE", 10)
    vectors = unit_vectors(7_200, seed=5)
    add_run(collection, rows([f"{number}" for number in range(6_000)], vectors[:6_000]), deletes=IDS)
    settings = IndexSettings(latency_ms=0.01, max_memory=200_000, target_recall=0.8)
    first = build_index(collection, settings)
    assert [segment.factory != "Flat" for segment in first.segments] == [True]
    counts = []
    for step in range(4):
        new = range(6_000 + 300 * step, 6_300 + 300 * step)
        add_run(collection, rows([f"{number}" for number in new], vectors[new.start : new.stop]))
        manifest = build_index(collection)
        assert manifest.base == f"{step + 1:06d}"  # an update
        assert manifest.memory <= 200_000
        assert {segment.factory for segment in manifest.segments} == {first.segments[0].factory}
        assert {segment.trained for segment in manifest.segments} == {6_000}
        counts.append([segment.ntotal for segment in manifest.segments])
    assert counts == [[6_000, 300], [6_000, 600], [6_900], [6_900, 300]]


def test_a_version_below_its_target_goes_live_only_by_promotion(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(collection)
    monkeypatch.setattr("index.segments.kinds.kind.IndexKind.depths", [[{"rescore": 2.0}]])
    vectors = unit_vectors(1_200, seed=5)
    add_run(collection, rows([f"{number:04d}" for number in range(1_200)], vectors))
    settings = IndexSettings(factory="PCA1,IVF8,SQ4", latency_ms=1e-6, target_recall=0.99)
    with pytest.raises(RecallTooLowError) as caught:
        build_index(collection, settings)
    manifest = collection.read_version("000002")
    assert 0 < manifest.recall["10"] < 0.99
    message = str(caught.value)
    assert message.startswith(
        f"index version 000002 reaches recall@10 {manifest.recall['10']:.6g}, expected 0.99 or more"
    )
    for part in ("000001 still is", "--max-memory", "--factory", "--target-recall", "`likeness promote "):
        assert part in message
    assert collection.current() == "000001"
    searcher = Searcher.open(collection, "000002")
    assert searcher.search(vectors[:1], 1)[0][0].image_id == "0000"
    promote(collection, "000002")
    assert Searcher.open(collection).version == "000002"


def test_an_update_below_the_target_leads_to_a_build_from_all_rows(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build_index(collection, APPROXIMATE)
    add_run(collection, rows(["new"]))
    real = GroundTruth.updated

    def wrong(held_out: GroundTruth, *arguments: object) -> GroundTruth:
        """As if the index found only images that are too far."""
        exact = real(held_out, *arguments)  # type: ignore[arg-type]
        return replace(exact, scores=exact.scores + 1, nearest=exact.nearest[:, ::-1]).unmeasured()

    monkeypatch.setattr(GroundTruth, "updated", wrong)
    manifest = build_index(collection)
    assert (manifest.base, manifest.ntotal, manifest.recall["10"] >= 0.9) == (None, 601, True)
    assert "the update reaches recall@10 0, expected 0.9 or more;" in caplog.text
    assert sorted(entry.name for entry in collection.storage.list("index/segments")) == ["000001-00", "000002-00"]


def test_a_version_that_outgrew_its_queries_is_measured_with_others(collection: Collection) -> None:
    add_run(collection, rows([], unit_vectors(0)), deletes=IDS[1:])
    manifest = build_index(collection)
    assert (manifest.queries, manifest.scores.random, manifest.recall["10"]) == (1, {}, 1.0)
    add_run(collection, rows(IDS[1:100], unit_vectors(100)[1:]))
    manifest = build_index(collection)
    assert (manifest.base, manifest.queries) == ("000001", 100)
    exact = unit_vectors(100) @ unit_vectors(100).T
    assert manifest.scores.random["image"][-1] == pytest.approx(np.max(exact - 2 * np.eye(100)), abs=1e-3)
    add_run(collection, rows(IDS[100:150], unit_vectors(150)[100:]))
    assert build_index(collection).queries == 100
    # Below half of the 100 sampled rows, new queries are sampled.
    add_run(collection, rows([], unit_vectors(0)), deletes=IDS[:101])
    assert build_index(collection).queries == 49


def test_a_factory_that_cannot_be_built_leaves_the_live_version(collection: Collection) -> None:
    build_index(collection)
    with pytest.raises(FactoryError):
        build_index(collection, IndexSettings(factory="IVF601,Flat"))
    assert collection.versions() == [collection.current()] == ["000001"]
    assert [entry.name for entry in collection.storage.list("index/segments")] == ["000001-00"]
