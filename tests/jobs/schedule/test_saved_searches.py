"""Saved searches: which images they find, what they deliver, and that each match is delivered once."""

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from rich.console import Console

from embedder.errors import EmbedError, UnsupportedInputError
from embedder.images.decode import decode_image
from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.annotations import annotation_log
from index.errors import CollectionError
from index.search import Searcher
from jobs.annotation.computed import ComputedColumns
from jobs.annotation.predictors.searches import check_searches
from jobs.annotation.publish import publish
from jobs.fields import Target
from jobs.schedule import notify
from jobs.schedule.history import last_entries
from jobs.search_spec import SearchSpec
from jobs.sources.listing import LISTING
from jobs.spec import JobSpec
from tests.support.collections.hand_made import (
    DIM,
    MODEL,
    add_run,
    add_version,
    hashed,
    metadata_of,
    rows,
    unit_vectors,
)
from tests.support.collections.small_collection import PLAIN
from tests.support.collections.storage_steps import KilledError, at, expire, is_number, kill
from tests.support.command_line import Result, Run
from tests.support.fake_embedder import FakeEmbedder
from tests.support.nights.quiet_night import make_job
from tests.support.nights.searching_night import CUT, NAMES, ids_of_night, night, search, searches, vectors_of_night
from tests.support.paths import ROOT
from tests.support.pictures.sample_images import encode
from tests.support.scripted_server import Reply, ScriptedServer, scripted

FAKE = FakeEmbedder(dim=DIM)


