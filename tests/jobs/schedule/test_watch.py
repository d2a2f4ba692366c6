"""Watching a source: what becomes searchable, of half-written files, and after rounds that fail."""

import errno
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import Console

from embedder.models.load import load_embedder
from index.collection import Collection, writing
from index.search import Searcher
from jobs.errors import SourceError
from jobs.exclusions import Exclusions
from jobs.schedule.run_job import run_job
from jobs.schedule.spec_file import SpecFile
from jobs.schedule.watch import SETTLE_S, FolderChanges, Watch
from jobs.spec import JobSpec, Resources
from jobs.update import Update
from tests.support.collections.rejects_and_checks import list_rejects
from tests.support.collections.s3_server import Bucket
from tests.support.collections.storage_steps import STEPS, at, is_step
from tests.support.command_line import Run
from tests.support.nights.reembed_nights import (
    BROKEN,
    DEMO,
    Nights,
    assert_rows_match_files,
    assert_search_is_exact,
    bmp,
    bmps,
    copy_nights,
    save_nights,
)

INTERVAL_S = 30.0
Step = Callable[[], object]

load_once = cache(load_embedder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_nights(tmp_path_factory.mktemp("nights"), bmps(*range(6)))


@pytest.fixture
def nights(saved: Path) -> Nights:
    """Six pictures, and a collection of them."""
    return copy_nights(saved)


@pytest.fixture
def no_collection(nights: Nights) -> None:
    shutil.rmtree(nights.location)


def save(nights: Nights, name: str, data: bytes, *, seconds_ago: float = 60) -> None:
    """A file that was last written so long ago."""
    path = nights.pictures / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    at = path.stat().st_mtime - seconds_ago
    os.utime(path, (at, at))


def job_of(nights: Nights, **fields: object) -> dict[str, Any]:
    resources = {"device": "cpu", "on": "local"}
    places = {"source": str(nights.pictures), "collection": nights.location}
    return {**places, "model": DEMO, "resources": resources, "max_reject_rate": 1.0, **fields}


def write_job(nights: Nights, **fields: object) -> Path:
    """A job's file; JSON is YAML."""
    path = nights.pictures.with_name("job.yaml")
    path.write_text(json.dumps(job_of(nights, **fields)))
    return path


def watch(
    nights: Nights, *steps: Step, file: SpecFile | None = None, **fields: object
) -> tuple[list[str], list[float]]:
    """What is said, and how long each wait and pause would be. After each round comes a step; the last is Ctrl-C."""
    said, waits, left = list[str](), list[float](), iter(steps)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    def pause(seconds: float) -> None:
        if seconds >= 2 and said and "retrying" in said[-1]:
            wait(seconds)

    spec = file.spec if file else JobSpec.model_validate(job_of(nights, **fields))
    settle_s = 0.0 if "://" in spec.source else SETTLE_S
    update = Update(spec=spec, console=Console(quiet=True), command="watch", settle_s=settle_s)
    with (
        patch("jobs.embedding.model_source.load_embedder", load_once),
        pytest.raises(KeyboardInterrupt),
    ):
        Watch(job=update, say=said.append, interval_s=INTERVAL_S, wait=wait, pause=pause, file=file).run()
    return said, waits


def assert_up_to_date(nights: Nights) -> None:
    assert_rows_match_files(nights)
    assert_search_is_exact(nights.collection)
    nights.collection.check_lease()


@pytest.mark.usefixtures("no_collection")
def test_rounds_follow_the_source_and_load_the_model_once(nights: Nights) -> None:
    models = iter([load_once(DEMO, device="cpu")])

    def add() -> None:
        for seed in range(10, 13):
            save(nights, f"{seed}.bmp", bmp(seed))

    def change() -> None:
        save(nights, "1.bmp", bmp(21), seconds_ago=30)
        shutil.move(nights.pictures / "2.bmp", nights.pictures / "moved.bmp")
        (nights.pictures / "3.bmp").unlink()
        save(nights, "broken.jpg", BROKEN)

    with patch(f"{__name__}.load_once", lambda *_, **__: next(models)):
        said, waits = watch(nights, add, lambda: None, change)
    shown = [line.partition(" after ")[0] for line in said]
    assert shown[1:] == [
        f"waiting for changes in {nights.pictures}",
        "3 new: searchable",
        "2 new, 1 changed, 1 moved, 1 deleted: searchable",
    ]
    assert said[-1].endswith(", but 1 cannot be used: `likeness rejects` says why")
    assert waits == [INTERVAL_S] * 4
    assert_up_to_date(nights)


@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.long)])
@pytest.mark.parametrize("first", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "step",
    [step if step in ("rows", "segment", "CURRENT") else pytest.param(step, marks=pytest.mark.long) for step in STEPS],
)
def test_an_error_of_the_disk_does_not_end_it(nights: Nights, step: str, first: bool, code: int) -> None:
    """One error when a file of a step is written, in the first round of a new collection or in a second round."""
    if first:
        shutil.rmtree(nights.location)
    failed = list[str]()

    def fail() -> None:
        failed.append(step)
        raise OSError(code, os.strerror(code))

    def change() -> None:
        save(nights, "10.bmp", bmp(10))
        (nights.pictures / "1.bmp").unlink()
        faults.enter_context(at(is_step(step), after=False, action=fail))

    with ExitStack() as faults:
        if first:
            faults.enter_context(at(is_step(step), after=False, action=fail))
        said, _ = watch(nights, *([] if first else [change]), lambda: None)
    assert failed == [step]
    [trouble] = [line for line in said if os.strerror(code) in line]
    assert trouble.endswith(
        f"{': free some space there' if code == errno.ENOSPC else ''}; retrying, at most a minute apart"
    )
    assert_up_to_date(nights)


