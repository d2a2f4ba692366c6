"""The index at the end of re-embedding."""

from pathlib import Path

import pytest
from rich.console import Console

from index.build.build_index import build_index
from index.collection import Collection
from index.collection.records import IndexSettings
from jobs.indexing.up_to_date import IndexOutcome, bring_index_up_to_date
from tests.support.collections.hand_made import add_run, rows, unit_vectors

IDS = [f"{number:02d}" for number in range(20)]


def index(collection: Collection) -> IndexOutcome:
    return bring_index_up_to_date(collection, collection.runs(), {}, None, Console(quiet=True))


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
