"""Predictors that read the pictures again: quality, and the user's own classes."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from index.collection import Collection
from jobs.annotation.predictors.quality import Quality
from jobs.demo.gallery import plan_exhibit
from tests.support.collections.hand_made import (
    MODEL,
    add_files,
    add_run,
    add_version,
    hashed,
    metadata_of,
    rows,
    unit_vectors,
)
from tests.support.collections.small_collection import PLAIN
from tests.support.command_line import Run
from tests.support.listings import write_files
from tests.support.pictures.sample_images import encode

_OWN = '''
import numpy as np

class Red:
    """How red the middle is."""

    needs = "image"
    side = 32

    def __call__(self, batch):
        red = batch["image"][:, 16, 16, 0]
        if (red == 13).any():
            raise ValueError("unlucky")
        return {"": red > 128, "level": red, "colour": batch["image"][:, 16, 16]}

class Size:
    needs = "file"

    def __call__(self, batch):
        return {"bytes": [len(data) for data in batch["file"]]}

class First:
    needs = "embedding"
    version = 1

    def __call__(self, batch):
        return {"": batch["embedding"][:, 0]}

class Nothing:
    """Does not say what it needs."""

class Unmade(Size):
    def __init__(self, weights):
        pass
'''
_ANY_REJECTS = ("--max-reject-rate", 1)
COLOURS = {"red.png": (220, 30, 30), "green.png": (30, 200, 40), "unlucky.png": (13, 13, 13)}


@pytest.fixture
def pictures(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """An indexed collection of plain pictures, one of them gone since; `own.py` is in the working directory."""
    files = {name: encode(Image.new("RGB", (64, 48), colour), "png") for name, colour in COLOURS.items()}
    add_files(collection, tmp_path, {**files, "gone.png": b""})
    (tmp_path / "gone.png").unlink()
    (tmp_path / "own.py").write_text(_OWN)
    (tmp_path / "broken.py").write_text("class Red(:\n")
    monkeypatch.chdir(tmp_path)
    return collection


def test_classes_of_the_user_get_crops_or_whole_files(pictures: Collection, run: Run, tmp_path: Path) -> None:
    command = ("annotate", pictures.location, *_ANY_REJECTS, "--name")
    done = run(*command, "red", "--predictor", "own:Red")
    assert done.code == 0, done.err
    metadata = metadata_of(pictures)
    assert metadata["red.png"] == {"red": True, "red_level": 220, "red_colour": [220, 30, 30]}
    assert metadata["green.png"]["red_level"] == 30
    assert metadata["unlucky.png"]["red"] is metadata["gone.png"]["red"] is None
    again = run(*command, "red", "--predictor", "own:Red")
    assert "0 of 4 images annotated, 2 were up to date" in again.out  # those that failed are retried
    assert "ValueError: unlucky" in run("columns", pictures.location).out
    assert run(*command, "f", "--predictor", "own:Size").code == 0
    sizes = {name: row["f_bytes"] for name, row in metadata_of(pictures).items() if name in COLOURS}
    assert sizes == {name: (tmp_path / name).stat().st_size for name in COLOURS}


def test_another_model_gives_a_class_that_takes_vectors_other_values(pictures: Collection, run: Run) -> None:
    other = MODEL.model_copy(update={"fingerprint": "b" * 64})
    for model, seed in ((MODEL, 1), (other, 2)):
        ids, vectors = [*COLOURS, "gone.png"], unit_vectors(4, seed)
        add_version(pictures, hashed(rows(ids, vectors), "same bytes"), model=model)
        assert run("annotate", pictures.location, "--name", "first", "--predictor", "own:First").code == 0
        shown = metadata_of(pictures)
        assert [shown[image_id]["first"] for image_id in ids] == pytest.approx(vectors[:, 0].tolist())


def test_a_file_that_changed_since_its_embedding_is_a_reject_until_it_is_back(
    pictures: Collection, run: Run, tmp_path: Path
) -> None:
    red, green = (tmp_path / name for name in ("red.png", "green.png"))
    before = [file.read_bytes() for file in (red, green)]
    red.write_bytes(encode(Image.new("RGB", (64, 48), (1, 2, 3)), "png"))
    green.write_bytes(before[1][: len(before[1]) // 2])
    command = ("annotate", pictures.location, "--name", "q", "--quality", *_ANY_REJECTS)
    assert "1 of 4 images annotated, 0 were up to date, 3 have no value" in run(*command).out
    assert "changed since it was embedded" in run("columns", pictures.location).out
    version = pictures.current()
    assert "0 of 4 images annotated, 1 were up to date" in run(*command).out
    assert pictures.current() == version
    for file, data in zip((red, green), before, strict=True):
        file.write_bytes(data)
    assert "2 of 4 images annotated" in run(*command).out
    metadata = metadata_of(pictures)
    assert metadata["red.png"]["q_near_uniform"] is metadata["green.png"]["q_near_uniform"] is True


def test_images_without_a_known_hash_are_annotated_once(pictures: Collection, run: Run, tmp_path: Path) -> None:
    add_run(pictures, rows(["imported.png"], unit_vectors(1, 7), uris=[str(tmp_path / "red.png")]))
    command = ("annotate", pictures.location, "--name", "q", "--quality", *_ANY_REJECTS)
    assert "4 of 5 images annotated" in run(*command).out
    assert "0 of 5 images annotated, 4 were up to date" in run(*command).out


def test_invalid_predictors_are_refused(pictures: Collection, run: Run) -> None:
    for name, message in {
        "own:Nothing": "needs = None: expected one of image, embedding, file",
        "own:Missing": "cannot be imported",
        "missing:Red": "cannot be imported",
        "own.Red": "--predictor is 'own.Red'",
        "broken:Red": "cannot be imported (SyntaxError",
        "own:Unmade": "cannot be constructed (TypeError",
    }.items():
        done = run("annotate", pictures.location, "--name", "red", "--predictor", name)
        assert (done.code, message in done.err) == (2, True), done.err
    assert "expected one of labels" in run("annotate", pictures.location, "--name", "red").err


def test_quality_of_a_plain_picture(pictures: Collection, run: Run) -> None:
    assert run("annotate", pictures.location, "--name", "q", "--quality", *_ANY_REJECTS).code == 0
    measured = metadata_of(pictures)["green.png"]
    assert measured["q_near_uniform"] is True
    assert (measured["q_sharpness"], measured["q_contrast"], measured["q_entropy"]) == (0, 0, 0)
    assert measured["q_brightness"] == pytest.approx((0.299 * 30 + 0.587 * 200 + 0.114 * 40) / 255, abs=1e-3)
    assert measured["q_colourfulness"] == pytest.approx(0.3 * np.hypot(-170, 115 - 40), abs=0.1)


def test_quality_is_independent_of_size_and_sharpness_reveals_blur() -> None:
    for number in range(4):
        picture = _picture(number)
        sizes = [picture.resize((side, side), Image.Resampling.LANCZOS) for side in (448, 672, 1344)]
        small, middle, large = ({name: values[0] for name, values in _quality(size).items()} for size in sizes)
        for name in ("brightness", "contrast"):
            assert small[name] == pytest.approx(large[name], abs=0.01)
        assert middle["entropy"] == pytest.approx(large["entropy"], abs=0.3)
        assert small["colourfulness"] == pytest.approx(large["colourfulness"], rel=0.05)
        assert middle["sharpness"] == pytest.approx(large["sharpness"], rel=0.3)
        blurred = _quality(sizes[2].filter(ImageFilter.GaussianBlur(12)))
        assert large["sharpness"] > 2 * blurred["sharpness"][0]


def _picture(number: int) -> Image.Image:
    return Image.open(io.BytesIO(plan_exhibit(number).data())).convert("RGB")


def _quality(picture: Image.Image) -> Any:
    crop = picture.resize((Quality.side, Quality.side), Image.Resampling.BICUBIC)
    return Quality()({"image": np.asarray(crop)[np.newaxis], "image_id": np.array(["a"])})


def test_a_job_in_a_file_keeps_annotations_up_to_date(run: Run, tmp_path: Path) -> None:
    folder, job = write_files(tmp_path / "pictures", PLAIN), tmp_path / "job.yaml"
    job.write_text(
        "source: pictures\ncollection: c\nmodel: demo\nannotations:\n"
        "  - {name: q, quality: true}\n  - {name: shape, labels: [circle, star]}\n"
    )
    done = run("reembed", "--spec", job)
    assert (done.code, f"q: {len(PLAIN)} images annotated, 0 rejected" in done.out) == (0, True), done
    Image.new("RGB", (40, 40), (0, 200, 10)).save(folder / "new.png")
    assert "q: 1 image annotated, 0 rejected" in run("reembed", "--spec", job).out
    shown = metadata_of(Collection.open(str(tmp_path / "c")))
    assert shown.keys() == {*PLAIN, "new.png"}
    assert all(row["q_near_uniform"] and row["shape_score"] is not None for row in shown.values())
