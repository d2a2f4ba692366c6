"""`likeness annotate --ocr`: the lines of text in pictures, with boxes and confidences."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageDraw, ImageFont

from benchmarks.hostile.pictures import progressive_jpeg
from benchmarks.ocr.pictures import SCRIPTS, draw_words
from embedder.ocr import line_reader
from index.collection import Collection
from index.collection.annotations import annotation_log
from tests.support.collections.hand_made import add_files, metadata_of, written_rows
from tests.support.command_line import Run
from tests.support.pictures.sample_images import encode

_ANY_REJECTS = ("--max-reject-rate", 1)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second to start."""
    monkeypatch.setattr("embedder.images.decoder_pool.usable_cpus", lambda: 1)


def drawn(*lines: tuple[str, int, int], size: tuple[int, int] = (640, 400)) -> Image.Image:
    """A white picture with texts of 40 pixels, each at its place."""
    picture = Image.new("RGB", size, "white")
    for text, x, y in lines:
        ImageDraw.Draw(picture).text((x, y), text, fill="black", font=ImageFont.load_default(40))
    return picture


def ocr(run: Run, collection: Collection, *options: object) -> str:
    """Annotate `w`; returns what was printed."""
    done = run("annotate", collection.location, "--name", "w", "--ocr", *options)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_lines_are_read_with_their_boxes_and_again_only_of_changed_pictures(
    collection: Collection, run: Run, tmp_path: Path
) -> None:
    words = {f"{number}.jpg": draw_words(number) for number in range(len(SCRIPTS))}
    sign = drawn(("Harbour Street", 60, 40), ("Closed on Monday", 60, 240))
    turned = sign.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    files = {
        "sign.png": encode(sign, "png"),
        "turned.jpg": encode(turned, "jpeg", exif=exif),
        "large.png": encode(sign.resize((3200, 2000)), "png"),
        "blank.png": encode(drawn(), "png"),
        "tilted.png": encode(sign.rotate(-12, Image.Resampling.BICUBIC, fillcolor="white"), "png"),
    }
    add_files(collection, tmp_path, files | {name: picture.data for name, picture in words.items()})
    printed = ocr(run, collection)
    assert "10 of 10 images annotated" in printed
    assert "RapidOCR" not in printed
    found = metadata_of(collection)
    for name, picture in words.items():
        text = "".join(found[name]["w"].split())
        assert sum(word in text for word in picture.words) > 0.8 * len(picture.words), picture.script
    assert found["blank.png"] == {"w": "", "w_boxes": [], "w_confidences": []}
    for name in files.keys() - {"blank.png"}:
        assert found[name]["w"] == "Harbour Street\nClosed on Monday", name
        assert min(found[name]["w_confidences"]) > 0.9
    for name in ("sign.png", "turned.jpg", "large.png"):
        boxes = np.array(found[name]["w_boxes"])
        assert boxes == pytest.approx(np.array([[0.09, 0.11, 0.45, 0.12], [0.09, 0.61, 0.53, 0.12]]), abs=0.03), name
    with_words = metadata_of(collection, {"w": {"$ne": ""}, "w_confidences": {"$gt": 0.9}})
    assert with_words.keys() & files.keys() == files.keys() - {"blank.png"}
    assert metadata_of(collection, {"w": ""}).keys() == {"blank.png"}
    listed = run("columns", collection.location).out
    assert "ocr by PP-OCRv6" in listed
    assert run("info", collection.location).code == run("search", collection.location, "--like", "sign.png").code == 0
    add_files(collection, tmp_path, {"sign.png": encode(drawn(("Changed", 60, 40)), "png")})
    assert "1 of 10 images annotated, 9 were up to date" in ocr(run, collection)
    assert metadata_of(collection)["sign.png"]["w"] == "Changed"


@pytest.mark.skipif(sys.platform != "linux", reason="says which cores a process may use")
def test_a_process_that_reads_may_use_every_core() -> None:
    reader, picture = line_reader.LineReader(), encode(drawn(("Harbour Street", 60, 40)), "png")
    cores = set[frozenset[int]]()
    reader.read(picture)  # while it is loaded, OpenVINO binds the process to each core for a millisecond
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(reader.read, picture)
        while not reading.done():
            cores |= {frozenset(os.sched_getaffinity(process)) for process in reader._lane.processes}
            time.sleep(0.002)
    assert cores == {frozenset(os.sched_getaffinity(0))}


def test_hostile_pictures_cost_no_more_than_themselves(collection: Collection, run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    small = Image.new("RGB", (200, 100), "white")
    for y in range(2, 90, 12):
        ImageDraw.Draw(small).text((2, y), "no yes " * 10, fill="black", font=ImageFont.load_default(8))
    files = {
        "line.png": encode(Image.new("RGB", (1, 30_000)), "png"),
        "strip.png": encode(Image.fromarray(rng.integers(0, 256, (17, 30_000, 3)).astype(np.uint8)), "png"),
        "noise.png": encode(Image.fromarray(rng.integers(0, 256, (900, 900, 3)).astype(np.uint8)), "png"),
        "small.png": encode(small, "png"),
        "scans.jpg": progressive_jpeg(8_000, 8_000, 300),
        "cut.png": encode(drawn(("Harbour", 60, 40)), "png")[:500],
        "good.png": encode(drawn(("Harbour", 60, 40)), "png"),
    }
    add_files(collection, tmp_path, files)
    assert "5 of 7 images annotated, 0 were up to date, 2 have no value" in ocr(run, collection, *_ANY_REJECTS)
    found = metadata_of(collection)
    lines = found.pop("small.png")
    assert len(lines["w_boxes"]) == len(lines["w"].splitlines())
    unread = dict.fromkeys(("scans.jpg", "cut.png"))
    expected = {"good.png": "Harbour", **dict.fromkeys(("line.png", "strip.png", "noise.png"), ""), **unread}
    assert {name: row["w"] for name, row in found.items()} == expected
    # Neither will be readable before its file changes.
    assert "0 of 7 images annotated, 7 were up to date, 2 have no value" in ocr(run, collection, *_ANY_REJECTS)


@pytest.mark.parametrize(("limit", "reason"), [("_WALL_S", "decode_timeout"), ("_CPU_S", "too_slow")])
def test_a_picture_that_takes_too_long_is_stopped(
    limit: str, reason: str, collection: Collection, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = drawn(*((f"Harbour Street {row}", 10, 50 * row) for row in range(30)), size=(1000, 1500))
    add_files(collection, tmp_path, {"page.png": encode(page, "png")})
    monkeypatch.setattr(line_reader, limit, 0.4)
    ocr(run, collection, *_ANY_REJECTS)
    log = annotation_log(collection, "w")
    [last] = log.runs()
    [row] = written_rows(log, last, log.files_of(last)).read(["error_reason", "error_message"]).to_pylist()
    assert row["error_reason"] == reason
    assert str(row["error_message"]).startswith("reading its words: ")


def test_a_missing_extra_is_named(collection: Collection, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "find_spec", lambda name: None if name == "rapidocr" else find_spec(name))
    add_files(collection, Path(collection.location).parent, {"a.png": encode(drawn(), "png")})
    refused = run("annotate", collection.location, "--name", "w", "--ocr")
    assert (refused.code, "pip install 'likeness[ocr]'" in refused.err) == (2, True)
