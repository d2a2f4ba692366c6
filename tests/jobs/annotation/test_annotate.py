"""Annotations: each image is annotated once, and the index has the columns beside the source's own."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError
from rich.console import Console

from embedder.errors import ModelError
from index.arrays import Vectors
from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.annotations import list_annotations
from index.collection.layout import VECTORS
from index.collection.records.index_settings import IndexSettings
from index.collection.records.model_record import ModelRecord
from index.search import Searcher
from index.search.shard import version_schema
from index.versions.promotion import rollback
from jobs.annotation.annotate import Annotate
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.annotation.predictors.labels import Embed, Labels, labels_recipe
from jobs.annotation.publish import drop
from jobs.annotation_spec import NO_LABEL, AnnotationSpec
from jobs.errors import JobError, TooManyRejectsError, UsageError
from jobs.spec import JobSpec
from tests.support.collections.hand_made import (
    add_run,
    add_version,
    hashed,
    indexed,
    metadata_of,
    rows,
    unit_vectors,
)
from tests.support.collections.s3_server import Bucket
from tests.support.collections.storage_steps import KilledError, at, expire, is_number, kill
from tests.support.command_line import Run

IDS = [f"{number:03}.jpg" for number in range(200)]


@dataclass
class Halves:
    """Tells in which half of the first axis a vector is, and records the images that it gets."""

    bad: frozenset[str] = frozenset()
    seen: list[str] = field(default_factory=list)
    kind: str = "halves"
    version: str = "f"

    def __call__(self, batch: Batch) -> Columns:
        ids = batch["image_id"].tolist()
        if self.bad.intersection(ids):
            raise ArithmeticError("undecided")
        self.seen += ids
        first = batch["embedding"][:, 0]
        return {"": ["left" if value < 0 else "right" for value in first], "first": first}

    def recipe(self, *_: Any) -> Recipe:
        return Recipe(id=self.kind, fingerprint=self.version * 64, needs="embedding", make=lambda: self)


@dataclass
class Returns(Halves):
    """Returns what a function of the images' ids returns."""

    of: Callable[[list[str]], Columns] = field(kw_only=True)

    def __call__(self, batch: Batch) -> Columns:
        return self.of(batch["image_id"].tolist())


def table(ids: list[str], *, seed: int = 1, content: str = "a") -> pa.Table:
    """Rows with a hash of their content, and a column of the source."""
    made = rows(ids, unit_vectors(len(ids), seed), metadata={"year": list(range(len(ids)))})
    return hashed(made, content)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("template"), table(IDS), settings=IndexSettings(segment_rows=90))


def annotate(collection: Collection, predictor: Halves, *, name: str = "half", **options: Any) -> Any:
    with writing(collection, "annotate") as leased:
        job = Annotate(collection=leased, console=Console(quiet=True), recipe=predictor.recipe, **options)
        return job.run(AnnotationSpec(name=name, predictor="tests:Halves"))


def texts(column: Any) -> list[str]:
    return list(map(str, column.to_pylist()))