@pytest.fixture
def hook() -> Iterator[ScriptedServer]:
    with scripted(Reply(data=b"")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_RETRY", notify._RETRY.new(backoff_factor=0, total=0))


def matching(night_number: int, name: str) -> dict[str, Any]:
    """The images of a night that a search finds, with their scores, by comparing all."""
    query = vectors_of_night(0)[NAMES.index(name)]
    scores = vectors_of_night(night_number) @ query
    found = zip(ids_of_night(night_number), scores.tolist(), strict=True)
    return {image_id: pytest.approx(score, abs=1e-6) for image_id, score in found if score >= CUT}


def delivered(hook: ScriptedServer) -> dict[tuple[str, str], list[str]]:
    """The ids in each call, by its search and the folder of its first image, which says the night; no key twice."""
    bodies = [request.document for request in hook.requests]
    assert len({body["key"] for body in bodies}) == len(bodies)
    calls = [(body["search"], [match["image_id"] for match in body["matches"]]) for body in bodies]
    return {(name, ids[0].partition("/")[0]): sorted(ids) for name, ids in calls}


def found_by(collection: Collection) -> dict[str, dict[str, float]]:
    """The searches that each image matches, and their scores, as a search for images shows them."""
    shown = metadata_of(collection)
    return {key: dict(zip(row["searches"], row["searches_scores"], strict=True)) for key, row in shown.items()}


def test_queries_of_each_kind_find_what_comparing_all_finds(collection: Collection, tmp_path: Path) -> None:
    ids, vectors = [f"{number:02}.jpg" for number in range(60)], unit_vectors(60, 3)
    add_version(collection, hashed(rows(ids, vectors)))
    picture = tmp_path / "query.png"
    picture.write_bytes(encode(Image.new("RGB", (40, 30), (200, 30, 90)), "png"))
    specs = [
        SearchSpec(name="in words", text="a red star", min_score=0.2),
        SearchSpec(name="Bild ü", image=str(picture), min_score=-0.1),
        SearchSpec(name="like one", image_id="07.jpg", min_score=0.35),
        SearchSpec(name="none", image_id="07.jpg", min_score=1),
    ]
    report = search(collection, specs, load=lambda _: FAKE)
    pixels = decode_image(picture.read_bytes(), FAKE.crop).pixels
    queries = np.stack(
        [FAKE.embed_texts(["a red star"])[0], FAKE.embed_images(pixels[None])[0], vectors[7], vectors[7]]
    )
    scores = vectors @ queries.T
    expected = {
        image_id: {
            spec.name: pytest.approx(score, abs=1e-6)
            for spec, score in zip(specs, row.tolist(), strict=True)
            if score >= spec.min_score - 5e-7
        }
        for image_id, row in zip(ids, scores, strict=True)
    }
    assert found_by(collection) == expected
    assert expected["07.jpg"].keys() >= {"like one", "none"}
    counts = {spec.name: sum(spec.name in names for names in expected.values()) for spec in specs}
    assert {name: (each.tested, each.matched) for name, each in report.searches.items()} == {
        name: (60, number) for name, number in counts.items()
    }
    assert set(metadata_of(collection, {"searches": "Bild ü"})) == {key for key in ids if "Bild ü" in expected[key]}
    assert Searcher.open(collection).facets().values["searches"]["like one"] == counts["like one"]


def test_a_picture_that_changes_during_the_night_is_searched_as_it_was_read(
    collection: Collection, tmp_path: Path
) -> None:
    ids, vectors = [f"{number:02}.jpg" for number in range(60)], unit_vectors(60, 3)
    add_version(collection, hashed(rows(ids, vectors)))
    picture = tmp_path / "query.png"
    red, blue = (encode(Image.new("RGB", (40, 30), colour), "png") for colour in ((200, 30, 90), (20, 30, 250)))
    picture.write_bytes(red)

    def load(_: object) -> FakeEmbedder:
        picture.write_bytes(blue)
        return FAKE

    report = search(collection, [SearchSpec(name="red", image=str(picture), min_score=-1)], load=load)
    assert (report.problems, report.searches["red"].matched) == ([], 60)
    query = FAKE.embed_images(decode_image(red, FAKE.crop).pixels[None])[0]
    found = found_by(collection)
    assert [found[image_id]["red"] for image_id in ids] == pytest.approx((vectors @ query).tolist(), abs=1e-6)


def test_filters_look_at_columns_of_the_source_and_of_annotations(collection: Collection) -> None:
    kinds = ["cat", "dog", None] * 4
    words = {"label": pa.array(kinds), "caption": pa.array([f"Ein {kind}" for kind in kinds])}
    ids = [f"{number:02}" for number in range(12)]
    add_version(collection, hashed(rows(ids, metadata=words)))
    with writing(collection, "test") as leased:
        columns = ComputedColumns.open(leased, "shade", "by")
        positions = columns.segments.positions(pa.array(ids, pa.string()))
        order = np.argsort(positions)
        columns.put(
            "by hand", positions[order], pa.table({"shade": pa.array([*range(11), None], pa.int64())}).take(order)
        )
        publish(leased, Console(quiet=True))
    filters: dict[str, dict[str, Any]] = {
        "all": {},
        "cats": {"label": "cat"},
        "no label": {"label": None},
        "words": {"caption": {"$match": "dog"}},
        "shade": {"shade": {"$gte": 5}, "label": {"$ne": "dog"}},
        "shade too": {"shade": {"$gte": 5}, "label": {"$ne": "dog"}},
    }
    specs = [SearchSpec(name=name, image_id="00", min_score=-1, filter=each) for name, each in filters.items()]
    search(collection, specs)
    found = found_by(collection)
    for name, each in filters.items():
        assert {key for key, names in found.items() if name in names} == set(metadata_of(collection, each)), name


def test_each_night_tests_the_new_images_alone_and_delivers_them_once(
    collection: Collection, hook: ScriptedServer
) -> None:
    specs = searches(hook.url)
    for number in range(2):
        report = night(collection, number, specs)
        assert {each.tested for each in report.searches.values()} == {30}
    again = search(collection, specs)
    assert ({each.tested for each in again.searches.values()}, again.note) == ({0}, None)
    assert delivered(hook) == {(name, "001"): sorted(matching(1, name)) for name in NAMES}
    assert [run.counts["embedded"] for run in annotation_log(collection, "searches").runs()] == [30, 30]
    for request in hook.requests:
        body = request.document
        scores = {match["image_id"]: match["score"] for match in body["matches"]}
        assert scores == matching(1, body["search"])
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
        assert request.headers["idempotency-key"] == body["key"]
        assert body["matches"][0]["uri"] == f"memory:{body['matches'][0]['image_id']}"
        assert body["text"] == f"likeness: {body['search']} matches {len(scores)} new images of {collection.location}"


def test_values_of_all_types_are_delivered_as_json_in_calls_of_limited_size(
    collection: Collection, hook: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.schedule.saved_searches._MATCHES", 4)
    add_version(collection, hashed(rows(["first"], unit_vectors(1))))
    specs = [SearchSpec(name="a/b", image_id="first", min_score=-1, notify=Target(url=hook.url))]
    search(collection, specs)
    values = {
        "number": pa.array([float("nan")] * 10),
        "when": pa.array([0] * 10, pa.timestamp("us", "UTC")),
        "bytes": pa.array([b"\xff"] * 10),
        "tags": pa.array([["a", "b"]] * 10),
    }
    add_version(collection, hashed(rows([f"{number}" for number in range(10)], metadata=values)))
    assert search(collection, specs).searches["a/b"].delivered == 10
    bodies = [request.document for request in hook.requests]
    assert [len(body["matches"]) for body in bodies] == [4, 4, 2]
    assert [body["key"].partition("/")[2] for body in bodies] == ["a%2Fb/1", "a%2Fb/2", "a%2Fb/3"]
    metadata = bodies[0]["matches"][0]["metadata"]
    assert metadata == {"number": None, "when": "1970-01-01T00:00:00Z", "bytes": "_w==", "tags": ["a", "b"]}


def test_what_cannot_be_delivered_is_delivered_by_a_later_night(
    collection: Collection, hook: ScriptedServer, tmp_path: Path
) -> None:
    out, ready = tmp_path / "out.jsonl", tmp_path / "ready"
    command = Target(command=f"test -e {ready} && cat >> {out} && echo >> {out}")
    with scripted(Reply(data=b"")) as other:
        odd = searches(other.url)[0]
        more = {"a command": command, "elsewhere": odd.notify}
        specs = [*searches(hook.url), *(odd.model_copy(update={"name": name, "notify": more[name]}) for name in more)]
        night(collection, 0, specs)
        hook.replies = [Reply(status=500)]
        report = night(collection, 1, specs)
        assert report.notes == [
            "matches are not delivered (the command: it ended with 1): the next job tries again",
            "matches are not delivered (127.0.0.1: it answered 500): the next job tries again",
        ]
        assert (len(hook.requests), len(other.requests)) == (1, 1)  # one search after the other is not tried in vain
        hook.replies, hook.requests = [Reply(data=b"")], []
        ready.touch()
        report = night(collection, 2, specs)
    expected = {(name, f"{number:03}"): sorted(matching(number, name)) for name in NAMES for number in (1, 2)}
    assert delivered(hook) == expected
    assert report.searches["odd"].delivered == sum(len(matching(number, "odd")) for number in (1, 2))
    assert len(other.requests) == 2
    given = [{match["image_id"] for match in json.loads(line)["matches"]} for line in out.read_text().splitlines()]
    assert given == [matching(number, "odd").keys() for number in (1, 2)]


def test_a_new_or_changed_search_fills_the_column_and_reports_new_images_alone(
    collection: Collection, hook: ScriptedServer
) -> None:
    [odd, even] = searches(hook.url)
    night(collection, 0, [odd])
    night(collection, 1, [odd, even])
    assert delivered(hook) == {(name, "001"): sorted(matching(1, name)) for name in NAMES}
    assert {key for key, names in found_by(collection).items() if "even" in names} == {
        *matching(0, "even"),
        *matching(1, "even"),
    }
    hook.requests.clear()
    changed = odd.model_copy(update={"image_id": even.image_id})
    assert night(collection, 2, [changed]).searches["odd"].tested == 90
    assert delivered(hook) == {("odd", "002"): sorted(matching(2, "even"))}
    hook.requests.clear()
    night(collection, 3, [changed, even])  # which that job did not have, and which goes on where it was
    assert set(delivered(hook)) == {("odd", "003"), ("even", "002"), ("even", "003")}


def test_changed_pictures_are_new_and_those_that_are_gone_are_not_delivered(
    collection: Collection, hook: ScriptedServer
) -> None:
    specs = [each.model_copy(update={"min_score": -1}) for each in searches(hook.url)[:1]]
    night(collection, 0, specs)
    hook.replies = [Reply(status=503)]
    add_version(collection, hashed(rows(["gone", "000/05"], unit_vectors(2, 7)), "other content"))
    search(collection, specs)
    hook.replies, hook.requests = [Reply(data=b"")], []
    add_version(collection, deletes=["gone"])
    search(collection, specs)
    assert delivered(hook) == {("odd", "000"): ["000/05"]}


def test_a_job_that_is_killed_before_a_step_delivers_each_match_once(
    collection: Collection, hook: ScriptedServer
) -> None:
    specs = searches(hook.url)
    night(collection, 0, specs)
    for step in count(2, 9):  # all steps take a minute
        add_version(collection, hashed(rows(ids_of_night(step), vectors_of_night(step))))
        try:
            with at(is_number(step), after=False, action=kill):
                search(collection, specs)
            break
        except KilledError:
            expire(collection.storage)
    assert step > 10
    search(collection, specs)
    assert_delivered_once(hook, collection)


def assert_delivered_once(hook: ScriptedServer, collection: Collection) -> None:
    """Each match of all nights but the first is in the calls of one key, and calls with the same key are the same."""
    bodies: dict[str, Any] = {}
    for request in hook.requests:
        body = request.document
        assert bodies.setdefault(body["key"], body) == body
    present = {str(image_id)[:3] for image_id in collection.live_rows(["image_id"])["image_id"].to_pylist()}
    nights = [number for number in range(1, 1_000) if f"{number:03}" in present]
    for name in NAMES:
        mine = [body["matches"] for body in bodies.values() if body["search"] == name]
        ids = [match["image_id"] for matches in mine for match in matches]
        assert sorted(ids) == sorted(image_id for number in nights for image_id in matching(number, name))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", [12, pytest.param(50, marks=pytest.mark.long)])
def test_kills_lose_no_match_and_deliver_none_twice(collection: Collection, hook: ScriptedServer, wanted: int) -> None:
    night(collection, 0, searches(hook.url))
    rng, kills = random.Random(7), 0
    for number in count(1):
        command = [sys.executable, "-m", "tests.support.nights.searching_night", collection.location, hook.url]
        with subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            time.sleep(rng.uniform(0, 2.5))
            kills += process.poll() is None
            process.kill()
        if kills == wanted:
            break
    night(collection, number + 1, searches(hook.url))
    assert_delivered_once(hook, collection)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"image_id": "x", "filter": {"colour": "red"}},
            "the filter of the search 'a': unknown column 'colour'; .*label",
        ),
        ({"image_id": "x", "filter": {"label": {"$gte": 3}}}, "the filter of the search 'a': column 'label' .*got 3"),
        ({"image": "/no/such.png"}, "the picture of the search 'a' cannot be read: .*/no/such.png"),
        ({"image": str(ROOT / "Makefile")}, "the picture of the search 'a', .*Makefile: "),
        (
            {"image_id": "x", "notify": {"url": "https://hooks.example/${NO_SUCH_TOKEN}"}},
            "the search 'a' cannot notify: the environment variable NO_SUCH_TOKEN is not set: set it",
        ),
        (
            {"image_id": "x", "notify": {"url": "${HOME}/T0P-SECRET"}},
            "the search 'a' cannot notify: expected an http:// or https:// address in its environment variable$",
        ),
        ({"text": "a star"}, "the search 'a' is by words: no words here; show a picture instead"),
        ({"image": str(ROOT / "docs/neighbours.png")}, "the picture of the search 'a', .*: no direction"),
    ],
)
def test_a_search_that_will_not_work_is_known_before_the_night(
    collection: Collection, fields: dict[str, Any], message: str
) -> None:
    class Wordless(FakeEmbedder):
        def embed_texts(self, texts: object) -> Any:
            raise UnsupportedInputError("no words here")

        def embed_images(self, pictures: object) -> Any:
            raise EmbedError("no_direction", "no direction")

    listing = LISTING.append(pa.field("label", pa.string()))
    annotations = [{"name": "shade", "quality": True}]
    fine = {"name": "fine", "image_id": "x", "filter": {"shade_contrast": 1}}
    searches = [{"min_score": 0.5, **each} for each in (fine, {"name": "a", **fields})]
    job = JobSpec.model_validate({"source": "s", "collection": "c", "annotations": annotations, "searches": searches})
    broken = check_searches(job, collection, listing, MODEL, lambda _: Wordless()).broken
    assert broken.keys() == {"a"}
    assert re.match(message, broken["a"])


