"""The command `select`: the columns that it writes, what it does with new images, and what it refuses."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.catalog.workspace import Workspace
from index.collection.records.index_settings import IndexSettings
from jobs.curation.select import Select
from jobs.curation.spec import SelectSpec
from jobs.duplicates.preference import PREFERRED_FIRST, preference
from tests.support.collections.hand_made import add_run, hashed, indexed, metadata_of, rows, unit_vectors
from tests.support.collections.storage_steps import KilledError, at, expire, is_number, kill

Run = Callable[..., Any]
COUNT = 60
IDS = [f"ä{number:02}.jpg" for number in range(COUNT)]
SINGLE = COUNT - 20
"""The other images are near-equal to one of the first twenty, and larger if their number is even."""


def table(first: int = 0, stop: int = COUNT, *, content: str = "a", size: int | None = None) -> pa.Table:
    vectors = unit_vectors(SINGLE)
    copies = vectors[:20] + 0.01 * unit_vectors(20, seed=9)
    vectors = np.concatenate([vectors, copies / np.linalg.norm(copies, axis=1, keepdims=True)])
    ids = IDS[first:stop]
    made = rows(ids, vectors[first:stop], metadata={"label": ["red" if n % 6 else "blue" for n in range(first, stop)]})
    sizes = [size or (200 if n >= SINGLE and n % 2 == 0 else 100) for n in range(first, stop)]
    made = made.append_column("width", pa.array(sizes, pa.int32())).append_column("height", pa.array(sizes, pa.int32()))
    nested = pa.array(['{"a": 1}'] * len(ids), pa.json_())
    doubtful = pa.array([(None, float("nan"), 1.0)[n % 3] for n in range(first, stop)])
    return hashed(made.append_column("nested", nested).append_column("doubtful", doubtful), content)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("template"), table(), settings=IndexSettings(segment_rows=35))


def column(collection: Collection, name: str) -> dict[str, Any]:
    return {image_id: row.get(name) for image_id, row in metadata_of(collection).items()}


def picks(collection: Collection, name: str = "pick") -> list[str]:
    ranks = column(collection, name)
    return sorted((image_id for image_id in ranks if ranks[image_id]), key=lambda image_id: ranks[image_id])


def test_one_of_each_group_of_near_equal_images_is_kept(collection: Collection, run: Run) -> None:
    out = run("select", collection.location, "--prune", "0.98", "--name", "keep").out
    assert "keep: 40 of 60 images kept, 20 pruned" in out
    kept, instead, scores = (column(collection, name) for name in ("keep", "keep_duplicate_of", "keep_score"))
    for number in range(20):
        first, second = IDS[number], IDS[SINGLE + number]
        best, other = (second, first) if number % 2 == 0 else (first, second)
        assert (kept[best], kept[other], instead[best], instead[other]) == (True, False, None, best)
        assert scores[other] > 0.98
        assert scores[best] is None
    version = collection.current()
    run("select", collection.location, "--prune", "0.98", "--name", "keep")
    assert collection.current() == version
    refused = run("select", collection.location, "-n", "5", "--name", "keep").err
    assert "--name keep has prune --prune 0.98, 60 images: choose another name" in refused


def test_pruning_again_looks_at_new_images_and_what_is_near_them(collection: Collection) -> None:
    looked_up = []

    def prune() -> dict[str, Any]:
        with writing(collection, "select") as leased:
            spec = SelectSpec(name="keep", prune=0.98)
            console = Console(quiet=True)
            Select(
                collection=leased, spec=spec, console=console, progress=lambda *done: looked_up.append(done[1])
            ).run()
        return column(collection, "keep_duplicate_of")

    assert prune()[IDS[1]] is None
    # A kept image leaves; and the copy of another that is kept becomes the larger one.
    add_run(collection, table(SINGLE + 1, SINGLE + 2, content="b", size=900), deletes=[IDS[SINGLE]])
    build_index(collection)
    looked_up.clear()
    instead, kept = prune(), column(collection, "keep")
    assert (instead[IDS[0]], kept[IDS[0]]) == (None, True)
    assert (instead[IDS[1]], kept[IDS[1]], kept[IDS[SINGLE + 1]]) == (IDS[SINGLE + 1], False, True)
    assert looked_up == [2]


def test_picks_are_ranked_exported_and_continued(collection: Collection, run: Run, tmp_path: Path) -> None:
    out = run("select", collection.location, "-n", "10", "--name", "pick").out
    assert "pick: 10 of 60 images picked, 10 of them now" in out
    first = picks(collection)
    ranks: list[int] = [rank for rank in column(collection, "pick").values() if rank is not None]
    assert sorted(ranks) == [*range(1, 11)]
    nearest = column(collection, "pick_nearest")
    assert all(nearest[image_id] == rank for rank, image_id in enumerate(first, 1))
    assert set(nearest.values()) == set(range(1, 11))
    run("export", collection.location, str(tmp_path / "out"), "--filter", '{"pick": {"$gt": 0}}')
    exported = pq.read_table(tmp_path / "out" / "rows.parquet")["image_id"].to_pylist()
    assert (set(exported), len(exported)) == (set(first), 10)
    run("select", collection.location, "-n", "10", "--name", "again")
    assert picks(collection, "again") == first
    facts, _ = json.loads(run("columns", collection.location, "--format", "json").out)
    assert [facts[key] for key in ("name", "predictor", "without", "indexed")] == ["again", "select -n 10", 0, True]
    add_run(collection, table(5, 8, content="b"), deletes=[first[2]])
    build_index(collection)
    out = run("select", collection.location, "-n", "15", "--name", "pick", "--continue").out
    left = [image_id for image_id in first if image_id != first[2] and image_id not in IDS[5:8]]
    assert f"15 of 59 images picked, {15 - len(left)} of them now" in out
    assert picks(collection)[: len(left)] == left
    assert len(picks(collection)) == 15
    run("select", collection.location, "-n", "4", "--name", "pick")
    assert len(picks(collection)) == 4


def test_picks_are_balanced_over_a_column_within_a_filter(collection: Collection, run: Run) -> None:
    where = json.dumps({"width": 100})
    run("select", collection.location, "-n", "12", "--name", "pick", "--balance", "label", "--filter", where)
    labels = column(collection, "label")
    assert [labels[image_id] for image_id in picks(collection)].count("blue") == 6
    widths = dict(zip(IDS, table()["width"].to_pylist(), strict=True))
    assert {widths[image_id] for image_id in picks(collection)} == {100}
    assert all((value is None) == (widths[name] == 200) for name, value in column(collection, "pick_score").items())
    run("select", collection.location, "-n", "20", "--name", "pick", "--typical", "2", "--diverse", "0")
    assert len(picks(collection)) == 20
    run("select", collection.location, "-n", "9", "--name", "pick", "--balance", "image_id")
    assert len(picks(collection)) == 9
    run("select", collection.location, "-n", "10", "--name", "pick", "--balance", "doubtful")  # NaN is no value
    assert [IDS.index(image_id) % 3 == 2 for image_id in picks(collection)].count(True) == 5


def test_one_image_and_no_index(run: Run, tmp_path: Path) -> None:
    single = Collection.create_or_open(str(tmp_path / "single"))
    add_run(single, table(0, 1))
    assert "build one with `likeness index`" in run("select", single.location, "-n", "1", "--name", "pick").err
    build_index(single)
    for weights in ([], ["--typical", "1"], ["--continue"]):
        assert run("select", single.location, "-n", "1", "--name", "pick", *weights).code == 0
        assert picks(single) == [IDS[0]]
    run("select", single.location, "--prune", "0.5", "--name", "pick")
    assert column(single, "pick") == {IDS[0]: True}


@pytest.mark.parametrize("number", [1, 4, 7, *(pytest.param(step, marks=pytest.mark.long) for step in (2, 3, 5, 6, 8))])
def test_a_killed_selection_has_all_values_or_none_and_is_made_by_the_next(
    collection: Collection, run: Run, number: int
) -> None:
    run("select", collection.location, "-n", "5", "--name", "pick")
    before = picks(collection)
    with suppress(KilledError), at(is_number(number), after=True, action=kill), writing(collection, "select") as leased:
        spec = SelectSpec(name="pick", n=9, continue_=True)
        Select(collection=leased, spec=spec, console=Console(quiet=True)).run()
    expire(collection.storage)
    build_index(collection)
    assert (len(picks(collection)) in (5, 9), picks(collection)[:5]) == (True, before)
    run("select", collection.location, "-n", "9", "--name", "pick", "--continue")
    assert (len(picks(collection)), picks(collection)[:5]) == (9, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one of -n and --prune"),
        (["-n", "5", "--prune", "0.9"], "expected one of -n and --prune"),
        (["--prune", "0.9", "--balance", "label"], "go with -n"),
        (["-n", "61"], "expected at most 60"),
        (["-n", "5", "--balance", "colour"], "--balance is 'colour': expected a column"),
        (["-n", "5", "--balance", "nested"], "height, format, label, doubtful"),
        (["-n", "5", "--diverse", "0"], "a weight above 0"),
        (["-n", "5", "--diverse", "1e38", "--typical", "1e38"], "a number of at most 1000000"),
        (["-n", "5", "--filter", '{"colour": 1}'], "colour"),
        (["-n", "5", "--filter", '{"label": "green"}'], "no image passes --filter"),
        (["-n", "5", "--name", "label"], "conflict with label"),
        (["-n", "5", "--name", "1a"], "beginning with a letter"),
        (["-n", "5", "--name", "score"], "expected a name other than"),
    ],
)
def test_what_cannot_be_selected_is_refused(
    collection: Collection, run: Run, arguments: list[str], message: str
) -> None:
    name = [] if "--name" in arguments else ["--name", "pick"]
    version = collection.current()
    failed = run("select", collection.location, *arguments, *name)
    assert failed.code == 2
    assert message in failed.err
    assert collection.current() == version


def test_sql_sorts_pictures_like_their_preference(collection: Collection) -> None:
    dates = [None, datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)]
    choices = product([None, 10, 20], [10, 20], [None, "png", "jpeg"], [None, 5, 6], dates)
    names = ("width", "height", "format", "size", "modified")
    facts: list[dict[str, Any]] = [dict(zip(names, values, strict=True)) for values in choices]
    facts = [facts[number] for number in np.random.default_rng(0).permutation(np.repeat(np.arange(len(facts)), 2))]
    facts = [{"image_id": f"{number:03}", **row} for number, row in enumerate(facts)]
    pictures = pa.Table.from_pylist(facts).append_column("number", pa.array(range(len(facts))))
    found = Workspace(collection.location).table(PREFERRED_FIRST, pictures=pictures)["number"].to_pylist()
    assert found == sorted(range(len(facts)), key=lambda number: preference(facts[number]))