def expected_halves(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """The values that `Halves` should return for rows."""
    vectors: Any = rows["embedding"].to_pylist()
    first = [vector[0] for vector in vectors]
    return {
        image_id: {"half": "left" if value < 0 else "right", "half_first": pytest.approx(value)}
        for image_id, value in zip(texts(rows["image_id"]), first, strict=True)
    }


def test_matches_have_the_columns_beside_those_of_the_source(collection: Collection) -> None:
    before = collection.read_version(str(collection.current()))
    vectors = {record.name: record.files[VECTORS] for record in before.segments}
    annotate(collection, Halves())
    after = collection.read_version(str(collection.current()))
    assert after.version != before.version
    assert {record.name: record.files[VECTORS] for record in after.segments} == vectors
    expected = expected_halves(table(IDS))
    shown = metadata_of(collection)
    assert all(shown[image_id] == {"year": year, **expected[image_id]} for year, image_id in enumerate(IDS))
    assert {"half", "half_first", "year"} <= set(version_schema(collection, after).names)
    assert (Searcher.open(collection).row(IDS[0]) or {})["half"] == expected[IDS[0]]["half"]


def test_only_new_and_changed_images_are_annotated_next_time(collection: Collection) -> None:
    annotate(collection, Halves())
    add_run(collection, table(["new.jpg", *IDS[:2]], seed=5, content="b"), deletes=[IDS[9]])
    before = collection.current()
    assert build_index(collection).base == before  # an update, which shares segments
    shown = metadata_of(collection)
    assert IDS[9] not in shown
    # Values of the old bytes do not apply to the new ones.
    assert [shown[image_id]["half"] for image_id in ("new.jpg", IDS[0], IDS[1])] == [None] * 3
    assert shown[IDS[2]]["half"] == expected_halves(table(IDS))[IDS[2]]["half"]
    again = Halves()
    report = annotate(collection, again)
    assert sorted(again.seen) == sorted(["new.jpg", *IDS[:2]])
    assert (report.embedded, report.already_there) == (3, len(IDS) - 3)
    changed = expected_halves(table(["new.jpg", *IDS[:2]], seed=5))
    shown = metadata_of(collection)
    for image_id in changed:
        assert {name: shown[image_id][name] for name in ("half", "half_first")} == changed[image_id]
    version = collection.current()
    quiet = Halves()
    annotate(collection, quiet)
    assert (quiet.seen, collection.current()) == ([], version)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ArithmeticError("undecided"), "ArithmeticError: undecided"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("\ud800"), "ValueError: ?"),
    ],
)
@pytest.mark.parametrize("returned", [False, True], ids=["raised", "returned"])
def test_an_image_that_fails_is_a_reject_and_the_others_get_their_values(
    collection: Collection, error: BaseException, message: str, returned: bool
) -> None:
    calls = []

    def values(ids: list[str]) -> Columns:
        calls.append(ids)
        if IDS[4] in ids and not returned:
            raise error
        names: list[Any] = [error if name == IDS[4] else name for name in ids]
        return {"": names, "length": np.array([len(name) for name in ids])}

    report = annotate(collection, Returns(of=values))
    assert (report.embedded, report.rejected, report.reject_reasons) == (len(IDS) - 1, 1, {type(error).__name__: 1})
    assert not returned or len(calls) == 1  # the others are not predicted again
    shown = metadata_of(collection)
    assert {name: shown[name]["half"] for name in IDS} == {**dict(zip(IDS, IDS, strict=True)), IDS[4]: None}
    assert (shown[IDS[3]]["half_length"], shown[IDS[4]]["half_length"]) == (7, None)
    [annotation] = list_annotations(collection)
    reject = annotation.rows.read().filter(pa.compute.field("image_id") == IDS[4]).to_pylist()[0]
    assert (reject["error_stage"], reject["error_message"]) == ("predict", message)


def test_images_that_a_predictor_failed_on_are_retried(collection: Collection) -> None:
    def count_files() -> int:
        return len(list(Path(collection.location).rglob("*")))

    files = []
    for _ in range(3):
        with pytest.raises(TooManyRejectsError, match=r"50 of 200 .*50 × \w+, such as: ArithmeticError: undecided"):
            annotate(collection, Halves(bad=frozenset(IDS[:50])))
        files.append(count_files())
    assert files[1] == files[2]
    some = Halves(bad=frozenset(IDS[:10]))
    assert annotate(collection, some).rejected == 10
    version, files = collection.current(), []
    for _ in range(3):
        assert annotate(collection, some).rejected == 10  # all that were retried
        files.append(count_files())
    assert (collection.current(), len(set(files))) == (version, 1)
    fixed = Halves()
    annotate(collection, fixed)
    assert fixed.seen == IDS[:10]
    assert metadata_of(collection)[IDS[0]]["half"] == expected_halves(table(IDS))[IDS[0]]["half"]