def test_a_broken_search_is_left_out_and_delivers_later_what_it_has_missed(
    collection: Collection, hook: ScriptedServer, tmp_path: Path
) -> None:
    [odd, even], away = searches(hook.url), tmp_path / "away.png"
    broken = [
        SearchSpec(name="no id", image_id="x", min_score=0),
        SearchSpec(name="no picture", image=str(away), min_score=0),
        SearchSpec(name="no column", image_id=odd.image_id, min_score=0, filter={"colour": "red"}),
    ]
    report = night(collection, 0, [odd, *broken])
    assert report.outcome == "failed"
    assert sorted(problem.split("'")[1] for problem in report.problems) == ["no column", "no id", "no picture"]
    assert report.searches.keys() == {"odd"}
    for number in (1, 2):
        night(collection, number, [odd, even.model_copy(update={"filter": {"colour": "red"}}), broken[1]])
    assert {name for name, _ in delivered(hook)} == {"odd"}
    hook.requests.clear()
    away.write_bytes(encode(Image.new("RGB", (40, 30), (200, 30, 90)), "png"))
    report = search(collection, [odd, even, broken[1].model_copy(update={"min_score": -1})], load=lambda _: FAKE)
    assert (report.problems, report.searches["no picture"].matched) == ([], 90)
    assert delivered(hook) == {("even", f"{number:03}"): sorted(matching(number, "even")) for number in (1, 2)}
    assert found_by(collection).keys() >= matching(0, "even").keys()