def test_a_file_is_embedded_once_it_no_longer_changes(nights: Nights) -> None:
    """A new one waits, one that is being replaced keeps its row, and one that paused too long is made good."""

    def begin() -> None:
        save(nights, "paused.bmp", bmp(32)[:80])
        save(nights, "new.bmp", bmp(30)[:80], seconds_ago=0)
        save(nights, "1.bmp", bmp(31)[:80], seconds_ago=0)

    def check_and_end() -> None:
        rows = {row["image_id"]: row for row in nights.collection.live_rows().to_pylist()}
        assert "new.bmp" not in rows
        assert [each["image_id"] for each in list_rejects(nights.collection)] == ["paused.bmp"]
        save(nights, "paused.bmp", bmp(32), seconds_ago=30)
        assert rows["1.bmp"]["embedding"] is not None
        save(nights, "new.bmp", bmp(30))
        save(nights, "1.bmp", bmp(31))

    said, waits = watch(nights, begin, check_and_end)
    assert waits == [INTERVAL_S, SETTLE_S, INTERVAL_S]
    assert said[-1].startswith("1 new, 2 changed: searchable")
    assert_up_to_date(nights)


@pytest.mark.usefixtures("no_collection")
def test_a_tar_that_is_being_replaced_keeps_its_images(nights: Nights) -> None:
    for name, seeds in {"a.tar": range(10), "b.tar": range(10, 12)}.items():
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            for seed in seeds:
                member = tarfile.TarInfo(f"{seed}.bmp")
                member.size = len(bmp(seed))
                tar.addfile(member, io.BytesIO(bmp(seed)))
        save(nights, f"tars/{name}", data.getvalue())
    unreadable, short, shifted = (data.getvalue()[part] for part in (slice(700), slice(1024), slice(1024, None)))
    steps = [partial(save, nights, "tars/b.tar", part, seconds_ago=0) for part in (unreadable, short, shifted)]
    _, waits = watch(nights, *steps, source=str(nights.pictures / "tars"))
    assert waits == [INTERVAL_S, *[SETTLE_S] * 3]
    assert (len(nights.collection.runs()), nights.collection.live_rows().num_rows) == (1, 12)