@pytest.mark.parametrize("other", ["text", *(pytest.param(each, marks=pytest.mark.long) for each in (True, [1]))])
def test_a_column_of_two_types_is_refused_before_it_is_published(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, other: object
) -> None:
    mixed = Returns(of=lambda ids: {"": [other if name < IDS[100] else 1 for name in ids]})
    with pytest.raises(JobError, match="values of two types"):  # of one batch
        annotate(collection, mixed)
    monkeypatch.setattr("jobs.annotation.annotate._VECTOR_BLOCK", 100)
    with pytest.raises(JobError, match="values of two types"):  # of two
        annotate(collection, mixed, name="blocks")
    assert list_annotations(collection) == []
    annotate(collection, Returns(of=lambda ids: {"": [1] * len(ids)}), name="runs")
    add_run(collection, table(["new.jpg"], seed=5))
    with pytest.raises(JobError, match="values of two types"):
        annotate(collection, Returns(of=lambda ids: {"": [other] * len(ids)}), name="runs")
    build_index(collection)
    assert metadata_of(collection)[IDS[3]]["runs"] == 1
    annotate(collection, Returns(of=lambda ids: {"": [0.5] * len(ids)}), name="wider")


@pytest.mark.parametrize("key", ['a b"$', " ", "$gt", None])
def test_invalid_column_names_are_refused(collection: Collection, key: str | None) -> None:
    with pytest.raises(JobError, match="halves returns"):
        annotate(collection, Returns(of=lambda ids: {key: ids} if key else {}))


def test_the_command_columns_counts_current_images(collection: Collection, run: Callable[..., Any]) -> None:
    annotate(collection, Halves(bad=frozenset(IDS[:3])))
    add_run(collection, table(["new.jpg", IDS[3]], seed=5, content="b"), deletes=IDS[:2])
    [facts] = json.loads(run("columns", collection.location, "--format", "json").out)
    assert {name: facts[name] for name in ("images", "rejected", "without")} == {
        "images": 196,
        "rejected": 1,
        "without": 2,
    }
    assert facts["reasons"] == {"ArithmeticError: undecided": 1}


def test_a_predictor_that_fails_on_all_images_ends_the_job(collection: Collection) -> None:
    version = collection.current()
    with pytest.raises(JobError, match="halves failed on each of 200 images"):
        annotate(collection, Halves(bad=frozenset(IDS)))
    with pytest.raises(TooManyRejectsError):
        annotate(collection, Halves(bad=frozenset(IDS[:50])))
    assert collection.current() == version
    assert list_annotations(collection) == []
    with writing(collection, "columns") as leased:
        drop(leased, "half", Console(quiet=True))
    assert collection.storage.list("annotations") == []


