"""The index at the end of re-embedding: what an operator went back from does not come back by itself."""

from pathlib import Path

import pytest
from rich.console import Console

from index.build.build_index import build_index
from index.collection import Collection
from index.collection.records import IndexSettings, ModelRecord
from index.versions.promotion import promote, rollback
from jobs.indexing.up_to_date import IndexOutcome, bring_index_up_to_date
from tests.support.collections.hand_made import MODEL, add_run, rows, unit_vectors

IDS = [f"{number:02d}" for number in range(20)]
OTHER = ModelRecord(id="other", revision=None, fingerprint="b" * 64, dim=4)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """Version 1 of a model, and version 2 of another, which was rolled back."""
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    add_run(collection, rows(IDS, unit_vectors(20)))
    build_index(collection)
    add_run(collection, rows(IDS, unit_vectors(20, dim=4)), model=OTHER)
    build_index(collection)
    rollback(collection)
    return collection


def index(collection: Collection) -> IndexOutcome:
    return bring_index_up_to_date(collection, collection.runs(), {}, None, Console(quiet=True))


def test_a_model_that_was_rolled_back_waits_until_it_is_promoted(collection: Collection) -> None:
    again = f"and was rolled back: 000001 stays live; `likeness promote {collection.location} 000002` takes it again"
    assert index(collection).note == f"index 000002 has these images {again}"
    add_run(collection, rows(["new"], unit_vectors(1, dim=4)), model=OTHER)
    outcome = index(collection)
    assert (outcome.before, outcome.after, outcome.promoted) == ("000001", "000001", False)
    assert outcome.note == f"index 000002 has the model {OTHER} {again}"
    assert collection.versions() == ["000001", "000002"]
    promote(collection, "000002")
    assert (index(collection).after, collection.read_version("000003").ntotal) == ("000003", 21)


def test_the_model_that_was_gone_back_to_goes_on(collection: Collection) -> None:
    add_run(collection, rows([*IDS, "new"], unit_vectors(21)))
    assert index(collection).after == "000003"
    assert collection.read_version("000003").model == MODEL
    # Whoever asks for the other one after that means it.
    add_run(collection, rows([*IDS, "new"], unit_vectors(21, dim=4)), model=OTHER)
    assert index(collection).after == "000004"
    assert collection.read_version("000004").model == OTHER


@pytest.mark.parametrize("damaged", ["CURRENT", "index/000002/manifest.json"])
def test_the_budget_outlives_a_damaged_live_version(tmp_path: Path, damaged: str) -> None:
    budget = IndexSettings(target_recall=0.5, max_memory=2**30)
    collection = Collection.create_or_open(str(tmp_path))
    add_run(collection, rows(IDS, unit_vectors(20)))
    build_index(collection, budget)
    add_run(collection, rows(["new"], unit_vectors(1)))
    build_index(collection, budget)
    (tmp_path / damaged).write_text("damaged")
    add_run(collection, rows(["newer"], unit_vectors(1)))
    assert index(collection).after == "000003"
    assert collection.read_version("000003").settings == budget
