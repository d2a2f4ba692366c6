"""The plan: what is left to embed of a listing, given the rows of a collection and of its unfinished run."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from embedder.fake import FakeEmbedder
from index.collection import Collection
from index.collection.records import ModelRecord, RunManifest, RunStart
from index.collection.row_files import block_of
from index.collection.rows import row_schema
from jobs.planning.plan import Plan, block_name
from jobs.sources.listing import listing_table
from tests.support.collections.rejects import list_rejects
from tests.support.collections.run_plans import images_to_do, run_plan_of

IDENTITY = FakeEmbedder().identity
MODEL = ModelRecord(id=IDENTITY.model_id, revision=None, fingerprint=IDENTITY.fingerprint, dim=IDENTITY.dim)
OTHER = ModelRecord(id="other", revision=None, fingerprint="f" * 64, dim=IDENTITY.dim)
SOURCE = "/pictures"
NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)

Row = dict[str, Any]


def image(image_id: str, **changes: Any) -> Row:
    """An image as listed, which is also the beginning of its row."""
    row = {"image_id": image_id, "uri": f"{SOURCE}/{image_id}", "size": 10, "modified": NOON, "etag": "e"}
    return {**row, **changes}


def embedded(image_id: str, **changes: Any) -> Row:
    return {**image(image_id, **changes), "embedding": [1.0] + [0.0] * (MODEL.dim - 1)}


def rejected(image_id: str, *, retryable: bool, **changes: Any) -> Row:
    row = image(image_id, **changes)
    stage, reason, message = ("fetch", "timeout", "late") if retryable else ("decode", "not_an_image", "a text")
    return {**row, "error_stage": stage, "error_reason": reason, "error_message": message, "retryable": retryable}


def listed(*images: Row) -> pa.Table:
    columns = {name: [row[name] for row in images] for name in ("image_id", "uri", "size", "modified", "etag")}
    return listing_table(columns, {})


def write(collection: Collection, run: RunStart, name: str, *rows: Row) -> None:
    collection.write_rows(run.run_id, name, pa.Table.from_pylist(list(rows), schema=row_schema(MODEL.dim)))


def commit(collection: Collection, run: RunStart) -> None:
    files = collection.written_files(run)
    facts = collection.write_facts(run.run_id, files)
    collection.commit_run(RunManifest(**dict(run), finished_at=NOON, files=files, facts=facts))


def committed(collection: Collection, *rows: Row) -> None:
    run = collection.start_run(SOURCE, MODEL)
    write(collection, run, "0001-a", *rows)
    commit(collection, run)


def plan_of(collection: Collection, *images: Row, source: str = SOURCE, model: ModelRecord = MODEL) -> Plan:
    return run_plan_of(listed(*images), collection, source, model)


def todo(plan: Plan) -> list[Any]:
    """The ids of the images that are not kept."""
    parts = (images_to_do(part) for part in (plan.copies, plan.refused, plan.todo) if part)
    return [image_id for part in parts for image_id in part["image_id"].to_pylist()]


@pytest.mark.parametrize(
    "change",
    [{"size": 11}, {"modified": NOON + dt.timedelta(microseconds=1), "etag": None}, {"etag": "x"}, {"uri": "/moved/a"}],
)
def test_an_image_that_changed_is_embedded_again(collection: Collection, change: Row) -> None:
    committed(collection, embedded("a"), embedded("b"))
    assert todo(plan_of(collection, image("a", **change), image("b"))) == ["a"]


def test_an_object_rewritten_with_the_same_content_is_not_embedded_again(collection: Collection) -> None:
    committed(collection, embedded("a"), rejected("broken", retryable=False))
    later = NOON + dt.timedelta(days=1)
    assert plan_of(collection, image("a", modified=later), image("broken", modified=later)).done


@pytest.mark.parametrize("name", ["size", "modified", "etag"])
def test_a_value_that_one_side_lacks_is_not_a_change(collection: Collection, name: str) -> None:
    committed(collection, embedded("known"), embedded("unknown", **{name: None}))
    assert plan_of(collection, image("known", **{name: None}), image("unknown")).done
    assert plan_of(collection, image("unknown", **{name: None})).done


def test_a_row_without_a_uri_is_tried_again_once_it_has_one(collection: Collection) -> None:
    committed(collection, rejected("none", retryable=False, uri=None))
    assert plan_of(collection, image("none", uri=None)).done
    assert todo(plan_of(collection, image("none", uri="/now/there"))) == ["none"]


def test_a_repaired_link_is_tried_again(collection: Collection) -> None:
    nowhere = {"size": None, "modified": None, "etag": None}
    committed(collection, rejected("link", retryable=False, **nowhere), embedded("list", **nowhere))
    assert plan_of(collection, image("link", **nowhere), image("list", **nowhere)).done
    assert todo(plan_of(collection, image("link", etag=None), image("list"))) == ["link"]


def test_one_file_of_a_retried_block_counts(collection: Collection) -> None:
    run = collection.start_run(SOURCE, MODEL)
    for size in (100, 100, 101):  # the two equal ones are one file
        write(collection, run, block_name(1, ["a", "b"]), embedded("a", width=size), embedded("b"))
    write(collection, run, block_name(1, ["c"]), embedded("c"))
    assert len(collection.row_files(run.run_id)) == 3
    plan = plan_of(collection, *map(image, "abc"))
    assert (sorted(file.rows for file in plan.files), todo(plan), plan.attempt) == ([1, 2], [], 2)


def test_runs_of_other_sources_and_models_are_left_alone(collection: Collection) -> None:
    for source, model in (("/elsewhere", MODEL), (SOURCE, OTHER)):
        write(collection, collection.start_run(source, model), "0001-x", embedded("a"))
    plan = plan_of(collection, image("a"))
    assert (plan.run, plan.files, todo(plan), plan.attempt) == (None, [], ["a"], 1)
    older, newer = (collection.start_run(SOURCE, MODEL) for _ in range(2))
    write(collection, older, "0001-x", embedded("a"))
    assert plan_of(collection, image("a")).run == newer


def test_a_copy_of_the_model_resumes_the_run(collection: Collection) -> None:
    run = collection.start_run(SOURCE, MODEL)
    copy = MODEL.model_copy(update={"id": "/copied/elsewhere", "revision": "r"})
    assert plan_of(collection, image("a"), model=copy).run == run


def test_foreign_and_damaged_files_are_left_out(collection: Collection) -> None:
    run = collection.start_run(SOURCE, MODEL)
    write(collection, run, "0001-good", embedded("a"))
    write(collection, run, "foreign", embedded("b"))
    damaged_footer = b"PAR1" + b"x" * 50 + (20).to_bytes(4, "little") + b"PAR1"
    contents = {"0007-empty": b"", "0008-text": b"not Parquet at all", "0009-footer": damaged_footer}
    for name, content in contents.items():
        collection.storage.write_atomic(f"runs/{run.run_id}/rows/{name}.parquet", content)
    collection.storage.write_atomic(f"runs/{run.run_id}/rows/0010-note.txt", b"x")
    plan = plan_of(collection, image("a"), image("b"))
    assert [block_of(file.path) for file in plan.files] == [f"runs/{run.run_id}/rows/0001-good"]
    assert (todo(plan), plan.attempt) == (["b"], 2)


def test_an_unfinished_run_is_resumed_only_if_there_is_something_to_do(collection: Collection) -> None:
    committed(collection, embedded("a"))
    run = collection.start_run(SOURCE, MODEL)
    write(collection, run, "0001-a", embedded("a", size=99))
    plan = plan_of(collection, image("a"))
    assert (plan.run, plan.files, todo(plan), plan.done) == (None, [], [], True)
    # The committed row matches picture a, but committing the run for b will hide it.
    assert todo(plan_of(collection, image("a"), image("b"))) == ["a", "b"]


def test_rejects_are_those_of_the_newest_rows(collection: Collection) -> None:
    stopped = collection.start_run("/elsewhere", MODEL)
    write(collection, stopped, "0001-a", rejected("old", retryable=True), rejected("repaired", retryable=True))
    committed(collection, embedded("repaired"), rejected("a", retryable=False), rejected("b", retryable=True))
    run = collection.start_run(SOURCE, MODEL)
    write(collection, run, "0001-a", embedded("b"), rejected("c", retryable=True))
    write(collection, run, "0002-a", rejected("c", retryable=True))
    collection.storage.write_atomic(f"runs/{run.run_id}/rows/0003-x.parquet", b"garbage")
    rejects = list_rejects(collection)
    assert [row["image_id"] for row in rejects] == ["a", "c", "old"]
    assert [row["error_message"] for row in rejects if row["error_reason"] == "timeout"] == ["late", "late"]


def test_an_unfinished_run_older_than_a_committed_one_is_left_alone(collection: Collection) -> None:
    old = collection.start_run(SOURCE, MODEL)
    write(collection, old, "0001-a", embedded("a"))
    committed(collection, embedded("a", size=3))
    plan = plan_of(collection, image("a", size=4))
    assert (plan.run, todo(plan)) == (None, ["a"])
