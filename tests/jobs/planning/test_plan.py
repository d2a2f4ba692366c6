"""What is left to embed of a listing, where `test_reference_plan.py` draws no such sources and files."""

import datetime as dt
from typing import Any

import pyarrow as pa

from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunStart
from index.collection.row_files import block_of
from index.collection.rows import row_schema
from jobs.planning.plan import Plan, block_name
from jobs.sources.listing import listing_table
from tests.support.collections.rejects_and_checks import list_rejects
from tests.support.collections.run_plans import images_to_do, run_plan_of
from tests.support.fake_embedder import FakeEmbedder

IDENTITY = FakeEmbedder().identity
MODEL = ModelRecord(id=IDENTITY.model_id, revision=None, fingerprint=IDENTITY.fingerprint, dim=IDENTITY.dim)
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
    collection.commit_run(run, collection.written_files(run))


def committed(collection: Collection, *rows: Row) -> None:
    run = collection.start_run(SOURCE, MODEL)
    write(collection, run, "0001-a", *rows)
    commit(collection, run)


def plan_of(collection: Collection, *images: Row) -> Plan:
    return run_plan_of(listed(*images), collection, SOURCE, MODEL)


def todo(plan: Plan) -> list[Any]:
    """The ids of the images that are not kept."""
    parts = (images_to_do(part) for part in (plan.copies, plan.refused, plan.todo) if part)
    return [image_id for part in parts for image_id in part["image_id"].to_pylist()]


def test_a_value_that_one_side_lacks_is_a_change_only_of_a_reject(collection: Collection) -> None:
    """Such as a broken link that was repaired, or a row that had no uri."""
    names = ("size", "modified", "etag")
    nowhere: Row = dict.fromkeys(names)
    rejects = rejected("link", retryable=False, **nowhere), rejected("no uri", retryable=False, uri=None)
    known, unknown = map(embedded, names), [embedded(f"no {name}", **{name: None}) for name in names]
    committed(collection, *rejects, *known, *unknown)
    images = [*(image(name, **{name: None}) for name in names), *(image(f"no {name}") for name in names)]
    assert plan_of(collection, image("link", **nowhere), image("no uri", uri=None), *images).done
    images = [image(f"no {name}", **{name: None}) for name in names]
    plan = plan_of(collection, image("link", etag=None), image("no uri", uri="/there"), *images)
    assert todo(plan) == ["link", "no uri"]


def test_one_file_of_a_retried_block_counts(collection: Collection) -> None:
    run = collection.start_run(SOURCE, MODEL)
    for size in (100, 100, 101):  # the two equal ones are one file
        write(collection, run, block_name(1, ["a", "b"]), embedded("a", width=size), embedded("b"))
    write(collection, run, block_name(1, ["c"]), embedded("c"))
    assert len(collection.row_files(run.run_id)) == 3
    plan = plan_of(collection, *map(image, "abc"))
    assert (sorted(file.rows for file in plan.files), todo(plan), plan.attempt) == ([1, 2], [], 2)


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
