"""Computed columns: what is written, what replaces what, and what stays after a kill."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.annotations import annotation_log
from index.collection.merged.sets import MergedRun
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from index.versions.promotion import promote, rollback
from jobs.annotation.computed import ComputedColumns
from jobs.annotation.publish import drop, publish
from jobs.errors import UsageError
from tests.support.collections.hand_made import add_run, hashed, indexed, metadata_of, rows, unit_vectors

IDS = [f"é{number}.jpg" for number in range(30)]


def table(ids: Sequence[str], *, content: str = "a") -> pa.Table:
    made = rows(ids, unit_vectors(len(ids)), metadata={"year": [2000] * len(ids)})
    return hashed(made, content)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("template"), table(IDS), settings=IndexSettings(segment_rows=20))


def put(
    collection: Collection, values: Mapping[str, Any], *, name: str = "pick", by: str = "test", kind: Any = None
) -> int:
    with writing(collection, "test") as leased:
        columns = ComputedColumns.open(leased, name, "test")
        found = columns.segments.positions(pa.array(values.keys(), pa.string()))
        order = np.argsort(found)
        given = pa.table({name: pa.array(values.values(), kind or pa.int64())}).take(order)
        changed = columns.put(by, found[order], given)
        publish(leased, Console(quiet=True))
        return changed


def picks(collection: Collection, name: str = "pick") -> dict[str, Any]:
    found = {image_id: row.get(name) for image_id, row in metadata_of(collection).items()}
    return {image_id: value for image_id, value in found.items() if value is not None}


def written(collection: Collection, name: str = "pick") -> list[int]:
    """The rows of each run."""
    log = annotation_log(collection, name)
    return [sum(file.rows for file in log.files_of(run)) for run in log.runs()]


def test_only_values_that_differ_are_written(collection: Collection) -> None:
    first = {IDS[0]: 1, IDS[5]: 2, IDS[9]: 3, IDS[10]: None}
    assert put(collection, first) == 3
    assert picks(collection) == {IDS[0]: 1, IDS[5]: 2, IDS[9]: 3}
    version = collection.current()
    assert put(collection, first) == 0
    assert (collection.current(), written(collection)) == (version, [3])
    assert put(collection, {IDS[5]: 2, IDS[9]: 1, IDS[7]: 4}, by="test with other settings") == 3
    assert picks(collection) == {IDS[5]: 2, IDS[9]: 1, IDS[7]: 4}
    assert written(collection) == [3, 2]
    assert put(collection, {}) == 3
    assert picks(collection) == {}
    assert put(collection, {IDS[5]: 2}) == 1
    assert picks(collection) == {IDS[5]: 2}


@pytest.mark.parametrize("remedy", ["drop", "promote"])
def test_columns_that_were_rolled_back_are_not_continued(collection: Collection, remedy: str) -> None:
    """The version has the values of one run, the log those of the next: what differs from one says nothing of both."""
    put(collection, {IDS[0]: 1, IDS[1]: 2})
    put(collection, {IDS[0]: 1, IDS[1]: 2, IDS[2]: 3})
    newest = str(collection.current())
    with writing(collection, "rollback") as leased:
        rollback(leased)
    assert picks(collection) == {IDS[0]: 1, IDS[1]: 2}
    with pytest.raises(
        UsageError, match=rf"columns of pick were rolled back, .*`likeness promote .* {newest}`, .* --drop pick`"
    ):
        put(collection, {IDS[0]: 1, IDS[1]: 2})
    assert picks(collection) == {IDS[0]: 1, IDS[1]: 2}
    with writing(collection, remedy) as leased:
        if remedy == "drop":
            drop(leased, "pick", Console(quiet=True))
        else:
            promote(leased, newest)
    put(collection, {IDS[0]: 1, IDS[1]: 2})
    assert picks(collection) == {IDS[0]: 1, IDS[1]: 2}


def test_columns_of_another_type_replace_all_values(collection: Collection) -> None:
    put(collection, {IDS[0]: 1, IDS[1]: 2, IDS[2]: 3})
    put(collection, {IDS[0]: True, IDS[4]: False}, kind=pa.bool_())
    assert picks(collection) == {IDS[0]: True, IDS[4]: False}
    put(collection, {IDS[1]: 2, IDS[2]: 4})
    assert picks(collection) == {IDS[1]: 2, IDS[2]: 4}


def test_changed_and_new_images_have_no_value_until_they_are_computed(collection: Collection) -> None:
    put(collection, {IDS[0]: 1, IDS[1]: 2, IDS[2]: 3})
    add_run(collection, table([IDS[0], "new.jpg"], content="b"), deletes=[IDS[1]])
    # Values of images as indexed hold for these only, not for what was embedded since.
    assert put(collection, {IDS[0]: 7, IDS[2]: 3}) == 2
    build_index(collection)
    assert picks(collection) == {IDS[2]: 3}
    assert put(collection, {IDS[0]: 7, "new.jpg": 8, IDS[2]: 3}) == 2
    assert picks(collection) == {IDS[0]: 7, "new.jpg": 8, IDS[2]: 3}


def test_what_is_copied_from_the_last_version_is_what_all_runs_say(collection: Collection, tmp_path: Path) -> None:
    """After each of some random changes a build of all rows finds the same values and words."""
    rng = np.random.default_rng(1)  # which adds images when both columns are there

    def shown(collection: Collection) -> Any:
        found = Searcher.open(collection).answer(None, 100, words="red").matches
        return metadata_of(collection), sorted(match.image_id for match in found)

    for step in range(1, 9):
        ids = rng.permutation([*metadata_of(collection)])[: rng.integers(2, 9)].tolist()
        match int(rng.integers(5)):
            case 0:
                add_run(collection, table([*ids[1:], f"{step}.jpg"], content=str(step)), deletes=ids[:1])
                build_index(collection)
            case 1:
                put(collection, dict.fromkeys(ids, bool(rng.integers(2))), kind=pa.bool_())
            case 2:
                put(collection, dict.fromkeys(ids, step))
            case _:
                put(collection, dict.fromkeys(ids, f"{rng.choice(['red', 'blue'])} {step}"), name="n", kind=pa.string())
        if step % 4 == 0:
            copy = Collection.open(str(copytree(collection.location, tmp_path / str(step))))
            build_index(copy, rebuild=True)
            assert shown(collection) == shown(copy)


def test_many_runs_are_merged(collection: Collection) -> None:
    for number in range(4):
        put(collection, {IDS[number]: number, IDS[number + 1]: number})
    assert [isinstance(run, MergedRun) for run in annotation_log(collection, "pick").runs()] == [True] * 4
    assert picks(collection) == {IDS[3]: 3, IDS[4]: 3}