def test_an_image_waits_for_the_annotation_that_a_filter_names(collection: Collection, hook: ScriptedServer) -> None:
    """Its value is null for one night, because it was rejected and is tried again: it is tested once it has a value."""
    [odd, even], log = searches(hook.url), annotation_log(collection, "own")
    specs = [odd, even.model_copy(update={"name": "own", "filter": {"own": "ok"}})]

    def annotate(number: int, rejected: dict[str, bool]) -> None:
        ids = [key for key in ids_of_night(number) if key not in rejected]
        made = rows(
            ids, rejected=dict.fromkeys(rejected, "ValueError"), metadata={"own": [*["ok"] * len(ids), None, None]}
        )
        retryable = pa.array([*[False] * len(ids), *rejected.values()])
        add_run(log, hashed(made).append_column("retryable", retryable))

    def shown(key: str) -> dict[str, Any]:
        return {name: value for name, value in metadata_of(collection)[key].items() if not name.endswith("_scores")}

    annotate(0, dict.fromkeys(ids_of_night(0)[-2:], False))
    night(collection, 0, specs)
    late, never, *_ = matching(1, "even")
    annotate(1, {late: True, never: False})
    night(collection, 1, specs)
    found = {("odd", "001"): sorted(matching(1, "odd")), ("own", "001"): sorted({*matching(1, "even")} - {late, never})}
    assert delivered(hook) == found
    others = ["odd"] if late in matching(1, "odd") else []
    assert shown(late) == {"own": None, "searches": others, "searches_waiting": ["own"]}
    report = night(collection, 1, specs)  # still without a value
    assert (report.searches["own"].tested, delivered(hook)) == (1, found)
    add_run(log, hashed(rows([late], metadata={"own": ["ok"]})))
    hook.requests.clear()
    report = night(collection, 1, specs)
    assert (report.searches["own"].tested, delivered(hook)) == (1, {("own", "001"): [late]})
    assert shown(late) == {"own": "ok", "searches": [*others, "own"], "searches_waiting": None}
    assert night(collection, 1, specs).searches["own"].tested == 0
    assert len(hook.requests) == 1


