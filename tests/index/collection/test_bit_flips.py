"""Any damage to any file of a collection is refused with the file's name, or has no effect on answers. No error of
a library gets through. A case depends on its number only, so one that fails can be run again alone.
"""

import logging
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.merged.merge import merge_runs
from index.errors import CollectionError, RolledBackError
from index.search import Searcher
from index.versions.promotion import list_versions
from index.versions.prune import prune
from index.versions.servable import open_last_good
from jobs.schedule.history import last_entries, read_output
from likeness.cli.tables.collection import collection_facts, facts_table
from tests.support.collections.every_file import make_versions
from tests.support.collections.hand_made import add_run, rows, unit_vectors, written_rows
from tests.support.collections.rejects_and_checks import list_rejects

LIVE = "000004"

Answers = list[Any]
Damage = Callable[[bytes, random.Random], bytes]
T = TypeVar("T")


def answers(searcher: Searcher) -> Answers:
    found = searcher.search(unit_vectors(4, seed=9), 10)
    some = searcher.search(unit_vectors(2, seed=8), 5, filter={"label": "label 1"})
    looked_up = [searcher.row(image_id) for image_id in ("007", "003", "new-1", "new-2", "new-3", "bad")]
    return [searcher.ntotal, found, some, looked_up, searcher.vector("007").tolist(), searcher.percentile(0.5)]


def assert_same(searcher: Searcher, expected: Searcher) -> None:
    """Asserts that live rows and vectors are the same, except for rounding of vectors that were written again."""
    (rows, vectors), (expected_rows, expected_vectors) = map(contents, (searcher, expected))
    assert rows == expected_rows
    np.testing.assert_allclose(vectors, expected_vectors, atol=1e-6)


def contents(searcher: Searcher) -> tuple[list[dict[str, Any]], npt.NDArray[np.float32]]:
    segments = searcher.segments
    positions = segments.live_positions(np.arange(segments.live_count))
    positions = positions[np.argsort(segments.ids(positions))]
    return segments.rows(positions, segments.schema.names), segments.vectors(positions)


def row_values(collection: Collection) -> list[tuple[Any, ...]]:
    """What a build reads from runs."""
    batches = LiveRows.of_runs(collection.storage, collection.runs()).embedded()
    return [tuple(map(str, row.values())) for batch in batches for row in batch.to_pylist()]


class Untouched:
    """The collection without damage, and its answers. `files` will be damaged: all, or those of `merged` runs."""

    def __init__(self, folder: Path, *, merged: bool = False) -> None:
        self.root = folder / "made"
        self.work = folder / "work"
        collection = make_versions(self.root)
        if merged:
            merge_runs(collection)
        self.files = sorted(
            path.relative_to(self.root).as_posix()
            for path in (self.root / "merged" if merged else self.root).rglob("*")
            if path.is_file() and path.stat().st_size
        )
        self.answers = {name: answers(Searcher.open(collection, name)) for name in collection.versions()}
        self.searcher = Searcher.open(collection)
        self.rows = row_values(collection)

    def damaged(self, path: str, data: bytes) -> Collection:
        """A copy made of hard links in which one file has other content; writes to the copy replace links."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.root, self.work, copy_function=os.link)
        (self.work / path).unlink()
        (self.work / path).write_bytes(data)
        return Collection.open(str(self.work))


@pytest.fixture(scope="module", params=[False], ids=[""])
def untouched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Untouched:
    return Untouched(tmp_path_factory.mktemp("flips"), merged=request.param)


def flip(data: bytes, drawn: random.Random) -> bytes:
    bit = drawn.randrange(8 * len(data))
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def cut_short(data: bytes, drawn: random.Random) -> bytes:
    return data[: drawn.randrange(len(data))]


def zero_page(data: bytes, drawn: random.Random) -> bytes:
    size = drawn.choice([16, 512, 4096])
    start = drawn.randrange(len(data)) // size * size
    page = data[start : start + size]
    return data[:start] + bytes(len(page)) + data[start + len(page) :]


def unless_refused(path: str, act: Callable[[], T]) -> T | None:
    """What `act` returns; None if it is refused with the name of the damaged file."""
    try:
        return act()
    except RolledBackError:
        return None
    except CollectionError as error:
        message = str(error)
    assert path in message
    return None


def show_everything(collection: Collection) -> None:
    facts_table(collection_facts(collection))


def check(untouched: Untouched, number: int, caplog: pytest.LogCaptureFixture, damage: Damage) -> None:
    drawn = random.Random(number)
    path = drawn.choice(untouched.files)
    data = (untouched.root / path).read_bytes()
    collection = untouched.damaged(path, damage(data, drawn))
    for act in (show_everything, list_rejects, list_versions, lambda c: prune(c, 1, dry_run=True)):
        unless_refused(path, partial(act, collection))
    for run in last_entries(collection, 10):
        read_output(collection.storage, run.id)
    caplog.clear()
    if searcher := unless_refused(path, partial(open_last_good, collection, Searcher.open)):
        assert searcher.version == LIVE or path in caplog.text
        assert answers(searcher) == untouched.answers[searcher.version]
    read = unless_refused(path, partial(row_values, collection))
    assert read in (None, untouched.rows)
    unless_refused(path, partial(resume, collection))
    if number % 10 and path != "CURRENT":
        return  # a build takes far longer than all the rest, and what it reads from runs was compared
    if number % 20 == 0:  # the build is an update
        add_run(collection, rows(["new-3"], unit_vectors(2, seed=3)[:1]))
    if unless_refused(path, partial(build_index, collection, rebuild=path.startswith("runs/"))):
        searcher = Searcher.open(collection)
    assert searcher
    assert_same(searcher, untouched.searcher)


def resume(collection: Collection) -> None:
    """Reads what a job reads that continues a run."""
    for run in collection.snapshot().unfinished:
        written_rows(collection, run, collection.written_files(run)).read()


def check_all(untouched: Untouched, numbers: range, caplog: pytest.LogCaptureFixture, damage: Damage) -> None:
    caplog.set_level(logging.WARNING)
    for number in numbers:
        try:
            check(untouched, number, caplog, damage)
        except Exception as error:
            error.add_note(f"case {number}: {random.Random(number).choice(untouched.files)}")
            raise


LONG = [pytest.mark.long, pytest.mark.timeout(1800)]
FIVE_THOUSAND = [pytest.param(range(500 * part, 500 * (part + 1)), marks=LONG) for part in range(10)]


@pytest.mark.parametrize("numbers", [range(10), *FIVE_THOUSAND], ids=str)
def test_flipped_bits(untouched: Untouched, caplog: pytest.LogCaptureFixture, numbers: range) -> None:
    check_all(untouched, numbers, caplog, flip)


@pytest.mark.parametrize("untouched", [True], ids=["merged"], indirect=True)
@pytest.mark.parametrize("damage", [flip, cut_short, zero_page])
def test_damage_of_merged_runs(untouched: Untouched, caplog: pytest.LogCaptureFixture, damage: Damage) -> None:
    assert len(untouched.files) >= 5
    check_all(untouched, range(1, 5), caplog, damage)


@pytest.mark.parametrize("count", [3, pytest.param(300, marks=LONG)])
@pytest.mark.parametrize(
    "damage", [cut_short, zero_page, lambda data, drawn: b""], ids=["cut short", "zeroed", "empty"]
)
def test_lost_bytes(untouched: Untouched, caplog: pytest.LogCaptureFixture, damage: Damage, count: int) -> None:
    check_all(untouched, range(count), caplog, damage)