def test_it_waits_while_another_job_writes_and_holds_no_lease_meanwhile(nights: Nights) -> None:
    job = writing(nights.collection, "reembed")

    def begin() -> None:
        job.__enter__()
        save(nights, "new.bmp", bmp(30))

    said, waits = watch(nights, begin, lambda: None, lambda: job.__exit__(None, None, None))
    assert waits == [INTERVAL_S, 2.0, 4.0, INTERVAL_S]
    assert "is being written by `likeness reembed`" in said[-2]
    assert said[-1].startswith("1 new: searchable")
    assert_up_to_date(nights)


def test_a_round_that_fails_is_tried_again(nights: Nights) -> None:
    away = nights.pictures.with_name("away")

    def unmount() -> None:
        nights.pictures.rename(away)

    def spoil() -> None:
        away.rename(nights.pictures)
        save(nights, "broken.jpg", BROKEN)

    def mend() -> None:
        save(nights, "broken.jpg", bmp(30))

    said, waits = watch(nights, unmount, *[lambda: None] * 5, spoil, mend, max_reject_rate=0)
    assert waits == [INTERVAL_S, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, INTERVAL_S]
    assert [line.partition(" ")[2][:15] for line in said[1:3]] == ["does not exist ", "of 7 images wer"]
    assert_up_to_date(nights)


def test_a_collection_that_is_away_is_waited_for(nights: Nights) -> None:
    folder, away = Path(nights.location), Path(f"{nights.location}-away")

    def move() -> None:
        folder.rename(away)
        save(nights, "new.bmp", bmp(30))

    def unmount() -> None:
        folder.rename(away)
        folder.mkdir()
        save(nights, "newer.bmp", bmp(31))

    def mount() -> None:
        assert [*folder.parent.glob(f"{folder.name}/*")] == []
        away.rename(folder)

    said, _ = watch(nights, move, lambda: None, mount, unmount, lambda: None, mount)
    missing, first, empty, second = said[1:]
    assert ("retrying" in missing, "retrying" in empty) == (True, True)
    assert missing.startswith(f"{folder} does not exist: ")
    assert empty.startswith(f"{folder} is not a collection: ")
    assert first.startswith("1 new: searchable")
    assert second.startswith("1 new: searchable")
    assert_up_to_date(nights)


def test_new_pictures_are_found_while_too_many_are_gone(nights: Nights) -> None:
    def replace() -> None:
        for seed in range(3):
            (nights.pictures / f"{seed}.bmp").unlink()
        save(nights, "new.bmp", bmp(30))

    said, _ = watch(nights, replace, lambda: None)
    assert said[-2].startswith("1 new: searchable")
    assert f"searches still find 3 images gone from {nights.pictures}: too many to remove" in said[-1]
    assert Searcher.open(nights.collection).ntotal == 7


@pytest.mark.usefixtures("no_collection")
def test_the_source_may_be_empty_or_without_a_usable_picture_at_first(nights: Nights) -> None:
    for path in nights.pictures.iterdir():
        path.unlink()
    models = iter([load_once(DEMO, device="cpu")])  # one, for the texts that the first index is measured with as well
    with patch(f"{__name__}.load_once", lambda *_, **__: next(models)):
        said, _ = watch(
            nights, lambda: save(nights, "0.jpg", BROKEN), lambda: save(nights, "first.bmp", bmp(1)), lambda: None
        )
    assert ["retrying" in line for line in said[:3]] == [True, True, False]
    assert_up_to_date(nights)


@pytest.mark.usefixtures("no_collection")
def test_a_bucket_is_listed(nights: Nights, store: Bucket) -> None:
    store.put("pictures/1.bmp", bmp(1))
    watch(nights, lambda: store.put("pictures/2.bmp", bmp(2)), source=f"s3://{store.name}/pictures")
    assert set(nights.collection.live_rows()["image_id"].to_pylist()) == {"1.bmp", "2.bmp"}
    assert_search_is_exact(nights.collection)


@pytest.mark.usefixtures("no_collection")
def test_usage_errors_end_it_at_once(nights: Nights, run: Run) -> None:
    resources = Resources(device="cpu", on="local")
    spec = JobSpec(source=f"{nights.pictures}-", collection=nights.location, model=DEMO, resources=resources)
    update = Update(spec=spec, console=Console(), command="watch")
    with pytest.raises(SourceError, match="does not exist"):
        Watch(job=update, say=print, interval_s=INTERVAL_S, wait=print).run()
    assert not Path(nights.location).exists()
    Collection.create_or_open(nights.location)
    for option, message in {"0": "--every is 0: expected a duration", "soon": "--every is 'soon': expected"}.items():
        done = run("watch", nights.pictures, nights.location, "--every", option)
        assert (done.code, message in done.err) == (2, True)


