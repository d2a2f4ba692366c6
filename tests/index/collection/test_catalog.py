"""The catalog: facts of runs on disk, and what SQL finds in them."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import concurrent.futures.thread
import datetime as dt
import gc
import hashlib
import os
import random
import signal
import threading
import weakref
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from index.collection import Collection
from index.collection.cache import checked
from index.collection.cache.file_cache import FileCache
from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.catalog.database import database, run_statement
from index.collection.live_rows import LiveRows
from index.collection.merged.sets import MANIFEST_PATH, MergedManifest
from index.collection.records.run_manifest import RunStart
from index.collection.rows import EMBEDDING, JSON, TILES
from index.errors import CollectionError, DamagedRunError
from tests.support.collections.hand_made import MODEL, add_run, rows
from tests.support.collections.s3_server import Bucket

NOON = dt.datetime(2026, 11, 26, 12, tzinfo=dt.UTC)


def catalog_of(collection: Collection) -> Catalog:
    return collection.snapshot().live.catalog


def test_a_catalog_may_end_where_a_pool_takes_work(collection: Collection) -> None:
    """Garbage may be collected anywhere, even while this thread holds the lock of all pools."""
    add_run(collection, rows(["a"]))
    ended = weakref.ref(catalog := catalog_of(collection))
    with concurrent.futures.thread._global_shutdown_lock:
        del catalog
        gc.collect()
    assert ended() is None
    assert catalog_of(collection).table("SELECT image_id FROM live_rows").num_rows == 1


def test_facts_have_all_columns_but_vectors_and_the_place_of_each_row(collection: Collection) -> None:
    run = add_run(collection, rows(["a", "b"], metadata={"label": ["x", "y"]}), rows(["c"]))
    [facts] = run.facts
    table = pq.read_table(f"{collection.location}/{facts.path}")
    assert not {EMBEDDING, TILES} & set(table.column_names)
    assert table.select(["row_file", "row_position", "image_id", "label"]).to_pylist() == [
        {"row_file": 0, "row_position": 0, "image_id": "a", "label": "x"},
        {"row_file": 0, "row_position": 1, "image_id": "b", "label": "y"},
        {"row_file": 1, "row_position": 0, "image_id": "c", "label": None},
    ]


@pytest.mark.parametrize("folder", ["label=dog", "image_id=5", "row_run=x", "[a]*"])
def test_a_folders_name_is_no_column_and_no_pattern(tmp_path: Path, folder: str) -> None:
    collection = Collection.create_or_open(str(tmp_path / folder / "c"))
    add_run(collection, rows(["a", "b"], metadata={"label": ["x", "y"]}))
    found = collection.live_rows(["image_id", "label"]).to_pylist()
    assert found == [{"image_id": "a", "label": "x"}, {"image_id": "b", "label": "y"}]


def test_names_that_differ_in_case_alone_and_names_of_sql_stay_apart(collection: Collection) -> None:
    columns: dict[str, list[Any]] = {
        "Label": ["x"],
        "label": [1],
        "LABEL": [2.5],
        'say "hi"': ["q"],
        "select": [True],
        "filename": ["f"],
    }
    columns |= {"seq": [7], "run": [8], "URI": ["u"], "m0": ["m"], "it's": ["t"], "": ["empty"], "é\x00": ["z"]}
    add_run(collection, rows(["a"], metadata=columns))
    add_run(collection, rows(["b"], metadata={"label": [3], "m1": ["other"]}))
    found = collection.live_rows([*columns, "uri"]).to_pylist()
    assert found[0] == {name: values[0] for name, values in columns.items()} | {"uri": "memory:a"}
    assert found[1] == dict.fromkeys(columns) | {"label": 3, "uri": "memory:b"}


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_and_durations_of_all_runs_are_read_to_the_microsecond(
    collection: Collection, unit: Any, zone: Any
) -> None:
    exact = pa.array([1_714_997_289_123_456_789], pa.timestamp("ns", zone))
    short = pa.array([-1_999], pa.duration("ns"))
    last = dt.datetime(2262 if unit == "ns" else 9999, 1, 2, tzinfo=dt.UTC if zone else None)
    far, long = pa.array([last], pa.timestamp(unit, zone)), pa.array([dt.timedelta(days=-9)], pa.duration(unit))
    for image_id, at, lasts in (("a", exact, short), ("b", far, long)):
        lists = pa.ListArray.from_arrays([0, 1], at)
        add_run(collection, rows([image_id], metadata={"at": at, "all": lists, "lasts": lasts}))
    near = dt.datetime(2024, 5, 6, 12, 8, 9, 123456, last.tzinfo)
    expected = [
        {"at": near, "all": [near], "lasts": dt.timedelta(microseconds=-1)},
        {"at": last, "all": [last], "lasts": dt.timedelta(days=-9)},
    ]
    live = LiveRows.of_runs(collection.storage, collection.runs())
    for read in ([collection.live_rows([*expected[0]])], live.embedded()):
        assert [row for part in read for row in part.select([*expected[0]]).to_pylist()] == expected


def test_a_time_beyond_microseconds_is_refused_with_its_column(collection: Collection) -> None:
    with pytest.raises(
        CollectionError, match=r"column 'until': expected timestamp\[us\], got timestamp\[ms\] .*bounds"
    ):
        add_run(collection, rows(["a"], metadata={"until": pa.array([2**62]).cast(pa.timestamp("ms"))}))


def test_values_that_no_type_holds_concern_those_who_ask_for_their_column(collection: Collection) -> None:
    far, time = pa.array([200_000_000], pa.date32()), pa.array([1], pa.timestamp("us"))  # the year 549551
    add_run(collection, rows(["a"], metadata={"until": far, "label": ["x"]}))
    add_run(collection, rows(["b"], metadata={"until": time, "label": ["y"]}))
    assert collection.live_rows(["label"]).to_pylist() == [{"label": "x"}, {"label": "y"}]
    with pytest.raises(CollectionError, match=r"cannot be read \(Conversion Error: .*\); give each column one type in"):
        collection.live_rows(["until"])


VALUES: dict[str, pa.Array[Any]] = {
    "int8": pa.array([-5], pa.int8()),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
    "half": pa.array([1.5], pa.float16()),
    "nan": pa.array([float("nan")]),
    "decimal": pa.array([Decimal("12345678901234567890.25")], pa.decimal128(38, 2)),
    "long decimal": pa.array([Decimal("9" * 60 + ".5")], pa.decimal256(70, 1)),
    "date": pa.array([dt.date(1970, 1, 2)]),
    "time": pa.array([dt.time(23, 59, 59, 999999)]),
    "time in ms": pa.array([dt.time(1, 2, 3)], pa.time32("ms")),
    "duration": pa.array([dt.timedelta(days=3, microseconds=1)]),
    "time with zone": pa.array([NOON], pa.timestamp("ms", "Europe/Berlin")),
    "null": pa.nulls(1),
    "text": pa.array(["ÄÖ \U0001f600 \x00 '\""]),
    "list": pa.array([["x", None]]),
    "empty list": pa.array([[]], pa.list_(pa.int64())),
    "durations": pa.array([[dt.timedelta(seconds=2)]]),
    "json": pa.array(['{"k": [1, {"d": null}]}'], pa.string()).cast(JSON),
    "bool": pa.array([False]),
}


STORED: dict[str, pa.DataType] = {"half": pa.float32(), "time with zone": pa.timestamp("us", "Europe/Berlin")}
"""The types of those that are stored with another."""


@pytest.mark.parametrize("name", VALUES)
def test_values_are_read_as_they_were_written(collection: Collection, name: str) -> None:
    add_run(collection, rows(["a"], metadata={"value": VALUES[name]}))
    live = LiveRows.of_runs(collection.storage, collection.runs())
    [by_catalog] = live.read(["value"])["value"].to_pylist()
    [by_file] = [batch["value"] for batch in live.embedded()]
    assert str(by_catalog) == str(VALUES[name][0].as_py()) == str(by_file[0].as_py())
    assert live.schema.field("value").type == STORED.get(name, VALUES[name].type)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.array([1]), pa.array(["x"]), ["1", "x"]),
        (pa.array([1]), pa.array([["x"]]), [["1"], ["x"]]),
        (pa.array([1.5]), pa.array([2]), [1.5, 2.0]),
        (pa.array([2**53 + 1]), pa.array([0.5]), [float(2**53), 0.5]),  # too large for a float
        (pa.array([2**64 - 1], pa.uint64()), pa.array([-5]), [2**64 - 1, -5]),
        (pa.array([[-1]]), pa.array([2**64 - 1], pa.uint64()), [[-1], [2**64 - 1]]),
        (pa.nulls(1), pa.array([["x"]]), [None, ["x"]]),
        (pa.array(["t"]), pa.array(["[1]"], pa.string()).cast(JSON), ['"t"', "[1]"]),
        (pa.array([True]), pa.array(["yes"]), ["true", "yes"]),
    ],
)
def test_types_that_differ_between_runs_are_unified(
    collection: Collection, one: Any, other: Any, expected: list[Any]
) -> None:
    add_run(collection, rows(["a"], metadata={"value": one}))
    add_run(collection, rows(["b"], metadata={"value": other}))
    assert collection.live_rows(["value"])["value"].to_pylist() == expected


def test_a_collection_of_an_earlier_format_is_refused_in_one_sentence(collection: Collection) -> None:
    start = collection.start_run("memory:", MODEL)
    old = {name: getattr(start, name) for name in RunStart.model_fields} | {"format": 1}
    path = Path(collection.location) / "runs" / start.run_id / "started.json"
    path.write_bytes(RunStart.model_construct(**old).to_bytes())
    merged: dict[str, Any] = {"format": 1, "sets": [1], "replaced": {}}
    collection.storage.write_atomic(MANIFEST_PATH, MergedManifest.model_construct(**merged).to_bytes())
    with pytest.raises(CollectionError, match=r"has format 1, .* reads 4, .*: embed the source into a new folder"):
        collection.snapshot()


def test_facts_of_an_uncommitted_run_are_made_and_can_be_stored(collection: Collection) -> None:
    start = collection.start_run("memory:", MODEL)
    files = [collection.write_rows(start.run_id, f"0001-{name}", rows([name])) for name in "ab"]
    catalog = Catalog(collection.storage, [RunRows(run=start, files=files)])
    assert not list((Path(collection.location) / "runs" / start.run_id).glob("facts*"))
    assert catalog.store_facts() == collection.commit_run(start, files).facts


@pytest.mark.parametrize("threads", [2, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 8))])
@pytest.mark.parametrize("kept", [False, True])
def test_a_signal_ends_a_query_like_any_other_code(collection: Collection, threads: int, kept: bool) -> None:
    """However many threads DuckDB has: others may have all the work, and the one that asked sleeps."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    add_run(collection, rows(["a"]))
    catalog, before = catalog_of(collection), signal.signal(signal.SIGTERM, interrupt)
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGTERM])
    ask = catalog.store if kept else catalog.table
    catalog.create(f"SET threads = {threads}")
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            ask("SELECT sum(sin(range)) AS waits FROM range(20_000_000_000)")
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)
        catalog.create("RESET threads")
    assert catalog.table("SELECT count(*) AS rows FROM written").to_pylist() == [{"rows": 1}]


