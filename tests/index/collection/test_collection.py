"""Collections: what counts as one, runs and their order, and live rows, of which the newest wins."""

import errno
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.builder.segment_change import touched_ids
from index.collection import Collection, row_files, stored_rows
from index.collection.annotations import annotation_log, list_annotations
from index.collection.cache import checked
from index.collection.catalog.database import database
from index.collection.live_rows import LiveRows
from index.collection.records import bounds
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RowFile
from index.collection.rows import FIXED_COLUMNS, metadata_columns, row_schema
from index.errors import CollectionError, DamagedRunError, ModelMismatchError, NotACollectionError
from index.storage import Storage
from index.versions.servable import collection_model
from tests.support.collections.hand_made import DIM, MODEL, add_run, rows, unit_vectors, written_rows


def live_ids(collection: Collection) -> list[Any]:
    return collection.live_rows(["image_id"]).column("image_id").to_pylist()


def newest_rows(collection: Collection) -> LiveRows:
    return LiveRows.of_runs(collection.storage, collection.runs())


def test_foreign_files_are_named(tmp_path: Path) -> None:
    for name in ["holiday.jpg", "notes.txt"]:
        (tmp_path / name).touch()
    (tmp_path / ".DS_Store").touch()
    with pytest.raises(NotACollectionError, match=r"holiday\.jpg, notes\.txt; expected a new or an empty folder"):
        Collection.create_or_open(str(tmp_path))
    assert not (tmp_path / "runs").exists()
    with pytest.raises(NotACollectionError, match="is a file"):
        Collection.create_or_open(str(tmp_path / "notes.txt"))


def test_a_new_empty_or_existing_folder_is_accepted(tmp_path: Path) -> None:
    (tmp_path / ".gitkeep").touch()
    assert Collection.create_or_open(str(tmp_path)).runs() == []
    assert Collection.create_or_open(str(tmp_path / "deep" / "new")).runs() == []
    assert Collection.create_or_open(tmp_path / "deep" / "new").live_rows().num_rows == 0
    assert Collection.open(tmp_path / "deep" / "new").current() is None
    (tmp_path / "duplicates.jsonl").touch()  # of `likeness duplicates`; nor would a user's own file make it another's
    assert Collection.create_or_open(str(tmp_path)).runs() == []


def test_a_run_counts_once_it_is_committed(collection: Collection) -> None:
    start = collection.start_run("memory:", MODEL)
    file = collection.write_rows(start.run_id, "one", rows(["a"]))
    assert collection.runs() == []
    assert collection.snapshot().unfinished == [start]
    assert collection.row_files(start.run_id) == [f"runs/{start.run_id}/rows/one.{file.sha256[:16]}.parquet"]
    assert row_files.describe(collection.storage, file.path) == file
    written = written_rows(collection, start, [file])
    assert written.read(["image_id"]).to_pylist() == [{"image_id": "a"}]
    assert live_ids(collection) == []
    committed = add_run(collection, rows(["b"]))
    assert collection.runs() == [committed]
    assert collection.snapshot().unfinished == [start]
    assert live_ids(collection) == ["b"]
    assert collection_model(collection.snapshot()) == MODEL


def test_run_ids_sort_by_start_even_if_the_clock_goes_back(collection: Collection) -> None:
    future = datetime.now(UTC) + timedelta(days=400)
    collection.storage.create_folder(f"runs/{future:%Y%m%dT%H%M%SZ}-ffff")
    ids = [collection.start_run("memory:", MODEL).run_id for _ in range(5)]
    assert sorted(ids) == ids
    assert ids[0] > f"{future:%Y%m%dT%H%M%SZ}-ffff"
    collection.storage.create_folder("runs/99991231T235959Z-ffff")
    with pytest.raises(CollectionError, match=r"runs/99991231T235959Z-ffff is of the year 9999, .* remove it"):
        collection.start_run("memory:", MODEL)