def test_damaged_records_are_errors(collection: Collection) -> None:
    specs = searches(None)
    night(collection, 0, specs)
    folder = Path(collection.location) / "annotations" / "searches"
    (folder / "query-vectors.json").write_text("{}")
    night(collection, 1, specs)  # they are made again
    (folder / "delivered.json").write_text("{}")
    with pytest.raises(CollectionError, match=r"delivered\.json is damaged .*: restore it from a backup, or remove it"):
        search(collection, specs)


def test_a_job_from_a_file_reports_what_it_found(tmp_path: Path, run: Run) -> None:
    path = make_job(tmp_path)
    with path.open("a") as file:
        file.write("searches:\n  - {name: reds, image_id: red.png, min_score: 0.99, notify: {command: 'false'}}\n")
    dry = run("reembed", "--spec", path, "--dry-run")
    assert (dry.code, "3 images would be tested by 1 search" in dry.out) == (0, True), dry
    assert not (tmp_path / "collection" / "annotations").exists()
    report = tmp_path / "report.json"
    done = run("reembed", "--spec", path, "--report", report)
    assert (done.code, "reds matches 1 of 3 images" in done.out) == (0, True), done
    assert json.loads(report.read_text())["searches"] == {"reds": {"tested": 3, "matched": 1, "delivered": 0}}
    found = run("search", tmp_path / "collection", "--filter", '{"searches": "reds"}').out
    assert ("red.png" in found, "blue.png" in found) == (True, False)
    with path.open("a") as file:
        file.write("  - {name: reds, image_id: red.png, min_score: 2}\n")
    refused = run("reembed", "--spec", path)
    assert (refused.code, "searches.1.min_score: expected a number of at most 1" in refused.err) == (2, True)


