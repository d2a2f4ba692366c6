"""Nights of a collection whose runs are merged: nothing is lost, doubled or wrong, not even after a kill."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from index.collection.merged.sets import MergedRun
from index.versions.files import file_record
from index.versions.promotion import rollback
from index.versions.prune import prune
from jobs.embedding.report import Report
from likeness.cli.app import app
from tests.support.collections.s3_server import Bucket
from tests.support.collections.storage_steps import KilledError, at, expire, is_number, kill
from tests.support.nights.reembed_nights import (
    BROKEN,
    DEMO,
    Nights,
    assert_rows_match_files,
    assert_search_is_exact,
    bmp,
)

STEPS = {
    "facts": r"merged/[0-9]+/facts/.*",
    "runs": r"merged/[0-9]+/runs\.json",
    "commit": r"merged/manifest\.json",
}


def change(pictures: Path, night: int) -> None:
    """Add two pictures, edit one, move one, delete one, and have one come back that was deleted before."""
    (pictures / f"new-{night}.bmp").write_bytes(bmp(100 + night))
    (pictures / f"broken-{night}.bmp").write_bytes(BROKEN + bytes([night]))
    (pictures / "0.bmp").write_bytes(bmp(200 + night))
    (pictures / f"{night + 1}.bmp").rename(pictures / f"moved-{night}.bmp")
    if night > 1:
        (pictures / f"moved-{night - 2}.bmp").unlink()
        (pictures / f"{night - 1}.bmp").write_bytes(bmp(300 + night))


def run(nights: Nights, model: str | None = None, *, index: bool = True) -> Report:
    return nights.night(model, index=index, max_reject_rate=1.0, max_missing=1.0)


def merged_runs(nights: Nights) -> int:
    return sum(isinstance(run, MergedRun) for run in nights.collection.runs())


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """Six nights, of which the first four are merged, and the changes of the next, after which all seven will be."""
    folder = tmp_path_factory.mktemp("nights")
    nights = Nights(folder / "pictures", str(folder / "collection"))
    nights.pictures.mkdir()
    for number in range(12):
        (nights.pictures / f"{number}.bmp").write_bytes(bmp(number))
    for night in range(7):
        change(nights.pictures, night)
        if night < 6:
            run(nights, DEMO, index=night > 3)
    assert merged_runs(nights) == 4
    return nights


@pytest.fixture
def nights(before: Nights, tmp_path: Path) -> Nights:
    return copy_of(before, tmp_path / "collection")


def copy_of(nights: Nights, home: Path, bucket: Bucket | None = None) -> Nights:
    """A copy of the collection, of the same pictures: in a folder, or below the folder's name in a bucket."""
    if bucket is None:
        shutil.copytree(nights.location, home)
        return Nights(nights.pictures, str(home))
    for path in Path(nights.location).rglob("*"):
        if path.is_file():
            bucket.put(f"{home.name}/{path.relative_to(nights.location)}", path.read_bytes())
    return Nights(nights.pictures, bucket.address(home.name))


def assert_complete(nights: Nights) -> None:
    """The next night makes everything right, and the one after it finds nothing to do."""
    run(nights)
    assert_rows_match_files(nights)
    assert_search_is_exact(nights.collection)
    runs = nights.collection.runs()
    again = run(nights)
    assert (again.runs, again.promoted, nights.embedded[-1]) == ([], False, [])
    assert nights.collection.runs() == runs


@pytest.mark.parametrize(
    ("step", "after"),
    [("facts", True), pytest.param("runs", True, marks=pytest.mark.slow), ("commit", True)],
)
def test_a_night_that_is_killed_while_it_merges(nights: Nights, step: str, after: bool) -> None:
    """After a step is before the next one."""
    with (
        at(lambda path: re.fullmatch(STEPS[step], path) is not None, after=after, action=kill),
        pytest.raises(KilledError),
    ):
        run(nights)
    expire(nights.collection.storage)
    assert merged_runs(nights) == (7 if (step, after) == ("commit", True) else 4)
    assert_rows_match_files(nights)  # its run was committed before
    assert_search_is_exact(nights.collection)
    assert_complete(nights)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_night_that_is_killed_at_any_write(
    before: Nights, tmp_path: Path, request: pytest.FixtureRequest, where: str, after: bool
) -> None:
    bucket = request.getfixturevalue("bucket") if where == "bucket" else None
    kills = 0
    for number in itertools.count(1):
        nights = copy_of(before, tmp_path / str(number), bucket)
        try:
            with at(is_number(number), after=after, action=kill):
                run(nights)
            break
        except KilledError:
            kills += 1
        expire(nights.collection.storage)
        assert_search_is_exact(nights.collection)
        assert_complete(nights)
    assert kills >= 20


def test_versions_that_were_built_before_and_after_a_merge(nights: Nights, tmp_path: Path) -> None:
    version = str(nights.collection.current())
    for night in (7, 8):  # the index lags behind two merges
        run(nights, index=False)
        change(nights.pictures, night) if night == 8 else None
    assert nights.collection.current() == version
    assert_search_is_exact(nights.collection)
    assert_complete(nights)
    assert merged_runs(nights) >= 7
    assert rollback(nights.collection).manifest.version < str(max(nights.collection.versions()))
    assert_search_is_exact(nights.collection)
    prune(nights.collection, keep=1)
    assert_rows_match_files(nights)
    assert_search_is_exact(nights.collection)


def test_commands_agree_with_and_without_merging(nights: Nights, tmp_path: Path) -> None:
    def printed(home: Path) -> list[str]:
        """What some commands print, without times and the name of the collection's folder, and the exported files."""
        commands = [
            ["info", str(home), "--format", "json"],
            ["rejects", str(home), "--format", "json"],
            ["duplicates", str(home), "--kinds", "identical_bytes", "--format", "json"],
            ["annotate", str(home), "--name", "is", "--label", "a star", "--label", "a moon", "--device", "cpu"],
            ["export", str(home), str(home) + "-vectors"],
        ]
        outputs = []
        for command in commands:
            done = CliRunner().invoke(app, command)
            assert done.exit_code == 0, done.output
            text = done.stdout if "json" in command else done.stdout.splitlines()[-1]
            outputs.append(re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+", "", text.replace(str(home), "")))
        exported = sorted(path for path in Path(f"{home}-vectors").rglob("*") if path.is_file())
        return [*outputs, *(f"{path.name} {file_record(path).sha256}" for path in exported)]

    assert merged_runs(nights) == 4
    other = tmp_path / "unmerged"
    shutil.copytree(nights.location, other)
    shutil.rmtree(other / "merged")
    [info, *others] = printed(Path(nights.location))
    assert json.loads(info)["runs"] == 6
    assert others[-1].startswith("rows.parquet ")
    assert [info, *others] == printed(other)