def test_rows_are_read_as_they_were_written(collection: Collection) -> None:
    vectors = unit_vectors(3)
    add_run(collection, rows(["b", "a", "c"], vectors, metadata={"label": ["x", "y", None], "rank": [2, 1, 3]}))
    live = collection.live_rows()
    assert live.schema.names == [*FIXED_COLUMNS, "label", "rank"]
    assert metadata_columns(live.schema) == ["label", "rank"]
    assert live.select(["image_id", "uri", "label", "rank", "width"]).to_pylist() == [
        {"image_id": "a", "uri": "memory:a", "label": "y", "rank": 1, "width": None},
        {"image_id": "b", "uri": "memory:b", "label": "x", "rank": 2, "width": None},
        {"image_id": "c", "uri": "memory:c", "label": None, "rank": 3, "width": None},
    ]
    assert live.schema.field("embedding").type == pa.list_(pa.float32(), DIM)
    assert np.array_equal(np.array(live.column("embedding").to_pylist(), np.float32), vectors[[1, 0, 2]])
    file, *_ = collection.files_of(collection.runs()[0])
    plain = pq.read_schema(f"{collection.location}/{file.path}").field("embedding").type
    assert plain == pa.list_(pa.float32(), DIM)


def test_files_are_small_and_readable_by_other_tools(collection: Collection) -> None:
    vectors = np.random.default_rng(0).normal(size=(256, 512)).astype(np.float32)
    run_id = collection.start_run("here", MODEL.model_copy(update={"dim": 512})).run_id
    file = collection.write_rows(run_id, "block", rows([str(n) for n in range(256)], vectors))
    assert file.size < vectors.nbytes
    path = f"{collection.location}/{file.path}"
    with database().cursor() as cursor:
        by_duckdb = cursor.read_parquet(path).fetchnumpy()["embedding"]
    for column in (polars.read_parquet(path)["embedding"].to_list(), by_duckdb):
        np.testing.assert_array_equal(np.array(list(column), np.float32), vectors)


_RUN = st.tuples(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=6),  # id, rejected?
    st.lists(st.sampled_from("abcdef"), max_size=3),
    st.integers(1, 3),
)


@settings(max_examples=settings().max_examples // 3)
@given(runs=st.lists(_RUN, max_size=5))
def test_live_rows_agree_with_a_dict(tmp_path_factory: pytest.TempPathFactory, runs: list[Any]) -> None:
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("fold")))
    expected: dict[str, tuple[str, bool]] = {}
    columns = ("image_id", "uri", "embedding", "error_reason")
    for number, (seen, deleted, files) in enumerate(runs):
        for image_id in deleted:
            expected.pop(image_id, None)
        tables = []
        for part in range(files):
            some = seen[part::files]
            uris = [f"{number}/{part}/{place}" for place in range(len(some))]
            vectors = [None if rejected else unit_vectors(1)[0] for _, rejected in some]
            tables.append(
                pa.table(
                    [[image_id for image_id, _ in some], uris, vectors, [(r and "corrupt") or None for _, r in some]],
                    schema=pa.schema([row_schema(DIM).field(name) for name in columns]),
                )
            )
            for (image_id, rejected), uri in zip(some, uris, strict=True):
                expected[image_id] = (uri, rejected)
        add_run(collection, *tables, deletes=deleted)
    live = collection.live_rows(["image_id", "uri", "error_reason"]).to_pylist()
    assert {row["image_id"]: (row["uri"], row["error_reason"] is not None) for row in live} == expected
    assert [row["image_id"] for row in live] == sorted(expected)
    embedded = [row["image_id"] for batch in newest_rows(collection).embedded() for row in batch.to_pylist()]
    assert sorted(embedded) == sorted(image_id for image_id, (_, rejected) in expected.items() if not rejected)


def test_text_is_large_string_in_memory_and_string_in_files(collection: Collection) -> None:
    label = pa.array(["cat"], pa.large_string())
    run = add_run(collection, rows(["a"], metadata={"label": label}), deletes=["gone"])
    for file in (*collection.files_of(run), *run.facts):
        schema = pq.read_schema(f"{collection.location}/{file.path}")
        assert pa.large_string() not in schema.types
        assert schema.field("image_id").type == pa.string()
    live = LiveRows.of_runs(collection.storage, [run])
    texts = ("image_id", "uri", "content_hash", "etag", "error_message", "label")
    assert {live.read().schema.field(name).type for name in texts} == {pa.large_string()}
    assert {live.read(texts).schema.field(name).type for name in texts} == {pa.large_string()}
    assert {batch.schema.field(name).type for batch in live.embedded() for name in texts} == {pa.string()}
    assert touched_ids(live).to_pylist() == ["gone", "a"]
    assert touched_ids(live).type == pa.large_string()


