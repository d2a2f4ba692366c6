"""Facets are the counts of the live rows, in a whole index and in shards."""

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.errors import FilterError
from index.filters import facets
from index.filters.columns import Column
from index.search import Searcher
from index.segments import segmented_index
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.collections.sharded import InProcessShards

COUNT = 600
TAGS: tuple[list[str] | None, ...] = (["red", "round", "red"], ["red"], [], None)


def row(number: int, label: str) -> dict[str, Any]:
    return {"label": label, "tags": TAGS[number % 4], "year": 2000 + number % 5, "new": number % 2 == 0}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Collection, list[dict[str, Any]]]:
    """A collection of several segments, where a later run replaced rows and deleted others; and its live rows."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("collection")))
    ids = [f"{number:04d}" for number in range(COUNT)]
    known = {image_id: row(number, "cat" if number % 3 else "dog") for number, image_id in enumerate(ids)}
    more = {"caption": pa.array([f"number {number}" for number in range(COUNT)]), "score": pa.array([0.5] * COUNT)}
    add_run(collection, rows(ids, unit_vectors(COUNT), metadata=columns(list(known.values())) | more))
    build_index(collection, IndexSettings(segment_rows=140, factory="Flat"))
    replaced = {image_id: row(number, "cow") for number, image_id in enumerate(ids[::50])}
    gone = ids[1::13]
    later = rows(list(replaced), unit_vectors(len(replaced), seed=3), metadata=columns(list(replaced.values())))
    add_version(collection, later, deletes=gone, settings=IndexSettings(segment_rows=140, factory="Flat"))
    known = {image_id: values for image_id, values in known.items() if image_id not in gone} | replaced
    return collection, list(known.values())


def columns(values: list[dict[str, Any]]) -> dict[str, Any]:
    types = {"label": pa.string(), "tags": pa.list_(pa.string()), "year": pa.int16(), "new": pa.bool_()}
    return {name: pa.array([each[name] for each in values], kind) for name, kind in types.items()}


def by_hand(images: list[dict[str, Any]], name: str) -> Counter[Any]:
    lists = [set(image[name]) if isinstance(image[name], list) else [image[name]] for image in images]
    return Counter(value for values in lists for value in values if value is not None)


@pytest.mark.parametrize("shards", [0, 3])
def test_a_facet_ignores_the_condition_on_its_own_column(
    live: tuple[Collection, list[dict[str, Any]]], shards: int
) -> None:
    collection, values = live
    searcher = InProcessShards(collection, shards).searcher() if shards else Searcher.open(collection)
    assert len(searcher.manifest.segments) >= 5
    unfiltered = searcher.facets()
    # Without the captions, which no two images share, and the numbers with fractions.
    assert list(unfiltered.values) == ["label", "tags", "year", "new"]
    assert unfiltered.rows == len(values)
    narrowed = searcher.facets({"label": "cat", "year": {"$gte": 2003}})
    cats, recent = [each["label"] == "cat" for each in values], [each["year"] >= 2003 for each in values]
    masks = {"label": recent, "year": cats, "tags": list(map(all, zip(cats, recent, strict=True)))}
    for name in ("label", "tags", "year"):
        assert unfiltered.values[name] == by_hand(values, name)
        passing = [each for each, good in zip(values, masks[name], strict=True) if good]
        assert narrowed.values[name] == by_hand(passing, name), name
    assert list(searcher.facets({"label": "nobody's"}).values) == list(unfiltered.values)
    with pytest.raises(FilterError, match="unknown column"):
        searcher.facets({"nowhere": 1})


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32()], ids=str)
def test_times_are_counted_by_month_or_by_year(tmp_path: Path, kind: pa.DataType) -> None:
    days = [datetime(2023 + month // 12, month % 12 + 1, 31 if month % 12 in (0, 11) else 1) for month in range(24)]
    collection = Collection.create_or_open(str(tmp_path))
    ids = [f"{number:03}" for number in range(100)]
    taken = pa.array([*days * 4, None, None, days[0], days[0]], pa.timestamp("us")).cast(kind)
    add_version(collection, rows(ids, unit_vectors(100), metadata={"taken": taken}))
    searcher = Searcher.open(collection)
    [months] = searcher.facets().values.values()
    assert facets.periods(months)[:2] == [
        ("2024-12", 4, {"$gte": "2024-12-01", "$lt": "2025-01-01"}),
        ("2024-11", 4, {"$gte": "2024-11-01", "$lt": "2024-12-01"}),
    ]
    years = facets.periods(months + Counter({"2022-07": 1}))
    assert [(period, count) for period, count, _ in years] == [("2024", 48), ("2023", 50), ("2022", 1)]
    assert facets.periods(Counter({"9999-12": 1})) == [("9999-12", 1, {"$gte": "9999-12-01"})]  # there is no year 10000
    for period, count, condition in [*facets.periods(months), *years[:2]]:
        assert len(searcher.search(unit_vectors(1), 100, filter={"taken": condition})[0]) == count, period


def test_times_to_the_nanosecond_are_counted() -> None:
    batch = pa.record_batch({"taken": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))})
    counts = facets.count_values([batch], [Column.of(batch.schema.field("taken"))])
    assert counts.values == {"taken": {"2023-11": 1}}


def test_times_that_python_cannot_represent_are_null(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    taken = pa.array([0, 0, 2**63 - 1, 1 - 2**63], pa.timestamp("us"))  # with infinity, as databases write it
    add_version(collection, rows(list("abcd"), unit_vectors(4), metadata={"taken": taken}))
    searcher = Searcher.open(collection)
    assert searcher.facets().values == {"taken": {"1970-01": 2}}
    found = {match.image_id: match.metadata["taken"] for match in searcher.search(unit_vectors(1), 4)[0]}
    assert found == {"a": datetime(1970, 1, 1), "b": datetime(1970, 1, 1), "c": None, "d": None}


def test_a_time_column_is_a_facet_if_images_share_years(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    days = [datetime(2020 + month // 12, month % 12 + 1, 1) for month in range(30)]
    ids = [f"{number:03}" for number in range(30)]
    columns = {"taken": pa.array(days, pa.timestamp("us")), "month": [f"{day:%Y-%m}" for day in days]}
    add_version(collection, rows(ids, unit_vectors(30), metadata=columns))
    assert list(Searcher.open(collection).facets().values) == ["taken"]


def test_a_sample_is_counted_if_there_are_very_many_rows(
    live: tuple[Collection, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented_index, "MAX_ROWS", COUNT // 3)
    monkeypatch.setattr(segmented_index, "BLOCK_ROWS", 100)
    sample = Searcher.open(live[0]).facets()
    assert 0 < sample.rows < COUNT // 2
    assert sum(sample.values["label"].values()) == sample.rows


def test_a_column_with_too_many_values_is_not_a_facet(
    live: tuple[Collection, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facets, "MAX_DISTINCT", 4)
    assert list(Searcher.open(live[0]).facets().values) == ["label", "tags", "new"]