def test_a_repeatedly_stopped_job_annotates_every_image_once(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.annotation.annotate._VECTOR_BLOCK", 30)
    tries, seen = count(1), list[str]()

    def values(ids: list[str]) -> Columns:
        if next(tries) % 2 == 0:
            raise KeyboardInterrupt
        seen.extend(ids)
        return {"": ids}

    for _ in range(20):
        with suppress(KeyboardInterrupt):
            annotate(collection, Returns(of=values))
            break
    assert sorted(seen) == IDS
    [annotation] = list_annotations(collection)
    assert len(annotation.runs) == 1
    assert sorted(texts(annotation.rows.read(["image_id"])["image_id"])) == IDS
    assert {name: row["half"] for name, row in metadata_of(collection).items()} == dict(zip(IDS, IDS, strict=True))


def test_columns_survive_a_rebuild_until_they_are_dropped(collection: Collection) -> None:
    annotate(collection, Halves())
    annotate(collection, Halves(), name="other")
    build_index(collection, rebuild=True)
    assert metadata_of(collection)[IDS[7]]["half"] == metadata_of(collection)[IDS[7]]["other"]
    with writing(collection, "columns") as leased:
        drop(leased, "half", Console(quiet=True))
    assert set(metadata_of(collection)[IDS[7]]) == {"year", "other", "other_first"}
    with pytest.raises(UsageError, match="expected one of other"):
        drop(collection, "half", Console(quiet=True))
    rollback(collection)
    assert "half" in metadata_of(collection)[IDS[7]]


@pytest.mark.parametrize("number", [1, 3, 5, *(pytest.param(step, marks=pytest.mark.long) for step in (2, 4, 6))])
@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_drop_that_was_killed_finishes_when_run_again(collection: Collection, number: int, after: bool) -> None:
    """Killed before and after each change that it makes."""
    annotate(collection, Halves())
    with suppress(KilledError), at(is_number(number), after=after, action=kill), writing(collection, "columns") as job:
        drop(job, "half", Console(quiet=True))
    expire(collection.storage)
    with suppress(UsageError), writing(collection, "columns") as job:
        drop(job, "half", Console(quiet=True))
    assert collection.storage.list("annotations") == []
    assert set(metadata_of(collection)[IDS[7]]) == {"year"}


def test_taken_names_are_refused(collection: Collection) -> None:
    with pytest.raises(UsageError, match="conflict with year"):
        annotate(collection, Halves(), name="year")
    # A later job may add some, and an import would rename the others.
    for name in ("tiles", "exif", "exif_taken", "size", "pixels", "fetch_seconds"):
        with pytest.raises(UsageError, match=f"conflict with {name}"):
            annotate(collection, Halves(), name=name)
    annotate(collection, Halves())
    with pytest.raises(UsageError, match="conflict with half"):
        annotate(collection, Halves(), name="half_first")
    later = table(["new.jpg"]).append_column("half_first", pa.array([1.0]))
    add_run(collection, later)
    with pytest.raises(UsageError, match=f"`likeness columns {re.escape(collection.location)} --drop half`"):
        annotate(collection, Halves())


ANOTHER_KIND = {
    "clusters": ["annotate", "{place}", "--clusters", "2"],
    "select": ["select", "{place}", "-n", "3"],
}


@pytest.mark.parametrize("kind", ANOTHER_KIND)
def test_values_of_another_kind_are_not_replaced(collection: Collection, run: Run, kind: str) -> None:
    place, name = collection.location, ("--name", "half")
    command = [each.format(place=place) for each in ANOTHER_KIND[kind]]
    annotate(collection, Halves(bad=frozenset(IDS[:3])))
    before = metadata_of(collection)
    message = "--name half has halves, 197 images: choose another name, or drop these columns first (`likeness columns"
    refused = run(*command, *name)
    assert (refused.code, message in refused.err, metadata_of(collection)) == (2, True, before), refused
    assert run("columns", place, "--drop", "half").code == 0
    assert run(*command, *name).code == 0
    with pytest.raises(UsageError, match=f"--name half has {kind}.*, 200 images: choose another name"):
        annotate(collection, Halves())


def test_unfinished_values_of_another_kind_are_not_replaced_and_those_of_none_are(
    collection: Collection, run: Run
) -> None:
    command = ("annotate", collection.location, "--name", "half", "--clusters", "2")
    stopped = Halves(bad=frozenset(IDS[:100]))
    with pytest.raises(TooManyRejectsError):
        annotate(collection, stopped)
    refused = run(*command)
    assert (refused.code, "--name half has halves, 100 images: choose" in refused.err) == (2, True), refused
    assert annotate(collection, replace(stopped, bad=frozenset())).embedded == 100
    with pytest.raises(JobError):
        annotate(collection, Halves(bad=frozenset(IDS)), name="none")
    done = run(*(each.replace("half", "none") for each in command))
    assert done.code == 0, done


def test_rejects_of_an_unfinished_run_do_not_hide_values_from_another_kind(
    collection: Collection, tmp_path: Path
) -> None:
    annotate(collection, Halves())
    with pytest.raises(TooManyRejectsError):
        annotate(collection, Halves(version="e", bad=frozenset(IDS[:150])))
    with pytest.raises(UsageError, match="--name half has halves, 200 images"):
        annotate(collection, Halves(kind="thirds", version="d"))
    few = Collection.create_or_open(str(tmp_path / "few"))
    add_version(few, table(IDS[:5]))
    annotate(few, Halves(bad=frozenset(IDS[:5])), max_reject_rate=1.0)
    thirds = Halves(kind="thirds", version="d", bad=frozenset(IDS[:2]))
    with pytest.raises(TooManyRejectsError):
        annotate(few, thirds)
    assert annotate(few, replace(thirds, bad=frozenset())).embedded == 2


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"name": "1a"}, "expected at most 64 letters, digits and _, beginning with a letter"),
        ({"name": "score"}, "expected a name other than"),
        ({"labels": ["a dog", " a dog"]}, "got 'a dog'"),
        ({"labels": ["a dog", "  "]}, "got ''"),
        ({"labels": [NO_LABEL]}, "got 'none of these'"),
        ({"template": "a photo"}, "with {} once"),
        ({"quality": True}, "--label or --labels"),
        *(({"labels": (), "clusters": wrong}, "2 to 1,000, or auto") for wrong in (0, 1, 1001, "many", -3, "2.5")),
        ({"labels": (), "classifier": "m", "captioner": "m"}, "--label or --labels"),
        ({"labels": (), "quality": True, "prompt": "p"}, "prompt, engine and url are for a captioner"),
        ({"labels": (), "captioner": "m", "engine": "vllm"}, "both engine vllm and the url of its server"),
        ({"labels": (), "captioner": "m", "url": "http://h/v1"}, "both engine vllm and the url of its server"),
        *(
            ({"labels": (), "captioner": "m", "engine": "vllm", "url": url}, "a URL such as http://localhost:8000/v1")
            for url in ("http://me:secret@h/v1", "h:8000")
        ),
    ],
)
def test_invalid_annotations_are_refused(wrong: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(expected)):
        AnnotationSpec.model_validate({"name": "animal", "labels": ["a dog"], **wrong})


