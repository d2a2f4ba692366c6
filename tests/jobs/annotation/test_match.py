"""Matches: the nearest of each image in another collection, or in its own, as columns and as a file of pairs."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.search import Searcher
from jobs.demo.collection import make_demo_collection
from tests.support.collections.hand_made import (
    MODEL,
    add_run,
    add_version,
    hashed,
    metadata_of,
    rows,
    unit_vectors,
    written_rows,
)
from tests.support.command_line import Run
from tests.support.nights.progress import kill_ten_times
from tests.support.pictures.onnx_graph import one_layer

OWN = [f"own/{number:02}.jpg" for number in range(30)]
OTHERS = [f"Ötzi/{number:02}.jpg" for number in range(40)]
QUERIES, VECTORS = unit_vectors(len(OWN), 1), unit_vectors(len(OTHERS), 2)


def table(ids: list[str], vectors: Any, content: str = "a") -> pa.Table:
    return hashed(rows(ids, vectors), content)


@pytest.fixture
def other(tmp_path: Path) -> Collection:
    other = Collection.create_or_open(str(tmp_path / "other"))
    add_version(other, table(OTHERS, VECTORS))
    return other


@pytest.fixture
def own(collection: Collection) -> Collection:
    add_version(collection, table(OWN, QUERIES))
    return collection


def exact(queries: Any, vectors: Any, ids: list[str], k: int) -> list[list[tuple[str, float]]]:
    """The k nearest of each query, by comparing all."""
    scores = queries @ vectors.T
    return [[(ids[n], float(row[n])) for n in np.argsort(-row)[:k]] for row in scores]


def found(collection: Collection, name: str = "seen") -> dict[str, list[tuple[str, float]]]:
    """The matches of each image that a search shows."""
    shown = metadata_of(collection)
    for row in shown.values():
        ids, scores = row[f"{name}_ids"], row[f"{name}_scores"]
        assert (row[name], row[f"{name}_score"]) == ((ids[0], scores[0]) if ids else (None, None))
    return {key: list(zip(row[f"{name}_ids"], row[f"{name}_scores"], strict=True)) for key, row in shown.items()}


def assert_exact(collection: Collection, expected: dict[str, list[tuple[str, float]]], name: str = "seen") -> None:
    matches = found(collection, name)
    assert matches.keys() == expected.keys()
    for key, pairs in expected.items():
        assert [image_id for image_id, _ in matches[key]] == [image_id for image_id, _ in pairs]
        assert [score for _, score in matches[key]] == pytest.approx([score for _, score in pairs], abs=1e-6)


def test_each_image_has_its_nearest_in_the_other_collection(own: Collection, other: Collection, run: Run) -> None:
    command = ["match", own.location, other.location, "--name", "seen", "-k", 5]
    pairs = Path(own.location).parent / "pairs.parquet"
    assert "30 of 30 images annotated" in run(*command, "--to", pairs).out
    expected = dict(zip(OWN, exact(QUERIES, VECTORS, OTHERS, 5), strict=True))
    assert_exact(own, expected)
    written = pq.read_table(pairs).to_pylist()
    assert [(row["image_id"], row["rank"]) for row in written] == [(key, n) for key in OWN for n in range(1, 6)]
    assert [row["match_id"] for row in written] == [match for key in OWN for match, _ in expected[key]]
    assert all(
        (row["uri"], row["match_uri"]) == tuple(f"memory:{row[n]}" for n in ("image_id", "match_id")) for row in written
    )
    assert "30 were up to date" in run(*command).out
    # Ids are no words, unlike other texts, but filters find them.
    assert Searcher.open(own).segments.parts[0].words.columns.keys() == {"uri"}
    fifth = expected[OWN[0]][4][0]
    assert metadata_of(own, {"seen_ids": fifth}).keys() == {key for key in OWN if fifth in dict(expected[key])}
    near = {key for key in OWN if expected[key][0][1] >= 0.8}
    assert metadata_of(own, {"seen_score": {"$gte": 0.8}}).keys() == near
    # The other collection may have fewer images than k.
    run("match", own.location, other.location, "--name", "all", "-k", 100)
    assert_exact(own, dict(zip(OWN, exact(QUERIES, VECTORS, OTHERS, 40), strict=True)), "all")


def test_an_image_is_no_match_of_itself(own: Collection, run: Run, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(own.location)
    assert "30 of 30 images annotated" in run("match", own.location, link, "--name", "seen", "-k", 2).out
    scores = QUERIES @ QUERIES.T
    np.fill_diagonal(scores, -np.inf)
    nearest = [[(OWN[n], float(row[n])) for n in np.argsort(-row)[:2]] for row in scores]
    assert_exact(own, dict(zip(OWN, nearest, strict=True)))
    # The version that has these columns has the same images.
    assert "30 were up to date" in run("match", own.location, own.location, "--name", "seen", "-k", 2).out


def test_images_without_a_match(collection: Collection, other: Collection, run: Run, tmp_path: Path) -> None:
    add_run(collection, rows([], unit_vectors(0), rejected={"a.jpg": "truncated"}))
    command = ["match", collection.location, other.location, "--name", "seen"]
    assert "0 of 0 images annotated" in run(*command).out
    done = run(*command, "--to", tmp_path / "pairs.parquet")
    assert (done.code, "has no images with a vector" in done.err) == (2, True)
    add_version(collection, table(OWN[:1], QUERIES[:1]))
    assert run("match", collection.location, collection.location, "--name", "seen").code == 0
    assert found(collection) == {OWN[0]: []}


def test_new_images_of_both_sides_are_matched(own: Collection, other: Collection, run: Run) -> None:
    command = ["match", own.location, other.location, "--name", "seen", "-k", 2]
    run(*command)
    more = unit_vectors(5, 3)
    added = [f"new/{number}.jpg" for number in range(5)]
    add_version(own, table(added, more))
    assert "5 of 35 images annotated, 30 were up to date" in run(*command).out
    # An annotation of the other collection changes none of its vectors.
    run("match", other.location, other.location, "--name", "twin")
    assert "0 of 35 images annotated" in run(*command).out
    add_run(other, table(added, more), deletes=OTHERS[:10])
    build_index(other)
    assert "35 of 35 images annotated" in run(*command).out
    queries, vectors = np.concatenate([QUERIES, more]), np.concatenate([VECTORS[10:], more])
    expected = exact(queries, vectors, [*OTHERS[10:], *added], 2)
    assert_exact(own, dict(zip([*OWN, *added], expected, strict=True)))


def test_wrong_arguments(own: Collection, other: Collection, run: Run, tmp_path: Path) -> None:
    places = {name: str(tmp_path / name) for name in ("empty", "unindexed", "stranger", "pictures")}
    places |= {"own": own.location, "other": other.location}
    Collection.create_or_open(places["empty"])
    add_run(Collection.create_or_open(places["unindexed"]), table(OTHERS, VECTORS))
    stranger = MODEL.model_copy(update={"fingerprint": "b" * 64})
    add_version(Collection.create_or_open(places["stranger"]), table(OTHERS, VECTORS), model=stranger)
    Path(places["pictures"]).mkdir()
    (Path(places["pictures"]) / "a.jpg").write_bytes(b"")
    for arguments, message in (
        (["{own}", "{empty}", "--name", "seen"], "has no index to search: embed images first"),
        (["{own}", "{unindexed}", "--name", "seen"], "has no index to search: build one with `likeness index`"),
        (["{own}", "{stranger}", "--name", "seen"], "with the other's model (`likeness reembed --model`)"),
        (["{empty}", "{other}", "--name", "seen"], "nothing is embedded yet"),
        (["{pictures}", "{other}"], "is not a collection: expected one, or for a source of pictures --to"),
        (["{own}", "{pictures}", "--name", "seen"], "is not a collection"),
        (["{own}", "{other}", "--name", "seen", "-k", "0"], "-k"),
        (["{own}", "{other}", "--name", "seen", "--to", "{pictures}"], "that ends in .parquet"),
    ):
        refused = run("match", *(each.format(**places) for each in arguments))
        assert (refused.code, message in refused.err) == (2, True), refused.err


_SMALL_BLOCKS = """
import jobs.annotation.annotate
from likeness.cli.app import main