def test_a_broken_picture_stops_no_others_unless_the_file_says_so(nights: Nights) -> None:
    job = job_of(nights)
    del job["max_reject_rate"]
    (path := nights.pictures.with_name("job.yaml")).write_text(json.dumps(job))

    def add(number: int) -> None:
        save(nights, f"good{number}.bmp", bmp(70 + number))
        save(nights, f"broken{number}.jpg", BROKEN)

    def limit_and_add() -> None:
        assert Searcher.open(nights.collection).row("good1.bmp") is not None
        write_job(nights, max_reject_rate=0.05)
        add(2)

    said, _ = watch(nights, lambda: add(1), limit_and_add, file=SpecFile(path))
    assert ["more than the 5.0% allowed" in line for line in said] == [*[False] * (len(said) - 1), True]
    assert Searcher.open(nights.collection).row("good2.bmp") is None


def test_changes_of_a_folder_and_of_the_job_are_noticed(tmp_path: Path) -> None:
    said = list[str]()
    folder = tmp_path / "pictures"
    folder.mkdir()
    file = SpecFile(tmp_path / "job.yaml", lambda: JobSpec(source="s", collection="c"))
    changes = FolderChanges(str(folder), said.append, Exclusions(["raw/"]), file)
    assert changes.wait(60)  # from now on: what is there already has to be listed
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "new.jpg").touch()
    for name in ("raw", "@eaDir"):
        (folder / name).mkdir()
        (folder / name / "new.jpg").touch()
    assert not changes.wait(0.2)
    (folder / "album").mkdir()
    assert changes.wait(60)
    (folder / "album" / "new.jpg").touch()
    assert changes.wait(60)
    folder.rename(tmp_path / "away")
    while not said:
        changes.wait(0.01)
    assert "cannot be watched" in said[0]
    folder.mkdir()
    assert changes.wait(60)
    assert not changes.wait(0.2)
    file.path.touch()
    assert changes.wait(60)