def test_a_night_does_all_but_what_is_broken_and_publishes_once(tmp_path: Path, run: Run) -> None:
    path, collection = make_job(tmp_path), Collection.open(str(tmp_path / "collection"))
    annotations: dict[str, Any] = {"q": {"quality": True}, "bad": {"head": "no.onnx"}, "lone": {"outlier": True}}
    both = {"q_brightness": {"$lt": 2}, "lone": {"$gte": 0}}
    searches: dict[str, Any] = {
        "late": {"filter": {"bad": 1}},
        "none": {"image_id": "no.png"},
        "dark": {"filter": both},
    }

    def reembed(*without: str) -> Result:
        parts = {
            "annotations": [{"name": key, **each} for key, each in annotations.items() if key not in without],
            "searches": [
                {"name": key, "image_id": "red.png", "min_score": -1, **each}
                for key, each in searches.items()
                if key not in without
            ],
            "notify": {"on_failure": {"command": f"cat > {tmp_path / 'failed.json'}"}},
        }
        path.write_text(json.dumps({"source": "pictures", "collection": "collection", **parts}))
        return run("reembed", "--spec", path, "--report", tmp_path / "report.json")

    done = reembed()
    problems = (
        "the annotation bad: --head is .*no.onnx, .*No such file or directory.*; "
        "the search 'none' has image_id 'no.png', which is not in the collection: expected an id .*; "
        "the filter of the search 'late' needs bad, which is not up to date; all else is done, and the next job tries"
    )
    assert (done.code, "dark matches 3 of 3 images" in done.out) == (2, True), done
    [entry] = last_entries(collection, 2)
    report = json.loads((tmp_path / "report.json").read_text())
    for text in (
        done.err,
        str(entry.message),
        "; ".join(report["problems"]) + "; all else is done, and the next job tries",
    ):
        assert re.search(problems, text), text
    assert (entry.outcome, report["outcome"]) == ("failed", "failed")
    assert (tmp_path / "failed.json").exists()
    assert collection.versions() == ["000001", "000002"]
    assert {key: (row["searches"], row["lone"] >= 0) for key, row in metadata_of(collection).items()} == {
        key: (["dark"], True) for key in PLAIN
    }
    assert (reembed("bad", "late", "none").code, collection.current()) == (0, "000002")