def test_a_signal_at_any_moment_is_what_its_handler_raises() -> None:
    """DuckDB makes a RuntimeError or its own errors of it, in whatever call of the main thread it comes."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    moments, ended = random.Random(0), Counter[str]()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with database().cursor() as cursor:
            for _ in range(50):
                try:
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0005, 0.02))
                    while True:
                        run_statement(cursor, lambda: cursor.execute("SELECT count(*) FROM range(1000)").fetchall())
                except BaseException as error:
                    ended[type(error).__name__] += 1
            assert cursor.execute("SELECT 1").fetchall() == [(1,)]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ended == {"KeyboardInterrupt": 50}


@pytest.fixture
def checked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It does not matter how long ago files were written, and this machine has checked none."""
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(checked, "_SETTLED_S", -1.0)


@pytest.mark.usefixtures("checked_at_once")
def test_facts_are_checked_once_and_again_when_they_were_written_to(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(collection, rows(["a", "b"]), deletes=["c"])
    len(collection.snapshot().live)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        assert len(collection.snapshot().live) == 2
    path = Path(collection.location) / run.facts[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedRunError, match="it has been altered"):
        len(collection.snapshot().live)


@pytest.mark.usefixtures("checked_at_once")
def test_facts_of_a_bucket_come_once_and_are_checked_once(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = Collection.create_or_open(bucket.address("likeness"))
    run = add_run(collection, rows(["a", "b"]), deletes=["c"])
    named = run.facts
    for _ in range(2):
        assert len(collection.snapshot().live) == 2
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        for file in named:
            collection.storage.delete(file.path)
        assert len(collection.snapshot().live) == 2
    cached, path = FileCache.from_environment().folder / named[0].sha256, named[0].path
    altered = b"x" + cached.read_bytes()[1:]
    cached.write_bytes(altered)
    with pytest.raises(DamagedRunError, match=rf"{path} cannot be read \(it is missing\)"):
        len(collection.snapshot().live)
    collection.storage.write_atomic(path, altered)
    with pytest.raises(DamagedRunError, match=rf"{path} cannot be read \(it has been altered"):
        len(collection.snapshot().live)


def test_rows_are_grouped_in_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = Collection.create_or_open(str(tmp_path / "braces {}{x}'"))
    monkeypatch.setattr("index.collection.catalog.workspace._GROUPED", 3)
    ids = [f"{number:02}" for number in range(20)]
    add_run(collection, rows(ids))
    add_run(collection, rows(ids[:5]), deletes=ids[18:])
    assert collection.live_rows(["image_id"])["image_id"].to_pylist() == ids[:18]
    catalog = catalog_of(collection)
    assert catalog.live_counts == {0: 13, 1: 5}
    catalog.group("twice", "image_id", "FROM written", "image_id", having="count(*) > 1")
    assert sorted(row["image_id"] for row in catalog.rows("FROM twice")) == ids[:5]