def test_saved_searches_deliver_what_a_round_finds(nights: Nights, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    search = {"image": str(nights.pictures / "3.bmp"), "min_score": 0.97}
    searches = [{"name": "threes", **search, "notify": {"command": f"cat >> {out}; echo >> {out}"}}]
    steps: list[Step] = [
        lambda: save(nights, "other.bmp", bmp(9)),
        lambda: save(nights, "again.bmp", bmp(3)),
        lambda: None,
    ]
    said, _ = watch(nights, *steps, searches=searches)
    [body] = map(json.loads, out.read_text().splitlines())
    assert [match["image_id"] for match in body["matches"]] == ["again.bmp"]
    assert [line for line in said if "threes" in line] == [
        "threes matches 1 of 6 images",
        "threes matches 1 of 1 image, 1 delivered",
    ]


def shapes(*labels: str) -> dict[str, Any]:
    """Words that `none_below` is measured with, so that every picture gets one of them."""
    return {"annotations": [{"name": "shape", "labels": list(labels), "none_below": 0}]}


def labels_of(nights: Nights) -> set[str]:
    """The labels that searches show."""
    return {str(label) for label in Searcher.open(nights.collection).facets().values["shape"]}


def run_other_job(nights: Nights, **fields: object) -> None:
    run_job(Update(spec=JobSpec.model_validate(job_of(nights, **fields)), console=Console(quiet=True)))


def test_an_edit_of_its_file_takes_effect_without_undoing_what_the_edited_job_did(nights: Nights) -> None:
    file = SpecFile(write_job(nights, **shapes("boat", "book")))

    def edit_and_run() -> None:
        assert labels_of(nights) <= {"boat", "book"}
        write_job(nights, **shapes("apple", "cake"))
        run_other_job(nights, **shapes("apple", "cake"))
        versions.append(nights.collection.current())

    def edit() -> None:
        versions.append(nights.collection.current())
        assert labels_of(nights) <= {"apple", "cake"}
        write_job(nights, **shapes("car"))

    versions = list[str | None]()
    said, _ = watch(nights, edit_and_run, edit, lambda: None, file=file)
    assert versions[0] == versions[1]
    assert labels_of(nights) == {"car"}
    changed = f"{file.path} has changed: going on with what it says now"
    after = said[said.index(changed) :]
    assert [line.partition(" after ")[0] for line in after] == [
        *(changed, changed),
        *("columns of shape made anew: searchable", "shape: 6 images annotated, 0 rejected"),
    ]


def test_a_file_that_cannot_be_used_is_said_once_and_the_job_stays_as_it_was(nights: Nights) -> None:
    file = SpecFile(path := write_job(nights, **shapes("boat")))
    edits: dict[str, dict[str, Any] | None] = {
        r"job.yaml, line 1, annotations.0.labels: expected ": {"annotations": [{"name": "shape", "labels": 7}]},
        r"job.yaml has another source, which a watch cannot change: restart it, or change ": {"source": "elsewhere"},
        r"job.yaml has another exclude, which a watch cannot change": {"exclude": ["raw/"]},
        r"job.yaml cannot be read \(.*No such file or directory": None,
    }
    seeds = count(10)

    def add() -> None:
        save(nights, f"{(seed := next(seeds))}.bmp", bmp(seed))

    def spoil(edit: dict[str, Any] | None) -> None:
        path.unlink() if edit is None else write_job(nights, **edit)
        add()

    def mend() -> None:
        assert labels_of(nights) == {"boat"}
        write_job(nights, **shapes("apple"))

    said, _ = watch(nights, *(partial(spoil, edit) for edit in edits.values()), add, mend, lambda: None, file=file)
    lines = [line for line in said if line.endswith("; going on with the job as it was before")]
    assert len(lines) == len(edits)
    for message, line in zip(edits, lines, strict=True):
        assert re.search(message, line), line
    rounds = [line.partition(":")[0] for line in said if ": searchable after" in line]
    assert rounds[-6:] == [*["1 new"] * 5, "columns of shape made anew"]
    assert (labels_of(nights), Searcher.open(nights.collection).ntotal) == ({"apple"}, 11)


def test_columns_that_another_job_has_made_since_are_left_alone_until_the_file_is_edited(nights: Nights) -> None:
    file = SpecFile(write_job(nights, **shapes("boat")))

    def take_over() -> None:
        assert labels_of(nights) == {"boat"}
        run_other_job(nights, **shapes("apple"))
        save(nights, "10.bmp", bmp(10))

    def check() -> None:
        found.append((Searcher.open(nights.collection).ntotal, nights.collection.current()))
        assert labels_of(nights) - {"None"} == {"apple"}

    def check_and_edit() -> None:
        check()
        write_job(nights, **shapes("boat"), max_missing=0.5)

    found = list[tuple[int, str | None]]()
    said, _ = watch(nights, take_over, check, check_and_edit, lambda: None, file=file)
    assert found[0] == found[1]
    assert found[0][0] == 7
    [warning] = [line for line in said if "another job" in line]
    assert warning.startswith("the annotation shape: another job has made other columns under the name shape since")
    assert "restart it or edit its file" in warning
    assert labels_of(nights) == {"boat"}


def test_a_predictor_that_changes_by_itself_is_no_other_job(nights: Nights) -> None:
    """Judged images are read again in each round."""
    judged = nights.pictures.with_name("judged.csv")

    def judge(*liked: int) -> None:
        names = {f"{seed}.bmp": "like" if seed in liked else "unlike" for seed in range(6)}
        judged.write_text("image_id,label\n" + "".join(f"{name},{label}\n" for name, label in names.items()))

    judge(0, 1, 2)
    annotations = [{"name": "nice", "examples": [str(judged)]}]
    said, _ = watch(nights, lambda: judge(3, 4, 5), lambda: None, annotations=annotations)
    assert sum("nice: 6 images annotated" in line for line in said) == 2