jobs.annotation.annotate._VECTOR_BLOCK = 20
main()
"""


@pytest.mark.slow
def test_a_job_killed_ten_times_matches_every_image_once(
    collection: Collection, other: Collection, tmp_path: Path
) -> None:
    ids, vectors = [f"{number:04}" for number in range(4_000)], unit_vectors(4_000, 4)
    add_version(collection, table(ids, vectors))
    arguments = ["match", collection.location, other.location, "--name", "seen", "-k", "2"]
    command = [sys.executable, "-c", _SMALL_BLOCKS, *arguments]
    log, runs = annotation_log(collection, "seen"), Path(collection.location) / "annotations" / "seen" / "runs"
    kill_ten_times(command, lambda: len(list(runs.rglob("*.parquet"))), longest_s=0.03)
    [run] = log.runs()
    written = written_rows(log, run, log.files_of(run)).read(["image_id"])
    assert sorted(map(str, written["image_id"].to_pylist())) == ids
    annotated = log.snapshot().live.read(["image_id", "seen_ids"]).to_pylist()
    expected = exact(vectors, VECTORS, OTHERS, 2)
    assert {str(row["image_id"]): row["seen_ids"] for row in annotated} == {
        key: [match for match, _ in pairs] for key, pairs in zip(ids, expected, strict=True)
    }


@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("cluster")
def test_columns_of_stored_vectors_are_the_same_on_ray(
    own: Collection, other: Collection, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.cluster.session.ray_cluster", lambda *_, **__: nullcontext())  # the shared one
    monkeypatch.setattr("jobs.annotation.annotate._VECTOR_BLOCK", 7)
    (tmp_path / "head.onnx").write_bytes(one_layer(QUERIES[:1]))
    marks = [f"{key},{mark}\n" for key, mark in zip(OWN, ("like", "like", "unlike", "unlike"), strict=False)]
    (tmp_path / "marks.csv").write_text("".join(["image_id,label\n", *marks]))
    demo = make_demo_collection(tmp_path / "demo", count=30)
    for name, collection, *command in (
        ("seen", own, "match", own.location, other.location, "-k", 3),
        ("points", own, "annotate", own.location, "--head", tmp_path / "head.onnx"),
        ("nice", own, "annotate", own.location, "--examples", tmp_path / "marks.csv"),
        ("shape", demo, "annotate", demo.location, "--label", "a star", "--label", "a moon"),
        ("kind", demo, "annotate", demo.location, "--clusters", 3),
    ):
        for on in ("local", "ray"):
            done = run(*command, "--name", f"{name}_{on}", "--on", on)
            assert "30 of 30 images annotated" in done.out, done.err
            assert ("on Ray: as requested" in done.out) == (on == "ray")
        here, there = (annotation_log(collection, f"{name}_{on}") for on in ("local", "ray"))
        [written] = there.runs()
        assert sorted(file.rows for file in there.files_of(written)) == [2, 7, 7, 7, 7]
        lives = [log.snapshot().live for log in (here, there)]
        tables = [live.read(["image_id", *live.metadata]).sort_by("image_id") for live in lives]
        assert tables[0].equals(tables[1].rename_columns(tables[0].column_names))
    job: dict[str, Any] = {"source": str(tmp_path / "demo" / "pictures"), "collection": demo.location}
    labels = {"name": "shape_job", "labels": ["a star", "a moon"]}
    (tmp_path / "job.yaml").write_text(json.dumps(job | {"resources": {"on": "ray"}, "annotations": [labels]}))
    assert "shape_job: 30 images annotated" in run("reembed", "--spec", tmp_path / "job.yaml").out


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_actors_reserve_what_the_other_index_keeps_in_memory(
    own: Collection, other: Collection, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.cluster.session.ray_cluster", lambda *_, **__: nullcontext())  # the shared one
    manifest = other.read_version("000001")
    large = [segment.model_copy(update={"memory": 1 << 50}) for segment in manifest.segments]
    path = Path(other.location) / "index" / "000001" / "manifest.json"
    path.write_bytes(manifest.model_copy(update={"segments": large}).to_bytes())
    refused = run("match", own.location, other.location, "--name", "seen", "--on", "ray")
    assert refused.code == 2
    assert "an actor needs 1,073,742,848 MiB, but no node has more than" in refused.err  # 2³⁰ of them, and a GiB
