"""`likeness reembed` as its user meets it: what it prints, its exit codes, and what it does not load."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer

from index.build import build_index
from index.collection import Collection
from index.records import RunManifest
from jobs import cli
from tests.hand_made import MODEL, rows
from tests.reembed_nights import DEMO, Nights
from tests.small_collection import COLOURS, png

WITHOUT = ("torch", "transformers", "ray")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pictures and their collection, with the demo model."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "pictures").mkdir()
    for name, colour in COLOURS.items():
        (folder / "pictures" / name).write_bytes(png(colour))
    Nights(folder / "pictures", str(folder / "collection")).night(DEMO)
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pictures, where they were when they were embedded, with a copy of the collection as `collection`."""
    shutil.copytree(made / "collection", tmp_path / "collection")
    monkeypatch.chdir(tmp_path)
    return made / "pictures"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["likeness", "reembed", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.mark.parametrize("model", [[], ["--model", "demo"]])
def test_without_changes_neither_torch_nor_ray_is_loaded(here: Path, model: list[str]) -> None:
    command = ["likeness", "reembed", str(here), "collection", "--format", "json", *model]
    script = (
        "import atexit, sys; from jobs import cli; "
        f"atexit.register(lambda: print([name for name in {WITHOUT!r} if name in sys.modules], file=sys.stderr)); "
        f"sys.argv = {command!r}; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("[]")
    report = json.loads(done.stdout)
    assert (report["listed"], report["unchanged"], report["to_embed"], report["runs"]) == (3, 3, 0, [])


def test_a_dry_run_says_what_would_be_done(here: Path, run: Run) -> None:
    code, out, _ = run(here, "collection", "--dry-run")
    assert code == 0
    assert out.split()[:4] == ["listed", "3", "unchanged", "3"]
    assert out.rstrip().endswith("nothing was changed")
    assert len(Collection.open("collection").runs()) == 1


def test_the_report_is_written_to_a_file(here: Path, run: Run) -> None:
    code, out, _ = run(here, "collection", "--report", "outcome.json")
    assert code == 0
    assert "index 000001 stays live" in out
    report = json.loads(Path("outcome.json").read_text())
    assert (report["unchanged"], report["promoted"], report["recall"]) == (3, False, 1.0)
    assert {"list", "compare", "index"} <= set(report["seconds"])


def test_too_many_missing_exits_with_3(here: Path, run: Run, tmp_path: Path) -> None:
    collection = tmp_path / "two"
    pictures = tmp_path / "pictures"
    shutil.copytree(here, pictures)
    Nights(pictures, str(collection)).night(DEMO)
    (pictures / "red.png").unlink()
    code, _, err = run(pictures, collection)
    assert code == 3
    assert "1 of the 3 images" in err
    assert "say so with --max-missing 0.34" in err


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A source in a local S3 server, with one picture, and the credentials in its address."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "KEY")
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        client.create_bucket(Bucket="images")
        client.put_object(Bucket="images", Key="pics/a.png", Body=png((1, 2, 3)))
        yield "s3://KEY:s3cret@images/pics"
    finally:
        server.stop()


def test_credentials_in_addresses_are_neither_printed_nor_reported(bucket: str, run: Run, tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    start = collection.start_run("s3://images/pics", MODEL)
    file = collection.write_rows(start.run_id, "rows", rows(["a.png", "b.png"]))
    collection.commit_run(RunManifest(**start.model_dump(), finished_at=start.started_at, files=[file]))
    build_index(collection)
    code, out, err = run(bucket, tmp_path / "collection")
    assert (code, "1 of the 2 images of s3://images/pics are not listed any more" in err) == (3, True)
    assert "s3cret" not in out + err
    code, out, err = run(bucket, tmp_path / "collection", "--missing", "keep", "--dry-run", "--format", "json")
    assert (code, json.loads(out)["source"]) == (0, "s3://images/pics")
    assert "s3cret" not in out + err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere", "collection"), "nowhere does not exist"),
        ((".", "no-collection"), "no-collection does not exist: make a collection"),
        ((".", "collection", "--model", "./no-model"), "there is no folder"),
        ((".", "collection", "--actors", "none"), "expected a number or LEAST:MOST"),
    ],
)
def test_a_mistake_exits_with_2(here: Path, run: Run, tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    (tmp_path / "a.png").write_bytes(png((1, 2, 3)))
    code, _, err = run(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert told in err