@pytest.mark.parametrize("other", ["animal", "animal_x"])
def test_annotations_of_a_job_must_not_share_columns(other: str) -> None:
    annotations = [{"name": name, "quality": True} for name in (other, "animal", "animals")]
    with pytest.raises(ValidationError, match="would have the same columns"):
        JobSpec.model_validate({"source": "s", "collection": "c", "annotations": annotations})


def test_a_file_of_labels_may_begin_with_a_byte_order_mark(collection: Collection, run: Any, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("a circle\na circle\n", "utf-8-sig")
    done = run("annotate", collection.location, "--name", "shape", "--labels", labels)
    assert (done.code, "got 'a circle'" in done.err) == (2, True)


def test_labels_are_the_nearest_texts_unless_all_are_far_away() -> None:
    texts = np.eye(4, dtype=np.float32)[:2]
    vectors = np.array([[0.9, 0.1, 0, 0], [0.3, 0.6, 0, 0], [0.1, 0.05, 0.9, 0]], np.float32)
    got = Labels(("a dog", "a cat"), texts, 0.2)({"image_id": np.arange(3), "embedding": vectors})
    assert list(got[""]) == ["a dog", "a cat", NO_LABEL]
    assert list(got["score"]) == [0.9, 0.6, 0.1]
    assert list(got["margin"]) == [0.8, 0.3, 0.05]
    single = Labels(("a dog",), texts[:1], 0.2)({"image_id": np.arange(3), "embedding": vectors})
    assert list(single["margin"]) == [0.7, 0.1, -0.1]


def test_new_images_get_labels_without_the_model(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, labels = AnnotationSpec(name="kind", labels=("a dog", "a cat"), none_below=0), unit_vectors(2, seed=7)

    def embed(given: Sequence[str]) -> Vectors:
        return np.concatenate([labels, unit_vectors(len(given) - 2, seed=8)])

    def away(_: Sequence[str]) -> NoReturn:
        raise ModelError("the model is away")

    def annotate_by(embed: Embed) -> int:
        def recipe(spec: AnnotationSpec, _: Collection, model: ModelRecord, *__: object) -> Recipe:
            return labels_recipe(spec, model, embed)

        with writing(collection, "annotate") as leased:
            job = Annotate(collection=leased, console=Console(quiet=True), recipe=recipe)
            return job.run(spec).embedded

    with pytest.raises(ModelError, match="away"):
        annotate_by(away)
    monkeypatch.setattr("jobs.annotation.annotate.MAX_RECORD", 100)
    with pytest.raises(
        UsageError, match=r"what kind has learned has \d+ bytes, more than the 100 .*: give it fewer labels"
    ):
        annotate_by(embed)
    monkeypatch.undo()
    assert annotate_by(embed) == len(IDS)
    new = [f"new {number}" for number in range(10)]
    add_version(collection, table(new, seed=9))
    assert annotate_by(away) == len(new)
    nearest = (unit_vectors(len(new), seed=9) @ labels.T).argmax(axis=1)
    shown = metadata_of(collection)
    assert [shown[image_id]["kind"] for image_id in new] == [spec.labels[number] for number in nearest]


@pytest.mark.slow
def test_labels_recognise_the_shapes_of_the_demo(run: Callable[..., Any], tmp_path: Path) -> None:
    from jobs.demo.collection import make_demo_collection
    from jobs.demo.drawing import SHAPES

    collection = make_demo_collection(tmp_path, count=300)
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"a {shape}" for shape in SHAPES) + "\n")
    run("annotate", collection.location, "--name", "shape", "--labels", str(labels), "--template", "{}")
    shown = metadata_of(collection)
    right = [row["shape"] == f"a {row['label']}" for row in shown.values()]
    assert np.mean(right) >= 0.92
    listed = json.loads(run("columns", collection.location, "--format", "json").out)
    assert [(each["name"], each["images"], each["indexed"]) for each in listed] == [("shape", len(shown), True)]
    assert set(listed[0]["columns"]) == {"shape", "shape_score", "shape_margin"}
    known = json.loads(run("info", collection.location, "--format", "json").out)["columns"]
    assert known == Searcher.open(collection).filterable
    assert known.keys() >= {"label", "shape_score"}