def test_metadata_that_differs_between_runs_is_unified(collection: Collection) -> None:
    add_run(collection, rows(["a"], metadata={"year": [1999], "a.b": ["dot"]}))
    add_run(collection, rows(["b"], metadata={"year": [2.5], "a": ["whole"]}))
    assert collection.live_rows().select(["year", "a", "a.b"]).to_pylist() == [
        {"year": 1999.0, "a": None, "a.b": "dot"},
        {"year": 2.5, "a": "whole", "a.b": None},
    ]
    assert collection.live_rows(["a"]).to_pylist() == [{"a": None}, {"a": "whole"}]
    with pytest.raises(CollectionError, match="no column colour: expected some of image_id"):
        collection.live_rows(["colour"])
    with pytest.raises(CollectionError, match="expected a list of columns, got 'year'"):
        collection.live_rows("year")


def test_a_column_whose_types_have_nothing_in_common_is_named(collection: Collection) -> None:
    add_run(collection, rows(["a"], metadata={"tags": [{"k": 1}]}))
    add_run(collection, rows(["b"], metadata={"tags": [1.5]}))
    with pytest.raises(CollectionError, match="column 'tags': expected string, got struct"):
        collection.live_rows()
    assert live_ids(collection) == ["a", "b"]


def test_invalid_rows_are_not_written(collection: Collection) -> None:
    start = collection.start_run("memory:", MODEL)
    good = rows(["a"])
    twice = pa.Table.from_arrays([*good.columns, good.column("uri")], names=[*good.column_names, "uri"])
    bad = [
        (twice, "more than once: uri"),
        (good.append_column("width", pa.array(["wide"])), "column 'width': expected int32, got string"),
        (good.drop_columns("embedding"), "expected fixed_size_list"),
        (good.set_column(0, "image_id", pa.array([None], pa.string())), "1 rows have no image_id"),
    ]
    for table, message in bad:
        with pytest.raises(CollectionError, match=message):
            collection.write_rows(start.run_id, "bad", table)
    assert collection.row_files(start.run_id) == []


