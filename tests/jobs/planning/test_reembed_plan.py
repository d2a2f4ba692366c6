"""What re-embedding compares: metadata, rows that are kept, empty sources, and changes during a job."""

import datetime as dt
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import pyarrow as pa
import pytest
from rich.console import Console

from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from jobs.errors import SourceError
from jobs.planning.changes import compare
from jobs.planning.decide import PlannedJob
from jobs.sources.listing import listing_table
from jobs.sources.stored_listing import Listing
from jobs.spec import JobSpec
from jobs.update import Update
from tests.support.collections.hand_made import MODEL, add_run, rows, unit_vectors
from tests.support.collections.run_plans import images_to_do
from tests.support.listings import write_files
from tests.support.nights.reembed_nights import DEMO, Nights, bmp, bmps

OTHER = ModelRecord(id="other", revision=None, fingerprint="b" * 64, dim=4)


def listed(*ids: str, **metadata: list[object]) -> pa.Table:
    columns = {"image_id": ids, "uri": [f"memory:{image_id}" for image_id in ids]}
    return listing_table(columns, {name: pa.array(values) for name, values in metadata.items()})


def test_rows_that_are_kept_keep_their_metadata_with_another_model(collection: Collection) -> None:
    metadata = {"label": ["cat", "dog"], "year": [1999, 2001], "price": [1, 2], "stars": [3, 4]}
    add_run(collection, rows(["stays", "missing"], metadata=metadata))
    listing = listed("stays", label=["cat"], year=[1999.5], price=["dear"])
    change = compare(Listing.of([listing]), collection.snapshot(), PlannedJob(source="memory:", model=OTHER))
    [plan] = change.plans
    names = ["image_id", "label", "year", "price", "stars"]
    assert images_to_do(plan.todo).select(names).to_pylist() == [
        {"image_id": "stays", "label": "cat", "year": 1999.5, "price": "dear", "stars": None},
        {"image_id": "missing", "label": "dog", "year": 2001.0, "price": "2", "stars": 4},
    ]


NAN = float("nan")
DAY = dt.date(2026, 11, 21)
NOON = dt.datetime(2026, 11, 21, 12)


@pytest.mark.parametrize(
    ("there", "now", "changed"),
    [
        (["cat", None, None], ["cat", "dog", None], ["b"]),
        ([1, 2, 3], [1.0, 2.5, 3.0], ["b"]),
        ([1, 2, 3], ["1", "2", "three"], ["c"]),
        ([0.5, NAN, None], [0.5, NAN, NAN], []),
        ([True, False, None], [True, True, None], ["b"]),
        ([DAY, DAY, None], [DAY, DAY + dt.timedelta(1), None], ["b"]),
        ([NOON, None, None], [NOON, NOON, None], ["b"]),
        ([["x"], None, ["y"]], ["x", None, "z"], ["c"]),
        ([[NAN], [1.0], None], [[None], [1.0], [2.0]], ["c"]),
        (None, [None, "new", None], ["b"]),
        (["gone", None, None], None, ["a"]),
    ],
)
def test_rows_whose_metadata_changed_are_rewritten(
    collection: Collection, there: list[object] | None, now: list[object] | None, changed: list[str]
) -> None:
    add_run(collection, rows(["a", "b", "c"], metadata=None if there is None else {"label": there}))
    listing = listed("a", "b", "c", **({} if now is None else {"label": now}))
    change = compare(
        Listing.of([listing]), collection.snapshot(), PlannedJob(source="memory:", model=MODEL, may_delete=True)
    )
    [plan] = change.plans
    assert (images_to_do(plan.copies)["image_id"].to_pylist() if plan.copies else []) == changed
    assert (change.counts.changed, change.counts.reused, change.counts.to_embed) == (len(changed), len(changed), 0)
    assert change.counts.unchanged == 3 - len(changed)


def test_text_columns_have_a_type_without_a_limit_of_2_gib(collection: Collection) -> None:
    add_run(collection, rows(["a", "b", "gone"], metadata={"label": ["cat", "dog", "x"], "year": [1, 2, 3]}))
    add_run(collection, rows(["c"], unit_vectors(1, dim=4)), model=OTHER)
    listing = listed("a", "b", "new", label=["cat", "cow", "y"], year=["1", None, "z"], price=[None, 1, 2])
    for delete in (True, False):
        [plan] = compare(
            Listing.of([listing]), collection.snapshot(), PlannedJob(source="memory:", model=MODEL, may_delete=delete)
        ).plans
        types = images_to_do(plan.todo).schema.types
        assert pa.large_string() in types
        assert pa.string() not in types


