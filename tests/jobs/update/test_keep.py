"""Images that a job's filter leaves out: which files are read, what is counted, and what another filter changes."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from index.collection import Collection
from index.search import Searcher
from jobs.errors import TooManyRejectsError, UsageError
from jobs.planning.content_hashes import content_hashes
from likeness.cli.options import console
from tests.support.collections.storage_steps import KilledError, expire, kill
from tests.support.command_line import Run
from tests.support.listings import write_files
from tests.support.nights.reembed_nights import BROKEN, DEMO, Nights
from tests.support.pictures.sample_images import encode

WIDE = {"width": {"$gte": 32}}
LARGE = {"size": {"$gte": 2000}}
VARIED = {"near_uniform": False}


def picture(width: int, height: int, form: str, *, plain: bool = False) -> bytes:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    return encode(Image.fromarray(np.full_like(pixels, 77) if plain else pixels), form)


PICTURES = {
    "broken.jpg": BROKEN,
    "noise.jpg": picture(64, 48, "JPEG"),
    "noise.png": picture(65, 48, "PNG"),
    "plain.png": picture(66, 48, "PNG", plain=True),
    "small.png": picture(8, 8, "PNG"),
}


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """Two wide pictures of noise, a plain one, a small one and a broken one; none are embedded yet."""
    Collection.create_or_open(str(tmp_path / "collection"))
    return Nights(write_files(tmp_path / "pictures", PICTURES), str(tmp_path / "collection"))


def night(nights: Nights, keep: dict[str, Any] | None, model: str = DEMO, **fields: Any) -> Any:
    return nights.night(model, keep=keep, **{"max_reject_rate": 1, "index": False, **fields})


def killed_night(nights: Nights, keep: dict[str, Any] | None, **fields: Any) -> None:
    """A night that is killed after its first block."""
    with pytest.raises(KilledError):
        night(nights, keep, before_block=kill, **fields)
    expire(nights.collection.storage)


def outcomes(nights: Nights) -> dict[str, str]:
    """The outcome of each image: embedded, or the reason why not."""
    rows = nights.collection.live_rows(["image_id", "embedding", "error_reason"]).to_pylist()
    assert all((row["embedding"] is None) == (row["error_reason"] is not None) for row in rows)
    return {str(row["image_id"]).removesuffix(".png"): row["error_reason"] or "embedded" for row in rows}


def embedded(nights: Nights) -> set[str]:
    """The ids of the embedded rows."""
    return {name for name, outcome in outcomes(nights).items() if outcome == "embedded"}


@pytest.mark.parametrize(
    ("keep", "kept", "unread"),
    [
        (
            {"label": None, "image_id": {"$prefix": "noise"}},
            {"noise.jpg", "noise"},
            {*PICTURES} - {"noise.jpg", "noise.png"},
        ),
        ({"format": "png", "height": 48}, {"noise", "plain"}, set()),
        (VARIED, {"noise.jpg", "noise", "small"}, set()),
        ({"width": {"$in": {np.int64(64), np.uint8(8)}}, "near_uniform": np.False_}, {"noise.jpg", "small"}, set()),
        ({**VARIED, **WIDE, **LARGE}, {"noise.jpg", "noise"}, {"plain.png", "small.png", "broken.jpg"}),
        ({"$and": [{"$not": {"format": "jpeg"}}, {"$or": [LARGE, VARIED]}]}, {"noise", "small"}, set()),
        ({"brightness": {"$lt": 0.4}}, {"plain"}, set()),
        (
            {"content_hash": {"$ne": hashlib.sha256(PICTURES["plain.png"]).hexdigest()}},
            {"noise.jpg", "noise", "small"},
            set(),
        ),
    ],
)
def test_images_are_left_out_as_early_as_possible(
    nights: Nights, keep: dict[str, Any], kept: set[str], unread: set[str]
) -> None:
    report = night(nights, keep)
    assert embedded(nights) == kept
    assert set(nights.embedded[-1]) == {*PICTURES} - unread
    filtered = [name for name, outcome in outcomes(nights).items() if outcome == "filtered"]
    broken = "broken.jpg" not in unread
    assert (report.embedded, report.filtered, report.rejected) == (len(kept), len(filtered), broken)
    assert report.counts.filtered == len(unread)
    assert len(kept) + len(filtered) + broken == len(PICTURES)


def test_a_second_night_reads_nothing_again(nights: Nights) -> None:
    small = hashlib.sha256(PICTURES["small.png"]).hexdigest()
    either = {"$or": [{"brightness": {"$gt": 0.9}}, {"format": "png"}]}
    keep = {"$and": [{"$not": {"content_hash": small}}, either, {**VARIED, **WIDE, "size": {"$gt": 9}}]}
    night(nights, keep)
    assert embedded(nights) == {"noise"}
    runs = nights.collection.runs()
    again = night(nights, keep)
    assert (again.counts.unchanged, again.filtered, nights.embedded[-1]) == (5, 0, [])
    assert nights.collection.runs() == runs


@pytest.mark.slow
def test_another_expression_reads_only_what_the_rows_cannot_decide(nights: Nights) -> None:
    def change(keep: dict[str, Any] | None, *, index: bool = False) -> tuple[set[str], set[str]]:
        """The images that are embedded, and those that were read."""
        night(nights, keep, index=index)
        runs, current = nights.collection.runs(), nights.collection.current()
        assert night(nights, keep, index=index).counts.unchanged == 5
        assert (nights.collection.runs(), nights.collection.current()) == (runs, current)
        assert not index or Searcher.open(nights.collection).ntotal == len(embedded(nights))
        return embedded(nights), set(nights.embedded[-2])

    everything = {"noise.jpg", "noise", "plain", "small"}
    assert change(None) == (everything, {*PICTURES})
    assert change(WIDE, index=True) == ({"noise.jpg", "noise", "plain"}, set())
    assert change({"width": {"$gte": 65}}) == ({"noise", "plain"}, set())
    assert change({"format": "jpeg"}) == ({"noise.jpg"}, set())
    assert change(None) == (everything, set())
    assert change(LARGE, index=True) == ({"noise.jpg", "noise"}, set())
    # Rows do not have measures.
    assert change(VARIED) == ({"noise.jpg", "noise", "small"}, {*PICTURES})
    assert change({**VARIED, **WIDE}) == ({"noise.jpg", "noise"}, {"noise.jpg", "noise.png", "plain.png"})
    assert change(VARIED) == ({"noise.jpg", "noise", "small"}, {"plain.png"})
    assert change(None) == (everything, set())


@pytest.mark.slow
def test_a_list_is_filtered_by_its_own_columns_and_without_sizes(nights: Nights) -> None:
    lines = nights.pictures.with_name("list.csv")

    def change(sharpness: str, keep: dict[str, Any] | None) -> tuple[list[str], set[str]]:
        rows = [
            f"{name},{nights.pictures / name},{name[0]},{sharpness}" for name in sorted({*PICTURES} - {"broken.jpg"})
        ]
        lines.write_text("\n".join(["id,uri,kind,sharpness", *rows]))
        night(nights, keep, source=lines)
        assert night(nights, keep, source=lines).counts.unchanged == 4
        return sorted(embedded(nights)), set(nights.embedded[-2])

    # The column of the list hides the measure of this name, so no file is read for it.
    first = {"sharpness": {"$lt": 1}, "kind": {"$in": ["n", "s"]}}
    assert change("0", first) == (["noise", "noise.jpg", "small"], {"noise.jpg", "noise.png", "small.png"})
    assert change("1", {**LARGE, "sharpness": 1}) == (["noise", "noise.jpg"], {"plain.png"})
    assert change("1", {"kind": "s"}) == (["small"], set())
    # If metadata changed, the rows cannot decide a condition that mixes it with measures of the pixels.
    mixed = {"$or": [{"kind": "p"}, {"contrast": {"$gt": 0.1}, "sharpness": 1}]}
    assert change("1", mixed)[0] == ["noise", "noise.jpg", "plain", "small"]
    assert change("2", mixed) == (["plain"], {"noise.jpg", "noise.png", "plain.png", "small.png"})


@pytest.mark.slow
def test_a_broken_picture_of_a_list_is_left_out_by_its_size(nights: Nights) -> None:
    """As in a folder, where the size is known without reading. So the next night finds no change."""
    lines = nights.pictures.with_name("list.csv")
    lines.write_text("\n".join(["id,uri", *(f"{name},{nights.pictures / name}" for name in sorted(PICTURES))]))
    nights.block = 2
    killed_night(nights, None, source=lines)
    for counted in (0, 5):
        assert night(nights, LARGE, source=lines, max_reject_rate=0).counts.unchanged == counted
        assert outcomes(nights)["broken.jpg"] == "filtered"
    night(nights, None, source=lines)
    assert outcomes(nights)["broken.jpg"] == "not_an_image"
    night(nights, LARGE, source=lines)
    assert outcomes(nights)["broken.jpg"] == "filtered"


def test_a_picture_that_changes_is_judged_again(nights: Nights) -> None:
    night(nights, WIDE)
    (nights.pictures / "small.png").write_bytes(picture(67, 48, "PNG"))
    (nights.pictures / "noise.png").write_bytes(picture(9, 8, "PNG"))
    (nights.pictures / "plain.png").unlink()
    night(nights, WIDE, max_missing=1)
    left_out = {"broken.jpg": "not_an_image", "noise": "filtered"}
    assert outcomes(nights) == {**left_out, "noise.jpg": "embedded", "small": "embedded"}
    assert embedded(nights) == {"noise.jpg", "small"}
    assert sorted(nights.embedded[-1]) == ["noise.png", "small.png"]


def test_verify_hash_reads_no_image_left_out_unread(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    night(nights, {**LARGE, **WIDE})
    read = list[str]()

    def hashes(uris: list[str]) -> pa.Array[Any]:
        read.extend(uris)
        return content_hashes(uris)

    monkeypatch.setattr("jobs.planning.decide.content_hashes", hashes)
    assert night(nights, {**LARGE, **WIDE}, verify_hash=True).counts.unchanged == 5
    assert sorted(Path(uri).name for uri in read) == ["noise.jpg", "noise.png"]


def test_a_killed_job_is_resumed(nights: Nights) -> None:
    nights.block = 2
    killed_night(nights, VARIED)
    report = night(nights, VARIED)
    assert (report.counts.resumed, sorted(nights.embedded[-1])) == (2, ["noise.png", "plain.png", "small.png"])
    assert embedded(nights) == {"noise.jpg", "noise", "small"}


def test_images_left_out_are_not_rejects(nights: Nights) -> None:
    with pytest.raises(TooManyRejectsError, match=r"1 of 4 images were rejected \(25.0%; mostly not_an_image: 1\)"):
        night(nights, WIDE, max_reject_rate=0.24)
    report = night(nights, WIDE, max_reject_rate=0.25)
    assert (report.embedding[0].reject_reasons, report.embedding[0].filtered_in_all) == ({"not_an_image": 1}, 1)
    [run] = nights.collection.runs()
    assert (run.keep, run.counts["filtered"], run.counts["rejected"]) == (json.dumps(WIDE), 1, 1)


def test_a_filter_that_keeps_nothing_is_refused(nights: Nights) -> None:
    night(nights, None)
    runs = nights.collection.runs()
    for keep in ({"size": 1}, {"width": {"$gt": 10**6}}, {"brightness": {"$gt": 0.99}}):
        with pytest.raises(UsageError, match=r"--keep keeps none of the 5 images of .*pictures, .*got \{.*"):
            night(nights, keep)
    assert nights.collection.runs() == runs


def test_filtered_images_are_reported_apart_from_rejects(
    nights: Nights, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "width", 500)
    options = ["--keep", json.dumps({**LARGE, **WIDE}), "--max-reject-rate", "0"]
    nights.embed(None, DEMO, *options)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed[5:8] == [["embedded", "2"], ["filtered", "3"], ["rejected", "0"]]
    facts = json.loads(run("info", nights.location, "--format", "json").out)
    assert (facts["embedded"], facts["filtered"], facts["rejected"]) == (2, 3, 0)
    assert run("rejects", nights.location).out.strip() == "no rejects"
    rows = json.loads(run("rejects", nights.location, "--reason", "filtered", "--format", "json").out)
    assert [row["image_id"] for row in rows] == ["broken.jpg", "plain.png", "small.png"]
    assert rows[0]["error_message"] == '--keep leaves it out: {"size": {"$gte": 2000}}'
    # A job's file can have the expression too.
    job = tmp_path / "job.yaml"
    keep = "{width: {$gte: 32}, size: {$gte: 2000}}"
    job.write_text(f"source: {nights.pictures}\ncollection: {nights.location}\nkeep: {keep}\n")
    code, out, _ = run("reembed", "--spec", job, "--format", "json")
    report = json.loads(out)
    assert (code, report["unchanged"], report["to_embed"], report["filtered"], report["runs"]) == (0, 5, 0, 0, [])
    job.write_text(job.read_text().replace(keep, '\'{"width": {"$gte": 65}}\''))
    code, out, _ = run("reembed", "--spec", job, "--dry-run", "--format", "json")
    assert (code, json.loads(out)["filtered"], json.loads(out)["to_embed"]) == (0, 1, 3)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("nonsense", '--keep is \'nonsense\': expected a JSON object such as {"width": {"$gte": 640}}'),
        ('["width"]', "--keep is '[\"width\"]': expected a JSON object"),
        ('{"widht": 1}', "--keep: unknown column 'widht'; columns that can be filtered: image_id (string), "),
        ('{"width": "wide"}', "--keep: column 'width' (int32): $eq takes a number, got 'wide'; columns"),
        ('{"near_uniform": {"$in": [1]}}', "--keep: column 'near_uniform' (bool): $in takes true or false, got 1;"),
        ('{"size": {"$above": 3}}', "--keep: unknown operator '$above'; on a column: $eq, "),
    ],
)
def test_an_invalid_expression_is_refused_before_anything_is_created(
    nights: Nights, run: Run, tmp_path: Path, keep: str, message: str
) -> None:
    new = tmp_path / "new"
    code, _, err = run("embed", nights.pictures, new, "--model", "demo", "--keep", keep)
    assert (code, message in err, new.exists()) == (2, True, False), err