def test_a_filter_may_need_an_annotation_that_the_job_does_not_list(tmp_path: Path, run: Run) -> None:
    path, collection = make_job(tmp_path), Collection.open(str(tmp_path / "collection"))
    path.write_text(
        path.read_text()
        + "searches: [{name: hand, image_id: red.png, min_score: -1, filter: {other_size: {$exists: true}}}]\n"
    )
    log, ids = annotation_log(collection, "other"), sorted(PLAIN)
    add_run(log, rows(ids[:-1], metadata={"other_size": range(len(ids) - 1)}))
    done = run("reembed", "--spec", path)
    message = (
        "the filter of the search 'hand' needs other_size, which is not up to date: list the annotation other in the "
        "job's file, or run `likeness annotate` before the next job"
    )
    assert (done.code, message in done.err) == (2, True), done
    add_run(log, rows(ids[-1:], metadata={"other_size": [7]}))
    done = run("reembed", "--spec", path)
    assert (done.code, "hand matches 3 of 3 images" in done.out) == (0, True), done
    # A selection is up to date without values for all.
    log.storage.delete("")
    picked = MODEL.model_copy(update={"id": "select --name other"})
    add_run(log, rows(ids[:1], metadata={"other_size": [7]}), model=picked)
    path.write_text(path.read_text().replace("min_score: -1", "min_score: -0.9"))
    done = run("reembed", "--spec", path)
    assert (done.code, "hand matches 1 of 3 images" in done.out) == (0, True), done


def test_what_somebody_rolled_back_stays_so_in_the_next_nights(tmp_path: Path, run: Run) -> None:
    path, collection = make_job(tmp_path), Collection.open(str(tmp_path / "collection"))
    extra = {
        "annotations": [{"name": "lone", "outlier": True}, {"name": "q", "quality": True}],
        "searches": [{"name": "red", "image_id": "red.png", "min_score": -1, "filter": {"lone": {"$gte": 0}}}],
    }
    path.write_text(json.dumps({"source": "pictures", "collection": "collection", **extra}))
    assert run("reembed", "--spec", path).code == 0
    add_run(collection, rows(["more.png"], unit_vectors(1, 9), uris=[str(tmp_path / "pictures" / "red.png")]))
    build_index(collection)
    assert run("reembed", "--spec", path).code == 0
    assert collection.versions() == ["000001", "000002", "000003", "000004"]
    for chosen in ("000003", "000002"):
        assert run("promote", collection.location, chosen).code == 0
        for _ in range(2):
            done = run("reembed", "--spec", path)
            assert (done.code, collection.current(), collection.versions()[-1]) == (0, chosen, "000004"), done
            [entry] = last_entries(collection, 1)
            sentence = f"000004 has these images and was rolled back, so it does not replace {chosen}:"
            assert (entry.outcome, str(entry.message).count(sentence), entry.index) == ("succeeded", 1, chosen)
            assert done.out.count(sentence) + done.err.count(sentence) == 1
