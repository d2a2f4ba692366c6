"""Predictors that read the pictures again: measures of pixels, classes of the user's own, and whole files."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from index.collection import Collection
from index.search import Searcher
from jobs.annotation.quality import Quality
from jobs.demo.gallery import plan_exhibit
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.command_line import Run

_OWN = '''
import numpy as np

class Red:
    """How red the middle is, in one process and batch by batch."""

    needs = "image"
    side = 32

    def __init__(self):
        self.constructed = True

    def __call__(self, batch):
        red = batch["image"][:, 16, 16, 0]
        if (red == 13).any():
            raise ValueError("unlucky")
        return {"": red > 128, "level": red, "colour": batch["image"][:, 16, 16]}

class Size:
    needs = "file"

    def __call__(self, batch):
        return {"bytes": [len(data) for data in batch["file"]]}

class Nothing:
    """Says not what it needs."""

class Unmade(Size):
    def __init__(self, weights):
        pass
'''
_ANY_REJECTS = ("--max-reject-rate", 1)
COLOURS = {"red.png": (220, 30, 30), "green.png": (30, 200, 40), "unlucky.png": (13, 13, 13)}


@pytest.fixture
def pictures(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """An indexed collection of plain pictures, one of which has gone since; `own.py` is in the working directory."""
    for name, colour in COLOURS.items():
        Image.new("RGB", (64, 48), colour).save(tmp_path / name)
    names = [*COLOURS, "gone.png"]
    uris = [str(tmp_path / name) for name in names]
    hashes = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in COLOURS] + ["0"]
    add_version(collection, rows(names, unit_vectors(len(names)), uris=uris, metadata={"content_hash": hashes}))
    (tmp_path / "own.py").write_text(_OWN)
    (tmp_path / "broken.py").write_text("class Red(:\n")
    monkeypatch.chdir(tmp_path)
    return collection


def shown(collection: Collection) -> dict[str, dict[str, Any]]:
    matches = Searcher.open(collection).search(unit_vectors(1), k=10)[0]
    return {match.image_id: match.metadata for match in matches}


def test_a_class_of_the_user_reads_the_crops(pictures: Collection, run: Run) -> None:
    done = run("annotate", pictures.location, "--name", "red", "--predictor", "own:Red", *_ANY_REJECTS)
    assert done.code == 0, done.err
    found = shown(pictures)
    assert found["red.png"] == {"red": True, "red_level": 220, "red_colour": [220, 30, 30]}
    assert found["green.png"]["red_level"] == 30
    assert found["unlucky.png"]["red"] is found["gone.png"]["red"] is None
    again = run("annotate", pictures.location, "--name", "red", "--predictor", "own:Red", *_ANY_REJECTS)
    assert "0 of 4 images annotated, 2 were up to date" in again.out  # those that failed are tried again
    listed = run("columns", pictures.location).out
    assert "ValueError: unlucky" in listed


def test_a_class_of_the_user_reads_whole_files(pictures: Collection, run: Run, tmp_path: Path) -> None:
    assert run("annotate", pictures.location, "--name", "f", "--predictor", "own:Size", *_ANY_REJECTS).code == 0
    found = shown(pictures)
    assert {name: found[name]["f_bytes"] for name in COLOURS} == {
        name: (tmp_path / name).stat().st_size for name in COLOURS
    }


def test_a_file_that_changed_since_its_embedding_is_a_reject(pictures: Collection, run: Run, tmp_path: Path) -> None:
    Image.new("RGB", (64, 48), (1, 2, 3)).save(tmp_path / "green.png")
    command = ("annotate", pictures.location, "--name", "q", "--quality", *_ANY_REJECTS)
    assert "2 of 4 images annotated, 0 were up to date, 2 have no value" in run(*command).out
    assert "changed since it was embedded" in run("columns", pictures.location).out
    version = pictures.current()
    assert "0 of 4 images annotated, 2 were up to date" in run(*command).out
    assert pictures.current() == version
    Image.new("RGB", (64, 48), COLOURS["green.png"]).save(tmp_path / "green.png")
    assert "1 of 4 images annotated" in run(*command).out
    assert shown(pictures)["green.png"]["q_near_uniform"] is True


def test_a_file_that_was_cut_off_for_a_while_is_tried_again(pictures: Collection, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "green.png"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    command = ("annotate", pictures.location, "--name", "q", "--quality", *_ANY_REJECTS)
    assert "2 of 4 images annotated" in run(*command).out
    file.write_bytes(whole)
    assert "1 of 4 images annotated" in run(*command).out
    assert shown(pictures)["green.png"]["q_near_uniform"] is True


def test_images_without_a_known_hash_are_annotated_once(pictures: Collection, run: Run, tmp_path: Path) -> None:
    add_run(pictures, rows(["imported.png"], unit_vectors(1, 7), uris=[str(tmp_path / "red.png")]))
    command = ("annotate", pictures.location, "--name", "q", "--quality", *_ANY_REJECTS)
    assert "4 of 5 images annotated" in run(*command).out
    assert "0 of 5 images annotated, 4 were up to date" in run(*command).out


def test_what_is_no_predictor_is_refused(pictures: Collection, run: Run) -> None:
    for name, told in {
        "own:Nothing": "needs = None: expected one of image, embedding, file",
        "own:Missing": "cannot be imported",
        "missing:Red": "cannot be imported",
        "own.Red": "--predictor is 'own.Red'",
        "broken:Red": "cannot be imported (SyntaxError",
        "own:Unmade": "cannot be constructed (TypeError",
    }.items():
        done = run("annotate", pictures.location, "--name", "red", "--predictor", name)
        assert (done.code, told in done.err) == (2, True), done.err
    assert "expected one of labels" in run("annotate", pictures.location, "--name", "red").err


def test_quality_is_measured_through_the_stages_of_embedding(pictures: Collection, run: Run) -> None:
    assert run("annotate", pictures.location, "--name", "q", "--quality", *_ANY_REJECTS).code == 0
    measured = shown(pictures)["green.png"]
    assert measured["q_near_uniform"] is True
    assert (measured["q_sharpness"], measured["q_contrast"], measured["q_entropy"]) == (0, 0, 0)
    assert measured["q_brightness"] == pytest.approx((0.299 * 30 + 0.587 * 200 + 0.114 * 40) / 255, abs=1e-3)
    assert measured["q_colourfulness"] == pytest.approx(0.3 * np.hypot(-170, 115 - 40), abs=0.1)


def test_quality_does_not_depend_on_the_width_and_tells_blur() -> None:
    sharper = 0
    for number in range(12):
        picture = _picture(number)
        sizes = [picture.resize((side, side), Image.Resampling.LANCZOS) for side in (448, 672, 1344)]
        small, middle, large = ({k: v[0] for k, v in _quality(each).items()} for each in sizes)
        for name in ("brightness", "contrast"):
            assert small[name] == pytest.approx(large[name], abs=0.01)
        assert middle["entropy"] == pytest.approx(large["entropy"], abs=0.3)
        assert small["colourfulness"] == pytest.approx(large["colourfulness"], rel=0.05)
        assert middle["sharpness"] == pytest.approx(large["sharpness"], rel=0.3)
        blurred = _quality(sizes[2].filter(ImageFilter.GaussianBlur(12)))
        sharper += large["sharpness"] > 2 * blurred["sharpness"][0]
    assert sharper == 12


def _picture(number: int) -> Image.Image:
    return Image.open(io.BytesIO(plan_exhibit(number).data())).convert("RGB")


def _quality(picture: Image.Image) -> Any:
    crop = picture.resize((Quality.side, Quality.side), Image.Resampling.BICUBIC)
    return Quality()({"image": np.asarray(crop)[np.newaxis], "image_id": np.array(["a"])})


def test_a_job_in_a_file_keeps_annotations_up_to_date(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (40, 40), (number * 80, 10, 10)).save(folder / f"{number}.png")
    (tmp_path / "job.yaml").write_text(
        "source: pictures\ncollection: c\nmodel: demo\nannotations:\n"
        "  - {name: q, quality: true}\n  - {name: shape, labels: [circle, star]}\n"
    )
    done = run("reembed", "--spec", tmp_path / "job.yaml")
    assert done.code == 0, done.err
    assert "q: 3 images annotated, 0 rejected" in done.out
    Image.new("RGB", (40, 40), (0, 200, 10)).save(folder / "new.png")
    again = run("reembed", "--spec", tmp_path / "job.yaml")
    assert "q: 1 images annotated, 0 rejected" in again.out
    searcher = Searcher.open(Collection.open(str(tmp_path / "c")))
    rows = [searcher.row(name) for name in ("0.png", "1.png", "2.png", "new.png")]
    assert all(row and row["q_near_uniform"] and row["shape_score"] is not None for row in rows)
    assert "annotations" in run("reembed", "--spec", _wrong(tmp_path)).err


def _wrong(folder: Path) -> Path:
    path = folder / "wrong.yaml"
    path.write_text("source: pictures\ncollection: c\nannotations:\n  - {name: q}\n")
    return path