def test_a_file_of_another_user_is_not_called_damaged(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add_run(collection, rows(["a"]))
    denied = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(checked, "sha256_of", denied)
    for name in ("open_input", "read"):
        monkeypatch.setattr(Storage, name, denied)
    with pytest.raises(PermissionError):
        LiveRows.of_runs(collection.storage, [run])
    with pytest.raises(PermissionError):
        row_files.describe(collection.storage, run.facts[0].path)


def test_a_commit_checks_its_files_and_a_manifest_its_content(collection: Collection) -> None:
    run = add_run(collection, rows(["a"]))
    [file] = collection.files_of(run)
    larger = file.model_copy(update={"size": file.size + 1})
    with pytest.raises(DamagedRunError, match=f"{file.path} is missing or has changed"):
        collection.commit_run(run, [larger], facts=run.facts)
    path = Path(collection.location) / "runs" / run.run_id / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"rows": 1', b'"rows": 2'))
    with pytest.raises(DamagedRunError, match=r"manifest\.json is damaged"):
        collection.runs()


def test_a_run_has_more_files_than_a_record_may_name(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_RECORD", 3_000)
    run = add_run(collection, *(rows([f"{number:02}"], unit_vectors(1, seed=number)) for number in range(40)))
    assert [file.rows for file in collection.files_of(run)] == [1] * 40
    found = collection.live_rows()
    assert found["image_id"].to_pylist() == [f"{number:02}" for number in range(40)]
    assert found["embedding"][7].as_py() == unit_vectors(1, seed=7)[0].tolist()


def test_vectors_of_two_models_are_not_mixed(collection: Collection) -> None:
    other = ModelRecord(id="other", revision=None, fingerprint="b" * 64, dim=4)
    add_run(collection, rows(["a", "b"]))
    add_run(collection, rows(["b"], unit_vectors(1, dim=4)), model=other)
    with pytest.raises(ModelMismatchError, match="vectors of 4 and 8 dimensions"):
        collection.live_rows()
    assert live_ids(collection) == ["a", "b"]
    add_run(collection, rows(["a"], unit_vectors(1, dim=4)), model=other)
    assert len(collection.live_rows().column("embedding")[0]) == 4
    retrained = other.model_copy(update={"fingerprint": "c" * 64})
    add_run(collection, rows(["b"], unit_vectors(1, dim=4)), model=retrained)
    with pytest.raises(ModelMismatchError, match=r"other \(fingerprint bbbbbbbbbbbb\).* other \(fingerprint cccc"):
        list(newest_rows(collection).embedded())


@pytest.mark.parametrize(("whole", "ahead"), [(8 << 20, 64 << 20), (8 << 20, 1), (0, 64 << 20)])
def test_vectors_are_streamed_in_order(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, whole: int, ahead: int
) -> None:
    monkeypatch.setattr(row_files, "_WHOLE", whole)
    monkeypatch.setattr(row_files, "BYTES_AHEAD", ahead)
    monkeypatch.setattr(stored_rows, "BATCH_ROWS", 2)
    run = add_run(collection, rows(["a", "b", "c"]), rows(["d"]), rows(["e", "f"]))
    add_run(collection, rows(["b"]), deletes=["f"])
    embedded = pa.Table.from_batches(newest_rows(collection).embedded())
    assert embedded["image_id"].to_pylist() == ["a", "c", "d", "e", "b"]
    _, file, _ = collection.files_of(run)
    path = Path(collection.location) / file.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedRunError, match=f"{file.path} cannot be read .*restore it from a backup"):
        list(newest_rows(collection).embedded())


@pytest.mark.parametrize(
    ("positions", "expected"),
    [([], []), ([0], ["c"]), ([1, 3], ["d", "f"]), ([0, 1, 2, 3], ["c", "d", "e", "f"]), ([3], ["f"])],
)
def test_rows_are_taken_by_position(collection: Collection, positions: list[int], expected: list[str]) -> None:
    add_run(collection, rows(["a", "b", "c"]), rows(["d"]))
    run = add_run(collection, rows(["e", "f"]), deletes=["a", "b"])
    live = LiveRows.of_runs(collection.storage, collection.runs())
    taken = live.take(np.array(positions, np.int64))
    assert (len(taken), taken.read(["image_id"])["image_id"].to_pylist()) == (len(expected), expected)
    last = written_rows(collection, run, collection.files_of(run)).take(np.array([1]))
    assert last.read(["image_id"]).to_pylist() == [{"image_id": "f"}]


def test_rows_are_selected_by_source_and_model(collection: Collection) -> None:
    copy = MODEL.model_copy(update={"id": "a copy elsewhere"})
    other = ModelRecord(id="other", revision=None, fingerprint="b" * 64, dim=DIM)
    add_run(collection, rows(["a", "b"]))
    add_run(collection, rows(["b"]), model=other)
    live = LiveRows.of_runs(collection.storage, collection.runs())
    assert live.sources == ["memory:"]
    assert live.of_source("memory:").read(["image_id"])["image_id"].to_pylist() == ["a", "b"]
    assert len(live.of_source("elsewhere")) == 0
    assert live.of_model(copy).read(["image_id"])["image_id"].to_pylist() == ["a"]
    assert live.of_model(other).read(["image_id"])["image_id"].to_pylist() == ["b"]

    add_run(collection, rows(["b"]), model=copy)
    assert [batch["image_id"].to_pylist() for batch in newest_rows(collection).embedded()] == [["a"], ["b"]]


def test_rows_of_a_file_are_read_together(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although places of rows come in blocks that end anywhere; with annotations, if they are of the same content."""
    monkeypatch.setattr("index.collection.live_rows._IN_MEMORY", 2)
    ids = [f"{number}" for number in range(9)]
    add_run(collection, rows(ids[:5], unit_vectors(5), metadata={"content_hash": ids[:5]}), rows(ids[5:7]))
    add_run(collection, rows(["7"]), deletes=["1"])
    log = annotation_log(collection, "seq")
    add_run(log, rows(ids, metadata={"seq": [f"m{each}" for each in ids], "content_hash": ["0", "1", "x", *ids[3:]]}))
    files = list[str]()

    def fetch(storage: Storage, file: RowFile) -> Storage:
        files.append(file.path)
        return storage

    monkeypatch.setattr("index.collection.stored_rows.fetch", fetch)
    live, [annotation] = newest_rows(collection), list_annotations(collection)
    batches = [batch.to_pylist() for batch in live.embedded(annotations=[annotation.rows])]
    found = [(row["image_id"], row["seq"]) for batch in batches for row in batch]
    assert found == [("0", "m0"), ("2", None), ("3", "m3"), ("4", "m4"), ("5", None), ("6", None), ("7", None)]
    assert len(files) == len(set(files)) == 3
