"""`likeness reembed`: what it prints, its exit codes, and what it does not load."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.common.waiting import eventually
from index.collection import Collection, writing
from jobs.schedule.history import last_entries
from tests.support.collections.hand_made import add_version, rows
from tests.support.collections.s3_server import Bucket
from tests.support.collections.small_collection import PLAIN, png
from tests.support.command_line import Run
from tests.support.listings import write_files
from tests.support.nights.quiet_night import make_job
from tests.support.nights.reembed_nights import DEMO, Nights
from tests.support.processes import python

SLOW_MODULES = ("torch", "transformers", "ray")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pictures and their collection, with the demo model."""
    folder = tmp_path_factory.mktemp("made")
    Nights(write_files(folder / "pictures", PLAIN), str(folder / "collection")).night(DEMO)
    return folder


@pytest.fixture
def source(embedded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the embedded pictures; a copy of the collection is `collection` in the current folder."""
    shutil.copytree(embedded / "collection", tmp_path / "collection")
    monkeypatch.chdir(tmp_path)
    return embedded / "pictures"


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers are those of pytest's process
    monkeypatch.setattr("jobs.schedule.run_job.WAIT_S", 0.0)
    return partial(run, "reembed")


def test_without_changes_neither_torch_nor_ray_is_loaded(source: Path) -> None:
    command = ["likeness", "reembed", str(source), "collection", "--report"]
    script = (
        "import sys; from contextlib import suppress; from likeness.cli import app\n"
        f"for more in (['one'], ['two', '--model', 'demo']):\n    sys.argv = {command!r} + more\n"
        "    with suppress(SystemExit):\n        app.main()\n"
        f"print([name for name in {SLOW_MODULES!r} if name in sys.modules])"
    )
    assert python("-c", script, folder=Path()).stdout.endswith("\n[]\n")
    for name in ("one", "two"):
        report = json.loads(Path(name).read_text())
        assert (report["listed"], report["unchanged"], report["to_embed"], report["runs"]) == (3, 3, 0, [])


def test_the_outcome_is_printed_and_written_to_a_file(source: Path, run: Run) -> None:
    code, out, _ = run(source, "collection", "--dry-run")
    assert code == 0
    assert out.split()[:4] == ["listed", "3", "unchanged", "3"]
    assert out.rstrip().endswith("nothing was changed")
    code, out, _ = run(source, "collection", "--report", "outcome.json")
    assert code == 0
    assert "index 000001 stays live" in out
    assert len(Collection.open("collection").runs()) == 1
    report = json.loads(Path("outcome.json").read_text())
    assert (report["unchanged"], report["runs"], report["promoted"], report["recall"]) == (3, [], False, 1.0)
    assert (report["index_before"], report["index_after"]) == ("000001", "000001")
    assert {"list", "compare", "index"} <= set(report["seconds"])


def test_files_of_other_kinds_are_reported(run: Run, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    for name in ("one.psd", "two.PSD", "raw.x3f", "notes.txt"):
        (tmp_path / "pictures" / name).write_bytes(b"no picture that is read")
    warning = "3 files of other kinds are left out: 2 .psd, 1 .x3f."
    left_out = {".psd": 2, ".x3f": 1, ".txt": 1}
    arguments = (tmp_path / "pictures", tmp_path / "collection", "--dry-run", "--report", tmp_path / "outcome.json")
    code, out, _ = run(*arguments)
    assert (code, warning in out) == (0, True)
    assert "left out\t4\n  .psd\t2\n" in out
    assert json.loads((tmp_path / "outcome.json").read_text())["left_out"] == left_out
    (tmp_path / "pictures" / "red.png").unlink()
    code, _, err = run("--spec", job, "--format", "json", "--report", tmp_path / "outcome.json")
    assert (code, warning in err) == (3, True)
    assert json.loads((tmp_path / "outcome.json").read_text())["left_out"] == left_out


def test_max_missing_overrides_the_file(run: Run, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    (tmp_path / "pictures" / "red.png").unlink()
    assert run("--spec", job)[0] == 3
    refused = run("--spec", job, "--missing", "keep", "pictures")
    assert (refused.code, "--missing, source cannot be combined with --spec" in refused.err) == (2, True)
    code, out, _ = run("--spec", job, "--max-missing", "0.34", "--format", "json")
    assert (code, json.loads(out)["deleted"]) == (0, 1)


@pytest.mark.parametrize("with_spec", [True, False])
def test_a_failed_run_replaces_the_earlier_report(run: Run, tmp_path: Path, with_spec: bool) -> None:
    job, report = make_job(tmp_path), tmp_path / "outcome.json"
    arguments = ("--spec", job) if with_spec else (tmp_path / "pictures", tmp_path / "collection")

    def outcome(expected: int) -> dict[str, Any]:
        code, _, err = run(*arguments, "--report", report)
        assert code == expected, err
        return dict(json.loads(report.read_text()))

    assert outcome(0)["outcome"] == "succeeded"
    with writing(Collection.open(str(tmp_path / "collection")), "compact"):
        busy = outcome(75)
    assert (busy["outcome"], "is being written by `likeness compact`" in busy["message"]) == ("busy", True)
    (tmp_path / "pictures" / "red.png").unlink()
    missing = outcome(3)
    assert (missing["outcome"], missing["listed"], missing["missing"], missing["unchanged"]) == ("failed", 2, 1, 2)
    assert missing["message"].startswith("1 of the 3 images")
    assert "list" in missing["seconds"]
    shutil.rmtree(tmp_path / "pictures")
    assert "does not exist" in outcome(2)["message"]


@pytest.mark.parametrize("with_spec", [True, False])
def test_the_place_of_the_report_is_checked_first(run: Run, tmp_path: Path, with_spec: bool) -> None:
    job = make_job(tmp_path)
    arguments = ("--spec", job) if with_spec else (tmp_path / "pictures", tmp_path / "collection")
    code, _, err = run(*arguments, "--report", tmp_path / "none" / "outcome.json")
    assert (code, f"there is no folder {tmp_path}/none" in " ".join(err.split())) == (2, True)
    assert last_entries(Collection.open(str(tmp_path / "collection")), 1) == []


def in_ray(pid: int) -> bool:
    """Whether a job's Ray runs an actor."""
    with suppress(psutil.Error):
        return any("EmbedImages" in " ".join(child.cmdline()) for child in psutil.Process(pid).children(recursive=True))
    return False


@pytest.mark.ray
@pytest.mark.parametrize(
    ("with_spec", "on"), [(True, "ray"), (False, "local"), pytest.param(False, "ray", marks=pytest.mark.long)]
)
def test_sigterm_while_embedding_exits_with_130(tmp_path: Path, with_spec: bool, on: str) -> None:
    """Ray's own handler of SIGTERM would end the job with 15."""
    pictures, collection = write_files(tmp_path / "pictures", PLAIN), tmp_path / "collection"
    Collection.create_or_open(str(collection))
    (tmp_path / "job.yaml").write_text(
        f"source: pictures\ncollection: collection\nmodel: demo\nresources: {{on: {on}}}\n"
    )
    arguments = [str(pictures), str(collection), "--model", "demo", "--on", on]
    if with_spec:
        arguments = ["--spec", str(tmp_path / "job.yaml")]
    command = [sys.executable, "-m", "likeness", "reembed", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:

        def loads_model() -> bool:
            """On Ray, in a separate worker."""
            return in_ray(job.pid) if on == "ray" else any(collection.glob("runs/*/started.json"))

        eventually(lambda: loads_model() or job.poll() is not None, "the model is being loaded", 200)
        assert job.poll() is None
        job.send_signal(signal.SIGTERM)
        printed, _ = job.communicate(timeout=100)
    assert job.returncode == 130, printed
    assert "what was embedded is kept: run the same command again to continue" in printed
    history = [run.outcome for run in last_entries(Collection.open(str(collection)), 5)]
    assert history == (["stopped"] if with_spec else [])


def index_two(location: str, source: str) -> None:
    """A collection of two images of a source, with an index."""
    collection = Collection.create_or_open(location)
    add_version(collection, rows(["a.png", "b.png"]), source=source)


def test_credentials_in_addresses_are_neither_printed_nor_reported(store: Bucket, run: Run, tmp_path: Path) -> None:
    store.put("pics/a.png", png((1, 2, 3)))
    source = f"s3://{store.name}/pics"
    index_two(f"s3://{store.name}/mine", source)
    with_key = f"s3://KEY:s3cret@{store.name}/mine"
    code, out, err = run(source, with_key)
    assert (code, f"1 of the 2 images of {source} are no longer there" in err) == (3, True)
    assert "s3cret" not in out + err
    code, out, err = run(source, with_key, "--missing", "keep", "--dry-run", "--format", "json")
    assert (code, json.loads(out)["source"]) == (0, source)
    assert "s3cret" not in out + err
    # Workers open each picture by its address, which would have to contain the credentials.
    code, out, err = run(f"s3://KEY:s3cret@{store.name}/pics", tmp_path / "collection")
    assert (code, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in " ".join(err.split())) == (2, True)
    assert "s3cret" not in out + err


def test_in_an_emptied_prefix_all_images_are_gone(store: Bucket, run: Run, tmp_path: Path) -> None:
    store.put("other.png", png((1, 2, 3)))
    source = f"s3://{store.name}/pics"
    index_two(str(tmp_path / "collection"), source)
    code, _, err = run(source, tmp_path / "collection")
    assert (code, f"2 of the 2 images of {source} are no longer there" in err) == (3, True)
    for unknown in (f"s3://{store.name}/pisc", source):
        there = tmp_path / ("new" if unknown == source else "collection")
        code, _, err = run(unknown, there, "--model", "demo")
        assert (code, f"{unknown} does not exist or is empty" in err) == (2, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "collection"), "nowhere does not exist"),
        ((".", "no-collection"), "no-collection does not exist: make a collection"),
        ((".", "collection", "--model", "./no-model"), "there is no folder"),
        ((".", "collection", "--actors", "none"), "expected a number or MIN:MAX"),
    ],
)
@pytest.mark.usefixtures("source")
def test_usage_errors_exit_with_2(run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "a.png").write_bytes(png((1, 2, 3)))
    code, _, err = run(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