def test_images_that_failed_and_are_gone_hold_nothing_up(collection: Collection) -> None:
    annotate(collection, Halves())
    new = [f"new {number}.jpg" for number in range(20)]
    add_version(collection, table(new, seed=5))
    failing = Halves(bad=frozenset(new))
    with pytest.raises(TooManyRejectsError):
        annotate(collection, failing)
    add_run(collection, deletes=new[1:])
    build_index(collection)
    report = annotate(collection, failing)
    assert (report.reject_reasons.total(), report.listed) == (1, len(IDS) + 1)
    add_run(collection, deletes=new[:1])
    build_index(collection)
    assert annotate(collection, failing).rejected == 0


def test_annotations_in_a_bucket(bucket: Bucket) -> None:
    collection = Collection.create_or_open(bucket.address("c"))
    add_version(collection, table(IDS[:20]))
    annotate(collection, Halves())
    assert {row["half"] for row in metadata_of(collection).values()} == {"left", "right"}
    again = Halves()
    annotate(collection, again)
    assert again.seen == []
    with writing(collection, "columns") as leased:
        drop(leased, "half", Console(quiet=True))
    assert metadata_of(collection)[IDS[0]] == {"year": 0}
    assert [key for key in bucket.keys("c/annotations/") if not key.endswith("/")] == []
