"""Few-shot labels: judged images teach a head, which labels all others, and new ones each night."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.collection import Collection
from jobs.annotation.predictors.logistic import sigmoid, train_head
from jobs.schedule.spec_file import read_spec
from tests.support.collections.hand_made import add_version, indexed, metadata_of, rows, unit_vectors
from tests.support.command_line import Run

IDS = [f'ä {number:03}, "ö".jpg' for number in range(300)]
VECTORS = unit_vectors(len(IDS), seed=5)
WANTED = VECTORS[:, 0] > 0


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("template"), rows(IDS, VECTORS))


@pytest.fixture
def learn(collection: Collection, run: Run, tmp_path: Path) -> Callable[..., Any]:
    """Writes examples, and annotates with them."""

    def command(labels: Mapping[str, Any]) -> Any:
        (tmp_path / "examples.jsonl").write_bytes(lines(labels))
        return run("annotate", collection.location, "--name", "nice", "--examples", tmp_path / "examples.jsonl")

    return command


def judged(count: int = 20) -> dict[str, str]:
    return {IDS[row]: "like" if WANTED[row] else "unlike" for row in range(count)}


def average_precision(wanted: Any, scores: Any) -> float:
    found = np.asarray(wanted)[np.argsort(-np.asarray(scores), kind="stable")]
    return float((np.cumsum(found) / np.arange(1, len(found) + 1))[found].mean())


def test_likes_and_unlikes_become_a_probability(collection: Collection, learn: Callable[..., Any], run: Run) -> None:
    done = learn(judged(40))
    assert (done.code, done.err) == (0, "")
    shown = metadata_of(collection)
    chances = np.array([shown[image_id]["nice"] for image_id in IDS])
    assert ((chances > 0) & (chances < 1)).all()
    assert average_precision(WANTED[40:], chances[40:]) > 0.95
    assert all(shown[image_id]["nice_margin"] is None for image_id in IDS[:40])
    margins = [shown[image_id]["nice_margin"] for image_id in IDS[40:]]
    assert margins == pytest.approx(np.abs(2 * chances[40:] - 1), abs=2e-6)
    found = run("search", collection.location, "--sort", "nice_margin", "-k", "3", "--format", "json").out
    assert [match["image_id"] for match in json.loads(found)["matches"]] == [
        IDS[40 + row] for row in np.argsort(margins, kind="stable")[:3]
    ]


def test_a_head_is_trained_once_and_new_images_get_its_column(
    collection: Collection, learn: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    learn(judged())
    before = metadata_of(collection)
    add_version(collection, rows(["new.jpg"], VECTORS[50:51]), deletes=IDS[:5])
    assert "1 of 296 images annotated, 295 were up to date" in learn(dict(reversed(judged().items()))).out
    after = metadata_of(collection)
    assert after["new.jpg"]["nice"] == before[IDS[50]]["nice"]
    assert after[IDS[7]] == before[IDS[7]]
    done = learn({**judged(), IDS[20]: "like" if WANTED[20] else "unlike"})
    assert "296 of 296 images annotated" in done.out
    assert "5 of 21 examples are not in the collection, such as ä 000" in caplog.text
    assert metadata_of(collection)["new.jpg"]["nice"] != after["new.jpg"]["nice"]


def test_any_labels_and_several_files(collection: Collection, run: Run, tmp_path: Path) -> None:
    names = np.array(["Süden", "ost, west", "1"])
    truth = names[VECTORS[:, :3].argmax(axis=1)]
    quoted = ['"{}","{}"'.format(IDS[row].replace('"', '""'), truth[row]) for row in range(120)]
    (tmp_path / "one.csv").write_text("\n".join(["image_id,label", *quoted[:60]]), "utf-8-sig")
    (tmp_path / "two.csv").write_text("\n".join(["image_id,label", *quoted[50:]]), "utf-16")
    options = [option for name in ("one", "two") for option in ("--examples", tmp_path / f"{name}.csv")]
    done = run("annotate", collection.location, "--name", "place", *options)
    assert (done.code, done.err) == (0, "")
    shown = metadata_of(collection)
    right = np.array([shown[image_id]["place"] for image_id in IDS[120:]]) == truth[120:]
    assert right.mean() > 0.8
    assert all(1 / 3 < shown[image_id]["place_score"] <= 1 for image_id in IDS)
    assert shown[IDS[0]]["place_margin"] is None
    assert shown[IDS[200]]["place_margin"] < shown[IDS[200]]["place_score"]


def test_a_column_may_change_from_a_label_to_a_probability(collection: Collection, learn: Callable[..., Any]) -> None:
    learn({image_id: {"like": "a", "unlike": "b"}[label] for image_id, label in judged().items()})
    assert {row["nice"] for row in metadata_of(collection).values()} == {"a", "b"}
    learn({image_id: label == "like" for image_id, label in judged().items()})
    shown = metadata_of(collection)
    assert all(0 < row["nice"] < 1 and "nice_score" not in row for row in shown.values())


def lines(labels: Mapping[str, Any]) -> bytes:
    return "\n".join(json.dumps({"image_id": image_id, "label": label}) for image_id, label in labels.items()).encode()


LIKES = dict.fromkeys(IDS[:4], "like")
WRONG: dict[str, tuple[str, bytes, str]] = {
    "one label": (
        "e.jsonl",
        lines(LIKES),
        "expected at least 2 examples each of two or more labels, got 4 of like",
    ),
    "one unlike": ("e.jsonl", lines({**LIKES, IDS[4]: "unlike"}), "got 4 of like, 1 of unlike"),
    "ids of other images": (
        "e.jsonl",
        lines({f"/pictures/{image_id}": label for image_id, label in judged().items()}),
        "got 0 of like, 0 of unlike; 20 of 20 examples are not in the collection, such as /pictures/ä 000",
    ),
    "no label": ("e.jsonl", lines({**LIKES, IDS[4]: None}), "example 5 has no label"),
    "NaN": ("e.jsonl", lines({**LIKES, IDS[4]: math.nan, IDS[5]: "unlike"}), "example 5 has no label"),
    "an empty id": ("e.jsonl", lines({**LIKES, "": "like"}), "example 5 has no image_id"),
    "nothing": ("e.jsonl", b"", "expected a list in CSV or JSON lines with the columns image_id and label"),
    "other columns": ("e.csv", b"id,mark\na,1\n", "which has no column image_id and none label"),
    "no header": ("e.csv", b"a.jpg,like\nb.jpg,unlike\n", "its columns are a.jpg, like"),
    "an uneven line": ("e.csv", b"image_id,label\na,like\nb\n", "line 3: expected 2 values, got 1: b"),
    "no object": ("e.jsonl", b'{"image_id": "a", "label": 1}\noops\n', "line 2: expected a JSON object, got 'oops'"),
    "no rows": ("e.csv", b"image_id,label\n", "two or more labels, got none"),
    "no text": ("e.jsonl", bytes(range(256)), "e.jsonl"),
    "no file": ("none/e.jsonl", b"", "No such file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_teaches_nothing_is_refused(collection: Collection, run: Run, tmp_path: Path, case: str) -> None:
    name, data, expected = WRONG[case]
    (tmp_path / Path(name).name).write_bytes(data)
    done = run("annotate", collection.location, "--name", "nice", "--examples", tmp_path / name)
    assert (done.code, expected in done.err) == (2, True), done.err
    assert "nice" not in metadata_of(collection)[IDS[0]]


def test_an_image_with_two_labels_is_refused(collection: Collection, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image_id,label\nx.jpg,like\ny.jpg,0\ny.jpg,unlike\n")
    (tmp_path / "b.csv").write_text("image_id,label\nx.jpg,0\n")
    files = "--examples", tmp_path / "a.csv", "--examples", tmp_path / "b.csv"
    done = run("annotate", collection.location, "--name", "nice", *files)
    assert done.code == 2
    assert f"x.jpg as like in {tmp_path / 'a.csv'} and as unlike in {tmp_path / 'b.csv'}" in done.err


def test_a_job_file_names_files_and_collections_beside_it(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "source: pictures\ncollection: c\nannotations:\n"
        "  - {name: nice, examples: [likes.jsonl, /more.csv]}\n  - {name: points, head: heads/p.onnx}\n"
        "  - {name: seen, match: other, k: 3}\n"
    )
    nice, points, seen = read_spec(tmp_path / "job.yaml").annotations
    assert nice.examples == (str(tmp_path / "likes.jsonl"), "/more.csv")
    assert points.head == str(tmp_path / "heads/p.onnx")
    assert (seen.match, seen.k) == (str(tmp_path / "other"), 3)


def test_probabilities_are_calibrated() -> None:
    random = np.random.default_rng(2)
    vectors = unit_vectors(6_000, seed=6)
    true = 1 / (1 + np.exp(-(6 * vectors[:, 0] - 2)))
    liked = random.random(len(true)) < true
    weights, bias = train_head(vectors[:1_000], liked[:1_000], vectors[1_000:2_000])
    got = sigmoid(vectors[2_000:] @ weights + bias)
    bins = np.digitize(got, [0.1, 0.2, 0.4, 0.6, 0.8])
    for each in range(6):
        assert got[bins == each].mean() == pytest.approx(true[2_000:][bins == each].mean(), abs=0.06)


def test_equal_pictures_with_different_labels_leave_the_others_in_order() -> None:
    vectors = np.repeat(VECTORS[:20], 2, axis=0)
    liked = WANTED[:20].repeat(2)
    liked[:2] = [True, False]
    weights, bias = train_head(vectors, liked, VECTORS)
    assert average_precision(WANTED[20:], VECTORS[20:] @ weights) > 0.8
    same = np.repeat(VECTORS[:1], 4, axis=0)
    weights, bias = train_head(same, np.array([True, False, True, False]), VECTORS)
    assert sigmoid(same @ weights + bias) == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
def test_twenty_clicks_on_the_demo_find_almost_what_all_labels_find(run: Run, tmp_path: Path) -> None:
    """Ten pictures near one star, then twice the five most useful ones."""
    from jobs.demo.collection import make_demo_collection

    collection = make_demo_collection(tmp_path, count=400)
    stars = {image_id: row["label"] == "star" for image_id, row in metadata_of(collection).items()}
    known, others = sorted(stars)[::2], sorted(stars)[1::2]

    def search(*options: str) -> list[str]:
        found = run("search", collection.location, "-k", "1000", "--format", "json", *options).out
        return [match["image_id"] for match in json.loads(found)["matches"] if match["image_id"] in known]

    def learn(name: str, ids: list[str]) -> float:
        """The average precision on the others of a head that is trained on these."""
        (tmp_path / "examples.jsonl").write_bytes(lines({image_id: stars[image_id] for image_id in ids}))
        done = run("annotate", collection.location, "--name", name, "--examples", tmp_path / "examples.jsonl")
        assert done.code == 0
        shown = metadata_of(collection)
        return average_precision([stars[each] for each in others], [shown[each][name] for each in others])

    near = search("--like", next(image_id for image_id in known if stars[image_id]))
    clicked = [*near[:8], *[image_id for image_id in near[8:] if not stars[image_id]][:2]]
    for _ in range(2):
        learn("few", clicked)
        clicked += search("--sort", "few_margin")[:5]
    assert len(set(clicked)) == 20
    assert learn("few", clicked) >= 0.95 * learn("all", known)