@pytest.mark.long
def test_captions_may_be_more_than_a_string_array_holds(collection: Collection) -> None:
    mib, count = "x" * 2**20, 2_304
    ids = [f"{number:04}" for number in range(count)]
    captions = pa.chunked_array([pa.array([mib] * 256)] * (count // 256))  # 2.25 GiB, of which 256 MiB are in memory
    listing = listed(*ids)
    listing = listing.append_column("caption", captions)
    add_run(collection, rows(ids[-3:], metadata={"caption": [mib, "another", None]}))
    change = compare(
        Listing.of([listing]), collection.snapshot(), PlannedJob(source="memory:", model=MODEL, may_delete=True)
    )
    assert (change.counts.unchanged, change.counts.changed, change.counts.new) == (1, 2, count - 3)


def test_an_entry_that_was_refused_says_nothing_of_its_address(collection: Collection) -> None:
    """Otherwise the picture would be embedded again under a new id."""
    add_run(collection, rows(["a"]).append_column("content_hash", pa.array(["a" * 64])))
    refused = rows([], unit_vectors(0), uris=["memory:a"], rejected={"a (duplicate 2)": "duplicate_id"})
    add_run(collection, refused.append_column("error_stage", pa.array(["list"])))
    listing = listed("a", "b").set_column(1, "uri", pa.array(["memory:a", "memory:a"], pa.large_string()))
    job = PlannedJob(source="memory:", model=MODEL, may_delete=True)
    change = compare(Listing.of([listing]), collection.snapshot(), job)
    assert (change.counts.unchanged, change.counts.reused, change.counts.to_embed) == (1, 1, 0)


def test_metadata_is_that_of_the_source_that_wrote_the_row(collection: Collection) -> None:
    """Otherwise two lists of the same pictures would undo each other's labels every night."""
    add_run(collection, rows(["a"], metadata={"label": ["cat"]}))
    change = compare(
        Listing.of([listed("a", label=["dog"])]),
        collection.snapshot(),
        PlannedJob(source="another list", model=MODEL, may_delete=True),
    )
    assert (change.counts.unchanged, change.counts.changed) == (1, 0)


@pytest.mark.parametrize("missing", ["keep", "delete"])
@pytest.mark.parametrize(
    ("files", "message"), [(None, "does not exist"), ([], "expected images"), (["readme.txt"], "expected images")]
)
def test_a_source_without_images_leaves_no_collection_behind(
    tmp_path: Path, files: list[str] | None, message: str, missing: Literal["keep", "delete"]
) -> None:
    if files is not None:
        write_files(tmp_path / "pictures", dict.fromkeys(files, b""))
    settings = JobSpec(source=str(tmp_path / "pictures"), collection=str(tmp_path / "new"), model=DEMO, missing=missing)
    with pytest.raises(SourceError, match=message):
        Update(spec=settings, console=Console(quiet=True)).run()
    assert not (tmp_path / "new").exists()


def test_images_that_another_job_embeds_after_the_listing_are_not_missing(tmp_path: Path) -> None:
    """If another job creates the collection meanwhile, the source is listed again."""
    nights = Nights(write_files(tmp_path / "pictures", bmps(1)), str(tmp_path / "new"))
    create = Collection.create_or_open

    def meanwhile(location: str) -> Collection:
        with patch.object(Collection, "create_or_open", create):
            (nights.pictures / "2.bmp").write_bytes(bmp(2))
            nights.night(DEMO, index=False)
        return create(location)

    with patch.object(Collection, "create_or_open", meanwhile):
        report = nights.night(DEMO, index=False, max_missing=1.0)
    assert (report.counts.listed, report.counts.missing, report.left_out) == (2, 0, {})
    assert nights.collection.live_rows(["image_id"])["image_id"].to_pylist() == ["1.bmp", "2.bmp"]


@pytest.mark.parametrize("source", ["/a/{c}", "/a/{exif}{source}", "/it's {may_delete}", "/{}{{c}}", "/}{"])
def test_a_source_may_have_any_name(collection: Collection, source: str) -> None:
    add_run(collection, rows(["a", "gone"]), source=source)
    add_run(collection, rows(["b"], unit_vectors(1, dim=4)), source=f"{source}/other", model=OTHER)
    change = compare(
        Listing.of([listed("a")]), collection.snapshot(), PlannedJob(source=source, model=MODEL, may_delete=True)
    )
    assert (change.counts.unchanged, change.counts.missing, change.rows, change.others) == (1, 1, 2, 1)
    assert [plan.source for plan in change.plans] == [source, f"{source}/other"]
    assert [plan.todo.num_rows for plan in change.plans] == [0, 1]
