"""The command line: what it prints about a small collection, and the one line that a usage error gets."""

import csv
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from PIL import Image

from embedder.errors import ModelError
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from index.collection import Collection, writing
from index.collection.records.version_manifest import KindRecord
from index.collection.rows import row_schema
from index.queries import QueryKind, mix
from index.search import Searcher
from index.versions.prune import GRACE
from jobs.embedding.model_source import model_record
from jobs.values import DEFAULT_MODEL, parse_limit
from likeness.cli import app
from likeness.cli.embed import next_commands
from likeness.cli.options import console
from tests.support.collections.hand_made import add_version, searcher_of, unit_vectors
from tests.support.collections.small_collection import COLOURS, PLAIN, embedded_row
from tests.support.collections.storage_steps import at, is_number, is_step
from tests.support.command_line import Result, Run
from tests.support.listings import put, write_files
from tests.support.processes import python

COMMANDS = (
    *("embed", "reembed", "annotate", "match", "columns", "select", "schedule", "watch", "history", "index", "search"),
    *("serve", "rejects", "info", "evaluate", "duplicates", "versions", "promote", "rollback", "prune", "compact"),
    *("export", "import", "demo", "keys"),
)


def facts_of(run: Run, *arguments: str | Path) -> Any:
    """What a command prints as JSON."""
    return json.loads(run(*arguments, "--format", "json").out)


def matches_of(run: Run, *arguments: str | Path) -> Any:
    """The matches of a search."""
    return facts_of(run, "search", *arguments)["matches"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "width", 200)
    return run


def test_sigterm_ends_a_command_like_ctrl_c(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(app, "app", lambda: signal.raise_signal(signal.SIGTERM))
    try:
        assert run("embed") == Result(130, "", "interrupted\n")
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("made") / "pictures", PLAIN)


@pytest.fixture(scope="module")
def collection(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three pictures and a reject, embedded with the demo model and indexed, and an unfinished run."""
    embedder = ClipEmbedder.load(str(DEMO_MODEL), device="cpu")
    model = model_record(embedder.identity)
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("made") / "collection"))
    schema = row_schema(model.dim, [pa.field("label", pa.string()), pa.field("weight", pa.float64())])
    rows = [
        embedded_row(name, str(pictures / name), (pictures / name).read_bytes(), embedder)
        | {"label": f"[b]{name[:-4]}", "weight": float("nan")}
        for name in COLOURS
    ]
    rows.append(reject("bad [red].jpg", "truncated", "ends\nearly"))
    add_version(collection, pa.Table.from_pylist(rows, schema=schema), model=model, source=str(pictures))
    stopped = collection.start_run(str(pictures), model)
    late = pa.Table.from_pylist([reject("late.jpg", "timeout", "late")], schema=schema)
    collection.write_rows(stopped.run_id, "0001-a", late)
    return Path(collection.location)


def reject(image_id: str, reason: str, message: str) -> dict[str, Any]:
    stage = "decode" if reason == "truncated" else "fetch"
    error = {"error_stage": stage, "error_reason": reason, "error_message": message, "retryable": stage == "fetch"}
    return {"image_id": image_id, "uri": f"/x/{image_id}", **error}


# Answers


def test_search_by_picture(run: Run, collection: Path, pictures: Path) -> None:
    result = run("search", collection, pictures / "green.png", "-k", "2", "--format", "json")
    assert (result.code, result.err) == (0, "")
    first, second = json.loads(result.out)["matches"]
    assert (first["image_id"], first["uri"]) == ("green.png", str(pictures / "green.png"))
    assert first["score"] == pytest.approx(1.0, abs=1e-3)  # torch embedded it, in fp32
    assert first["metadata"]["label"] == "[b]green"
    assert first["metadata"]["weight"] is None  # JSON has no NaN
    assert second["score"] < first["score"]


def test_search_by_words(run: Run, collection: Path) -> None:
    matches = matches_of(run, collection, "--text", "a red star")
    assert {match["image_id"] for match in matches} == set(COLOURS)
    assert [match["score"] for match in matches] == sorted((match["score"] for match in matches), reverse=True)


def test_search_by_id_or_for_words_alone_loads_no_model(
    run: Run, collection: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedder.models.load.conversion_folder", lambda *_, **__: pytest.fail("a model was loaded"))
    matches = matches_of(run, collection, "--like", "red.png")
    assert sorted(match["image_id"] for match in matches) == ["blue.png", "green.png"]  # itself left out
    best, second = matches
    ((only,)) = matches_of(run, collection, "--like", "red.png", "--offset", "1")
    assert only == second
    result = run("search", collection, "--like", "red.png", "--min-score", str(best["score"]), "--format", "json")
    assert json.loads(result.out)["matches"] == [best]
    where = json.dumps({"image_id": {"$in": ["red.png", "blue.png"]}})
    (blue,) = matches_of(run, collection, "--like", "red.png", "--filter", where)
    assert blue["image_id"] == "blue.png"
    for distinct in ("True", "false", "0.98"):
        assert matches_of(run, collection, "--like", "red.png", "--distinct", distinct) == matches
    (red,) = matches_of(run, collection, "--text", "red", "--words", "only")
    assert red["image_id"] == "red.png"
    table = run("search", collection, "--like", "red.png", "--distinct", "-1").out.splitlines()
    assert table[0].split() == ["rank", "score", "percentile", "image_id", "uri", "duplicates", "label", "weight"]
    assert best["percentile"] > second["percentile"]
    score, percentile, where = f"{best['score']:.3f}", f"{best['percentile']:.3f}", str(pictures / best["image_id"])
    row = ["1", score, percentile, best["image_id"], where, second["image_id"]]
    assert (len(table), table[1].split()[:6]) == (2, row)


def test_search_by_several_ids(run: Run, collection: Path) -> None:
    both: list[str | Path] = ["search", collection, "--like", "red.png", "--like", "blue.png"]
    (only,) = facts_of(run, *both)["matches"]
    searcher = Searcher.open(Collection.open(str(collection)))
    assert (only["image_id"], only["percentile"]) == ("green.png", searcher.percentile(only["score"], "mix"))


IDS = ("sku:1000", "sku:1002", "item", "item:2", "item:2:.5", "a/b:c.png", "http://host:8080/a.png", "C", ":4", "a:-1")


@pytest.mark.parametrize(
    ("option", "example", "image_id", "weight"),
    [
        *(("--like", image_id, image_id, None) for image_id in IDS),
        ("--unlike", "sku:1002", "sku:1002", None),
        ("--unlike", "item:3", "item", 3),
        ("--like", "sku:1002:0.4", "sku:1002", 0.4),
        ("--like", "item:2:1", "item:2", 1),
        ("--like", "item:3", "item", 3),
        ("--like", "item:2:.5:2", "item:2:.5", 2),
        ("--like", "a/b:c.png:2", "a/b:c.png", 2),
        ("--like", "http://host:8080/a.png:.5", "http://host:8080/a.png", 0.5),
        ("--like", "C:7", "C", 7),
        ("--like", ":4:0.25", ":4", 0.25),
        ("--unlike", "a/b:c.png:0.5", "a/b:c.png", 0.5),
    ],
)
def test_only_a_number_after_an_id_is_a_weight(
    run: Run, ids_with_colons: Path, option: str, example: str, image_id: str, weight: float | None
) -> None:
    searcher = Searcher.open(Collection.open(str(ids_with_colons)))
    other: list[str] = [] if option == "--like" else ["--like", "other"]
    named = [image_id, *other[1:]]
    default = 1 if option == "--like" else 0.3
    weights = [(weight or default) * (1 if option == "--like" else -1), *[1 for _ in other[1:]]]
    query = mix([searcher.vector(name) for name in named], weights)
    ((*expected,),) = searcher.search([query], 3, exclude=named)
    found = matches_of(run, ids_with_colons, option, example, *other, "-k", "3")
    assert [(each["image_id"], each["score"]) for each in found] == [(each.image_id, each.score) for each in expected]


@pytest.mark.parametrize(
    "example", ["sku:10", "sku:", "other:-1", "other:", "other:1e3", "other:\u0661", "none:2", "x"]
)
def test_an_id_that_the_index_lacks_is_named_whole(run: Run, ids_with_colons: Path, example: str) -> None:
    result = run("search", ids_with_colons, "--like", example)
    assert (result.code, result.out) == (2, "")
    assert f"has no image {json.dumps(example, ensure_ascii=False)}" in result.err


@pytest.fixture(scope="module")
def ids_with_colons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = tmp_path_factory.mktemp("colons") / "collection"
    names = [*IDS, "other"]
    searcher_of(location, names, unit_vectors(len(names)))
    return location


def test_search_by_a_part_of_a_picture(run: Run, collection: Path, pictures: Path, tmp_path: Path) -> None:
    both = Image.new("RGB", (96, 48), COLOURS["red.png"])
    both.paste(COLOURS["blue.png"], (48, 0, 96, 48))
    both.save(tmp_path / "both.png")
    (best, *_) = matches_of(run, collection, tmp_path / "both.png", "--crop", "0.5,0,0.5,1")
    assert (best["image_id"], best["score"]) == ("blue.png", pytest.approx(1, abs=1e-3))
    whole = matches_of(run, collection, "--like", "red.png")
    part = matches_of(run, collection, "--like", "red.png", "--crop", "0,0,0.5,0.5", "--diversity", "0.2")
    assert {match["image_id"] for match in part} == {match["image_id"] for match in whole}
    bar = str(whole[0]["percentile"])
    assert matches_of(run, collection, "--like", "red.png", "--min-percentile", bar) == whole[:1]


def test_duplicates(run: Run, collection: Path) -> None:
    similar: list[str | Path] = ["duplicates", collection, "--kinds", "similar", "--min-score"]
    (group,) = facts_of(run, *similar, "-1")["found"]
    assert {group["keep"]["image_id"], *(each["image_id"] for each in group["duplicates"])} == set(COLOURS)
    assert "1 group: 2 similar" in run(*similar, "-1").out
    assert run("duplicates", collection, "--min-score", "1").out.strip() == "no duplicates"
    refused = run("duplicates", collection, "--kinds", "odd").err
    assert "--kinds names odd: expected some of identical_bytes, " in refused
    header, *rows = csv.reader(run(*similar, "-1", "--format", "csv").out.splitlines())
    assert [dict(zip(header, row, strict=True))["kind"] for row in rows] == ["best", "similar", "similar"]


def test_duplicates_are_moved_and_moved_back(run: Run, pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "own")
    shutil.copy(tmp_path / "own" / "red.png", tmp_path / "own" / "red copy.png")
    assert run("embed", tmp_path / "own", "c", "--model", "demo", "--on", "local").code == 0
    _, *rows = csv.reader(run("duplicates", "c", "--kinds", "identical_bytes", "--format", "csv").out.splitlines())
    assert [row[1] for row in rows] == ["keep", "identical_bytes"]
    unnamed = run("duplicates", "c", "--move-to", "aside")
    assert (unnamed.code, f"images come from {tmp_path}/own" in unnamed.err.replace("\n", "")) == (2, True)
    move = ("duplicates", "c", "--kinds", "identical_bytes", "--move-from", "own", "--move-to", "aside")
    moved = run(*move)
    assert (moved.code, "1 file moved" in moved.err) == (0, True)
    (aside,) = (tmp_path / "aside").glob("*.png")
    assert aside.name in ("red.png", "red copy.png")  # the older one stays
    assert not (tmp_path / "own" / aside.name).exists()
    again = run(*move)
    assert (again.code, "1 file had been moved before" in again.err) == (0, True)
    back = run("duplicates", "c", "--undo", "aside/moved.jsonl")
    assert (back.code, "1 file moved back" in back.err) == (0, True)
    assert (tmp_path / "own" / aside.name).exists()
    assert run("duplicates", "c", "--undo", "aside/moved.jsonl", "--move-to", "aside").code == 2


def test_a_model_that_has_moved_can_be_named(run: Run, collection: Path, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "moved").symlink_to(DEMO_MODEL)
    for model in ("demo", "moved"):
        result = run("search", collection, pictures / "red.png", "--model", model, "-k", "1")
        assert "red.png" in result.out


def test_every_command_that_needs_the_model_takes_its_new_place(run: Run, pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(DEMO_MODEL, tmp_path / "old")
    assert run("embed", pictures, "c", "--model", tmp_path / "old", "--on", "local").code == 0
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "queries.txt").write_text("".join(f"a red star, {number}\n" for number in range(50)))
    commands = (
        ("search", "c", "--text", "red"),
        ("annotate", "c", "--name", "colour", "--label", "red", "--label", "blue"),
        ("index", "c", "--queries", "queries.txt"),
        ("match", pictures, "c", "--to", "pairs.parquet", "--on", "local"),
    )
    for command in commands:
        refused = run(*command)
        assert refused.code == 2
        assert re.search("there is no folder .*old: .*has moved, name its new place: --model", refused.err)
        assert run(*command, "--model", tmp_path / "new").code == 0
    settings = tmp_path / "new" / "processor_config.json"
    other = Path(shutil.copytree(tmp_path / "new", tmp_path / "other")) / settings.name
    other.write_text(settings.read_text().replace('"rescale_factor": ', '"rescale_factor": 2e0, "was": '))
    refused = run("annotate", "c", "--name", "mood", "--label", "good", "--model", other.parent)
    assert re.search("--model names .*other .*, but the collection was embedded with .*old", refused.err)
    job: dict[str, Any] = {"source": str(pictures), "collection": "c", "model": "./new", "resources": {"on": "local"}}
    job["annotations"] = [{"name": "warmth", "labels": ["warm", "cold"]}]
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    assert run("reembed", "--spec", "job.yaml").code == 0
    assert facts_of(run, "info", "c")["model"]["id"] == str(tmp_path / "new")  # from now on it is known
    assert run("search", "c", "--text", "red").code == 0
    before = facts_of(run, "info", "c")
    assert run("reembed", "--spec", "job.yaml").code == 0
    assert facts_of(run, "info", "c") == before


def test_info(run: Run, collection: Path) -> None:
    facts = facts_of(run, "info", collection)
    assert facts["collection"] == str(collection)
    assert (facts["embedded"], facts["rejected"], facts["runs"], facts["unfinished_runs"]) == (3, 1, 1, 1)
    assert (facts["model"]["id"], facts["model"]["dim"]) == (str(DEMO_MODEL), 64)
    assert facts["columns"] == Searcher.open(Collection.open(str(collection))).filterable
    assert facts["columns"]["width"] == "int32"
    index = facts["index"]
    assert (index["version"], index["ntotal"], index["kind"], index["up_to_date"]) == ("000001", 3, "Flat", True)
    assert (index["tombstones"], index["base"], index["memory"] > 0) == (0, None, True)
    assert (index["recall"], index["settings"]["target_recall"]) == ({"1": 1.0, "10": 1.0, "100": 1.0}, 0.99)
    (segment,) = index["segments"].values()
    assert (segment["kind"], segment["ntotal"], index["choice"][0]["name"]) == ("Flat", 3, "Flat")
    lines = [line.split() for line in run("info", collection).out.splitlines()]
    for line in (["embedded", "3"], ["index", "version", "000001"], ["index", "recall@10", "1.0000"]):
        assert line in lines
    segments = lines.index(["segment", "kind", "images", "tombstones", "memory"])
    assert lines[segments + 1][:4] == ["000001-00", "Flat", "3", "0"]
    assert lines[segments + 3] == ["index", "memory", "why"]
    assert [line[0] for line in lines if "chosen" in line] == ["Flat"]


def test_info_of_an_index_that_cannot_be_read(run: Run, growing: Path) -> None:
    (growing / "index/000001/manifest.json").write_text("{}")
    assert "index/000001/manifest.json is damaged" in run("info", growing).out


def test_rejects(run: Run, collection: Path) -> None:
    rows = facts_of(run, "rejects", collection)
    assert [(row["image_id"], row["error_reason"], row["retryable"]) for row in rows] == [
        ("bad [red].jpg", "truncated", False),
        ("late.jpg", "timeout", True),
    ]
    assert facts_of(run, "rejects", collection, "--reason", "timeout") == rows[1:]
    table = run("rejects", collection).out
    assert "bad [red].jpg\ttruncated\tends early\n" in table
    assert "timeout: 1, truncated: 1" in table
    none = run("rejects", collection, "--reason", "nothing").out
    assert none == "no rejects for 'nothing'; there are these: timeout: 1, truncated: 1\n"


# Versions


@pytest.fixture
def growing(collection: Path, tmp_path: Path) -> Path:
    """A copy of the collection, which tests may change."""
    shutil.copytree(collection, tmp_path / "growing")
    return tmp_path / "growing"


def test_commands_exit_with_75_while_another_job_writes(run: Run, growing: Path) -> None:
    with writing(Collection.open(str(growing)), "reembed"):
        for command in (["index", growing], ["compact", growing], ["prune", growing]):
            result = run(*command)
            assert result.code == 75
            assert "is being written by `likeness reembed`" in result.err
        assert run("promote", growing, "000001").code == 0  # an operator does not wait for a job of hours
        assert run("info", growing).code == 0
    assert run("index", growing).out == "index 000001 already covers every row: 3 images\n"


def test_commands_exit_with_75_when_another_version_was_made_live_meanwhile(run: Run, growing: Path) -> None:
    collection = Collection.open(str(growing))
    for _ in range(3):
        run("compact", growing)
    for path in growing.rglob("superseded"):
        os.utime(path, (path.stat().st_mtime - 2 * GRACE.total_seconds(),) * 2)
    with at(is_number(1), after=True, action=lambda: collection.promote("000003", "000004")):
        result = run("prune", growing, "--keep", "2")
    assert (result.code, "so pruning was stopped: run it again" in result.err) == (75, True)
    with at(is_step("version manifest"), after=True, action=lambda: collection.promote("000004", "000003")):
        result = run("compact", growing)
    assert (result.code, "000004 was made live while 000005 was built" in result.err) == (75, True)
    assert collection.current() == "000004"


def test_index_takes_settings_and_prints_the_outcome(run: Run, growing: Path) -> None:
    result = run("index", growing, "--target-recall", "0.9", "--max-memory", "2 GiB", "--segment-rows", "1000")
    assert result.code == 0
    assert result.out.startswith("index 000002 is live: 3 images, Flat, recall@10 1.0000, in ")
    assert result.out.count("\n") == 1  # `likeness info` has the rest
    settings = facts_of(run, "info", growing)["index"]["settings"]
    assert settings == {
        **{"target_recall": 0.9, "max_memory": 2 * 1024**3, "segment_rows": 1000, "latency_ms": 5.0, "factory": None},
        "queries": None,
        "words": None,
    }
    for words, columns in (("none", []), ("all", None)):
        assert run("index", growing, "--max-memory", "none", "--latency", "7.5", "--words", words).code == 0
        changed: dict[str, Any] = {
            "max_memory": None,
            "latency_ms": 7.5,
            "words": columns,
        }  # the others stay as they were
        assert facts_of(run, "info", growing)["index"]["settings"] == settings | changed


def test_a_version_is_promoted_rolled_back_and_pruned(run: Run, growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "index 000002 is built but not live" in run("index", growing, "--latency", "4", "--no-promote").out
    assert Collection.open(str(growing)).current() == "000001"
    assert "index 000002 is live: 3 images, recall@10 1.0000" in run("promote", growing, "2").out
    assert "expected a version's number, such as 000002 or 2, got '../1'" in run("promote", growing, "../1").err
    assert "index 000003 is live" in run("compact", growing).out
    assert "index 000002 is live, in place of 000003: 3 images" in run("rollback", growing).out
    facts = facts_of(run, "versions", growing)
    assert [(each["version"], each["live"], each["ntotal"]) for each in facts] == [
        ("000001", False, 3),
        ("000002", True, 3),
        ("000003", False, 3),
    ]
    table = [line.split()[:3] for line in run("versions", growing).out.splitlines()]
    assert [line[:2] for line in table[1:]] == [["000001", table[1][1]], ["000002", "live"], ["000003", "rolled"]]
    assert "000001\tleft: index version 000002 replaced it within 1:00:00" in run("prune", growing, "--keep", "1").out
    monkeypatch.setattr("index.versions.prune.GRACE", timedelta(0))
    plan = facts_of(run, "prune", growing, "--keep", "1", "--dry-run")
    assert (plan["versions"], plan["segments"], plan["dry_run"]) == (["000001"], ["000001-00"], True)
    assert "would be freed" in run("prune", growing, "--keep", "1", "--dry-run").out
    removed = run("prune", growing, "--keep", "1").out
    assert "000001-00\tsegment" in removed
    assert removed.rstrip().endswith(" freed")
    assert Collection.open(str(growing)).versions() == ["000002", "000003"]
    assert run("prune", growing).out == "nothing to remove\n"


def test_a_recall_below_the_target_fails_the_job(run: Run, growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poor: dict[QueryKind, KindRecord] = {"image": KindRecord(queries=3, recall=0.5, width=1)}
    monkeypatch.setattr("index.builder.version.measure_kinds", lambda _, held_out, *__: (poor, held_out))
    monkeypatch.setattr("index.builder.version.measure_recall", lambda _, held_out, **__: ({"10": 0.5}, held_out))
    result = run("compact", growing)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert ["recall@10", "0.5000"] in [line.split() for line in result.out.splitlines()]  # seen, though refused
    assert "\tchosen\t" in result.out
    assert "0.5" in result.err
    assert "--target-recall" in result.err
    assert Collection.open(str(growing)).current() == "000001"
    assert ["000002", "low", "recall"] in [line.split()[:3] for line in run("versions", growing).out.splitlines()]
    assert "it reaches recall@10 0.5, expected 0.99 or more" in run("promote", growing, "000002").out


def test_invalid_index_settings(run: Run, growing: Path) -> None:
    for size in ("lots", "0", "3 parsecs", "9" * 400):
        message = f"--max-memory is '{size}': expected a size such as 600MB"
        assert_one_line(run("index", growing, "--max-memory", size), message)
    assert_one_line(run("index", growing, "--factory", "Nonsense7"), "Nonsense7")
    assert_one_line(run("index", growing, "--latency", "0"), "--latency is 0.0: expected a value greater than 0")
    assert Collection.open(str(growing)).versions() == ["000001"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("500", 500), ("600MB", 600_000_000), ("2GiB", 2 * 1024**3), ("1.5 kb", 1_500), ("1TB", 10**12), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_limit(text) == size


# Help


@pytest.mark.parametrize("command", [*COMMANDS, "keys add"])
def test_help_has_an_example_and_no_type_for_flags(run: Run, command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.code == 0
    assert command == "keys add" or f"likeness {command}" in result.out.partition("Example")[2]
    assert "<bool>" not in result.out


def test_help_names_every_command_and_the_version_is_that_of_the_package(run: Run) -> None:
    result = run("--help")
    assert all(command in result.out for command in COMMANDS)
    assert run("--version") == Result(0, f"likeness {importlib.metadata.version('likeness')}\n", "")


# Usage errors


def assert_one_line(result: Result, *parts: str) -> None:
    assert (result.code, result.out, result.err.partition(" ")[0], result.err.count("\n")) == (2, "", "error:", 1)
    for part in parts:
        assert part in result.err


def test_invalid_sources_and_collections(run: Run, pictures: Path, tmp_path: Path) -> None:
    assert_one_line(run("embed", "", "y"), "SOURCE is empty")
    assert_one_line(run("embed", "x", ""), "COLLECTION is empty")
    assert_one_line(
        run("embed", "gone", "made", "--model", "demo"), "gone does not exist", f"nearest existing folder is {tmp_path}"
    )
    (tmp_path / "list.csv").write_text("path\na.jpg\n")
    assert_one_line(
        run("embed", "list.csv", "made", "--model", "demo"), "has no column `uri` or `url` or `file_name`; its columns"
    )
    assert_one_line(run("embed", pictures, "list.csv/made", "--model", "demo"), "list.csv/made")
    others = "files that are not a collection's: list.csv"
    assert_one_line(run("embed", pictures, tmp_path), others, "another folder")
    assert [path.name for path in tmp_path.iterdir()] == ["list.csv"]


def test_a_missing_model(run: Run, pictures: Path, tmp_path: Path) -> None:
    hub = run("embed", pictures, "made", "--model", "no/such-model")
    assert_one_line(hub, "model 'no/such-model' is neither a folder nor in the cache", "hf download no/such-model")
    assert_one_line(run("embed", pictures, "made", "--model", "./gone"), "there is no folder", "config.json")
    assert_one_line(run("embed", pictures, "made"), f"model '{DEFAULT_MODEL}' is neither a folder nor in the cache")
    assert not (tmp_path / "made").exists()


def test_a_collection_of_another_model(run: Run, collection: Path, tmp_path: Path) -> None:
    model = shutil.copytree(DEMO_MODEL, tmp_path / "other")
    processor = model / "processor_config.json"
    processor.write_text(processor.read_text().replace("0.4814", "0.4815"))
    assert_one_line(run("search", collection, "--text", "x", "--model", model), "fingerprint")


@pytest.mark.parametrize(
    "command",
    [
        *("index", "search --text x", "search x.jpg", "search --like x", "serve", "serve --local", "info", "rejects"),
        *("versions", "promote 000001", "rollback", "prune", "compact", "duplicates"),
    ],
)
def test_a_missing_collection(run: Run, tmp_path: Path, command: str) -> None:
    name, *options = command.split()
    assert_one_line(run(name, "gone", *options), "gone does not exist: make a collection with `likeness embed`")
    (tmp_path / "folder").mkdir()
    assert_one_line(run(name, "folder", *options), "folder is not a collection: expected runs/ in it")


def test_a_collection_without_an_index(run: Run, tmp_path: Path) -> None:
    Collection.create_or_open(str(tmp_path / "new"))
    assert_one_line(run("index", "new"), "embed images first with `likeness embed`")
    for search in (("search", "new", "--text", "x"), ("search", "new", "--like", "x"), ("serve", "new", "--local")):
        assert_one_line(run(*search), "has no index to search: embed images first with `likeness embed`")
    assert_one_line(run("rollback", "new"), "has no live index version to roll back")
    assert facts_of(run, "versions", "new") == []
    assert facts_of(run, "info", "new")["index"] is None
    assert facts_of(run, "rejects", "new") == []
    notes = write_files(tmp_path / "notes", {"a.jpg": b"a note"})
    run("embed", notes, "new", "--model", "demo", "--max-reject-rate", "1")
    assert_one_line(run("search", "new", "--text", "x"), "to search: embedded 0 of 1 images, see `likeness rejects`")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        *(
            (["--text", "x", "-k", k], f"-k is {k}: expected a whole number from 1 to 10,000")
            for k in ("0", "-1", "1000000")
        ),
        (["--min-score", "0.5"], "expected a query with it"),
        (["--crop", "0,0,1,1"], "--crop goes with one picture"),
        (["--sort", "colour"], "sort: expected one of the columns image_id"),
        (["a.jpg", "--text", "x"], "expected one of a picture, --text and --like"),
        (["--like", "a", "--text", "x"], "expected one of a picture, --text and --like"),
        (["--like", "gone.png"], 'index version 000001 has no image "gone.png"'),
        (["--text", "x", "--crop", "0,0,1,1"], "--crop goes with one picture"),
        (["--like", "red.png", "--crop", "0,0,1"], "error: crop: expected [x, y, width, height] as fractions"),
        *(
            (
                ["--like", "red.png", "--distinct", value],
                f"--distinct is '{value}': expected a cosine from -1 to 1, true",
            )
            for value in ("2", "nan", "yes", "")
        ),
        (["--like", "red.png", "--crop", "left"], "--crop is 'left': expected four numbers"),
        (["--text", "x", "--min-percentile", "99"], "min_percentile: expected a query whose matches have percentiles"),
        (["--like", "red.png", "-k", "2000", "--diversity", "0.5"], "--diversity is 0.5: expected k + offset"),
        (["--text", "x", "--unlike", "red.png"], "--unlike goes with --like"),
        (["--like", "red.png", "--fitting"], "--fitting goes with --text"),
        (["--like", "red.png", "--unlike", "red.png:1"], "cancel each other out"),
        (["--like", "red.png", "--offset", "9995"], "--offset is 9995: expected a whole number from 0 to 9,990"),
        (["--like", "red.png", "--offset", "20000"], "--offset is 20000: expected a whole number from 0 to 9,990"),
        *(
            (["--like", "red.png", "--filter", where], f"--filter is {where!r}: expected a JSON object such as")
            for where in ("label", "[1]", '{"label": }', '{"label": "\udcff"}')
        ),
        (
            ["--filter", '{"width": {"$gte": 3}, "width": {"$lte": 5}}'],
            'such as {"label": "cat", "width": {"$gte": 640}} (the member \'width\' is there more than once)',
        ),
        (["--like", "red.png", "--filter", '{"colour": "red"}'], "filter: expected one of the columns image_id"),
        (["--like", "red.png", "--filter", '{"label": 3}'], "expected text for $eq of column 'label' (string), got 3"),
        (["gone.jpg"], "gone.jpg: there is no such file"),
        (
            ["/tmp"],
            "/tmp: expected a file, found a folder, a device or the like. Name a picture; `likeness embed` adds",
        ),
        (["note.jpg"], "expected a picture, but this looks like plain text"),
        (["--text", "  "], "text: expected words"),
        (["--text", "caf\udce9"], 'text: expected words that say what to look for, in UTF-8, got "caf\\udce9"'),
        (["--like", "caf\udce9"], 'index version 000001 has no image "caf\\udce9"'),
    ],
)
def test_invalid_queries(run: Run, collection: Path, tmp_path: Path, options: list[str], part: str) -> None:
    (tmp_path / "note.jpg").write_text("not a picture")
    assert_one_line(run("search", collection, *options), part)


def test_embed_ends_with_the_index_and_the_next_command(run: Run, growing: Path, pictures: Path) -> None:
    shutil.rmtree(growing / "index")
    (growing / "CURRENT").unlink()
    assert "hidden" not in next_commands("s3://key:hidden@bucket/c")
    *_, index, commands = run("embed", pictures, growing, "--model", "demo").out.splitlines()
    assert index.startswith("index 000001 is live")
    search, serve = f"likeness search {growing} PICTURE", f"likeness serve {growing} --local"
    assert commands == f"Search it with `{search}`, or serve it with `{serve}`"


def test_embed_counts_what_is_left_out_and_prints_json(run: Run, tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", PLAIN)
    for name in ("@eaDir/red.png", "gifs/blue.gif", "gifs/more/green.png", ".hidden.png", "notes.md"):
        put(source / name, next(iter(PLAIN.values())))
    arguments = ("embed", source, "c", "--model", "demo", "--exclude", "*.gif", "--exclude", "more/")
    left_out = {"excluded": 2, "in @eaDir": 1, "hidden": 1, ".md": 1}
    result = run(*arguments, "--format", "json")
    report = json.loads(result.out)
    assert (report["listed"], report["embedded"], report["promoted"], report["left_out"]) == (3, 3, True, left_out)
    assert "3 images listed" in result.err
    lines = run(*arguments).out.splitlines()
    table = lines[lines.index("left out\t5") :][:5]
    assert table == ["left out\t5", "  excluded\t2", *(f"  {kind}\t1" for kind in (".md", "hidden", "in @eaDir"))]
    job = put(tmp_path / "job.yaml", f"source: {source}\ncollection: c\nexclude: [more/, '*.gif']\n".encode())
    report = json.loads(run("reembed", "--spec", job, "--dry-run", "--format", "json").out)
    assert (report["unchanged"], report["missing"], report["left_out"]) == (3, 0, left_out)


@pytest.mark.parametrize("pattern", ["", "!", "/", "[", "a\\", "./a", "!./a", "../a", "a//b", "."])
def test_patterns_that_match_nothing_are_refused(run: Run, pattern: str) -> None:
    assert_one_line(run("embed", "x", "y", "--exclude", pattern), f"--exclude is {pattern!r}: expected a pattern such")


@pytest.mark.parametrize(
    "command",
    [
        *(f"duplicates c {each}" for each in ("--move-from a --move-to", "--move-to a --move-from", "--undo")),
        *("demo --folder", "match c d --name m --to", "annotate c --name m --labels", "reembed a c --report"),
        *("reembed --spec", "schedule --cron '0 3 * * *'", "keys list"),
    ],
)
def test_an_address_in_place_of_a_path_is_refused(run: Run, tmp_path: Path, command: str) -> None:
    [*words, last] = shlex.split(command)
    name = last if last.startswith("--") else "SPEC" if words[0] == "schedule" else "FILE"
    for address in ("s3://bucket/x", "file:///x"):
        problem = f"{name} is {address}: expected a path on this machine, not an address"
        assert_one_line(run(*words, last, address), problem)
    assert not list(tmp_path.iterdir())  # `Path` would make a folder `s3:` of it


READING = ("info", "rejects", "versions", "history", "duplicates", "columns")
NOT_UTF8 = [
    *(f"{name} c" for name in (*READING, "index", "compact", "prune", "rollback")),
    *(f"{name} . ../c" for name in ("embed", "reembed", "watch")),
    *("embed pictures c", "search c --text x", "serve c --local", "export c x", "import x.parquet c", "promote c 1"),
    *("evaluate c --by label", "match c x --name m", "annotate c --name q --quality", "demo --folder d"),
]


@pytest.mark.parametrize("command", NOT_UTF8)
def test_a_working_folder_that_is_not_utf8_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write_files(folder, PLAIN)
    monkeypatch.chdir(folder)
    words = command.split()
    assert_one_line(run(*words), f"{tmp_path}/caf\\xe9", " is not UTF-8: rename the folder, or make a link to it")
    monkeypatch.chdir(tmp_path)
    absolute = [f"{folder}/{word}" if word in (".", "c", "x", "d", "x.parquet") else word for word in words]
    assert_one_line(run(*absolute), f"{tmp_path}/caf\\xe9", " is not UTF-8: rename the folder, or make a link to it")
    assert not (folder / "d").exists()  # the demo has drawn nothing


def test_a_link_makes_a_folder_usable_that_is_not_utf8(run: Run, tmp_path: Path) -> None:
    folder = write_files(tmp_path / os.fsdecode(b"caf\xe9"), PLAIN)
    (tmp_path / "link").symlink_to(folder)
    report = facts_of(run, "embed", "link", "c", "--model", "demo")
    assert (report["embedded"], report["rejected"]) == (3, 0)


def test_a_model_in_a_folder_that_is_not_utf8_is_one_line(
    run: Run, collection: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(DEMO_MODEL, folder / "model")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    for model in ("./model", folder / "model", tmp_path / "link" / "model"):  # links are resolved
        result = run("embed", pictures, tmp_path / "new", "--model", model)
        assert_one_line(result, f"{tmp_path}/caf\\xe9/model is not UTF-8: rename the folder, or copy the model")


@pytest.mark.parametrize("option", ["--label b\udce9 --label", "--label b --template b\udce9{} --label", "--prompt"])
def test_texts_for_models_that_are_not_utf8_are_one_line(run: Run, collection: Path, option: str) -> None:
    command = ["annotate", collection, "--name", "a", *option.split(), os.fsdecode(b"caf\xe9")]
    assert_one_line(run(*command), "--", " expected text in UTF-8")


@pytest.mark.parametrize("words", ["a red star", "star #3", "note: red", "red star" * 40])
def test_words_in_place_of_a_picture_are_pointed_to_text(run: Run, collection: Path, words: str) -> None:
    quoted = shlex.quote(words)
    remedy = f" (to search by words, use --text {quoted}; by an image of the collection, --like {quoted})"
    assert_one_line(run("search", collection, words), remedy)


def test_a_ray_that_does_not_start_exits_with_75(
    run: Run, collection: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(**_: object) -> None:
        raise RuntimeError("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for command in (["embed", pictures, "new", "--model", "demo", "--on", "ray"], ["serve", collection]):
        result = run(*command)
        assert (result.code, result.err.count("\n")) == (75, 1)
        assert "Ray did not start on this machine (The current node timed out during startup.)" in result.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["embed", "x"], "collection"), (["nonsense"], "No such command 'nonsense'")],
)
def test_commands_that_typer_refuses(run: Run, arguments: list[str], part: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out, result.err.partition(" ")[0]) == (2, "", "Usage:")
    assert "Traceback" not in result.err
    assert part in " ".join(result.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "option", "value", "expected"),
    [
        ("embed x y", "--max-reject-rate", "1.5", "a number of at most 1"),
        ("embed x y", "--batch-size", "0", "a number of at least 1"),
        ("serve x", "--port", "65536", "a number of at most 65535"),
        ("serve x", "--port", "http", "a whole number"),
        ("demo", "--port", "-1", "a number of at least 0"),
        ("index x", "--target-recall", "1.5", "a number of at most 1"),
        ("prune x", "--keep", "0", "a number of at least 1"),
        ("evaluate x --by y", "--sample", "0", "a number of at least 1"),
        ("search x --like y", "--min-score", "2", "a number of at most 1"),
        ("search x a.jpg", "--format", "xml", "one of 'table', 'json'"),
        ("duplicates x", "--min-score", "many", "a number"),
        ("select x --name y", "-n", "1.5", "a whole number"),
        ("keys add --name x", "--scope", "all", "one of 'search', 'admin'"),
    ],
)
def test_values_that_an_option_refuses(
    run: Run, tmp_path: Path, command: str, option: str, value: str, expected: str
) -> None:
    assert_one_line(run(*command.split(), option, value), f"{option} is '{value}': expected {expected}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("search x --filter {} --sort a --filter {}", "--filter"),
        ("search x a.jpg -k 3 -k3", "-k"),
        ("search x --text a --text=b", "--text"),
        ("export x y --filter {} --filter {}", "--filter"),
        ("embed x y --keep {} --keep {}", "--keep"),
        ("duplicates x --kinds similar --kinds identical_bytes", "--kinds"),
        ("keys add --name x --name y", "--name"),
    ],
)
def test_an_option_with_one_value_is_refused_when_repeated(run: Run, tmp_path: Path, command: str, option: str) -> None:
    assert_one_line(run(*command.split()), f"{option} is there 2 times: expected it once")
    assert list(tmp_path.iterdir()) == []


def test_flags_and_options_with_several_values_may_be_repeated(run: Run) -> None:
    repeated = ["embed", "x", "y", "--exclude", "a", "--exclude", "b", "--verbose", "-v", "--no-index", "--no-index"]
    assert_one_line(run(*repeated), "error: x does not exist")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        *(("actors", value, "is '{}': expected a number or MIN:MAX") for value in ("many", "0", "3:2")),
        ("extensions", ",", "is '{}': expected extensions such as"),
        *(("actor-resources", value, "is '{}': expected a JSON object such as") for value in ("npu", "[1]")),
        *(
            ("actor-resources", f'{{"npu": {amount}}}', " for npu: expected a fraction of 1, such as 0.5, or a whole")
            for amount in ('"one"', "0", "true", "1.5", "Infinity", "NaN", "-1", "1e-5")
        ),
        ("actor-resources", '{"memory": 1, "GPU": 1}', "names GPU, memory: "),
        *(("wait-for-nodes", value, "is '{}': expected a duration such as 90s") for value in ("soon", "1w", "-5")),
        *(("refresh", value, "is '{}': expected a duration such as 90s, 10m, 1h or 7d") for value in ("soon", "1w")),
        ("refresh", "0d", "is '0d': expected a duration above 0, or never"),
        ("wait-for-nodes", "10m", "is for an autoscaling Ray cluster: expected its address as well"),
        *(("cpus-per-actor", value, " for CPUs: expected a fraction of 1") for value in ("1.5", "1e-5")),
        *(("num-gpus", value, " for GPUs: expected a fraction of 1") for value in ("1.5", "1e-5", "inf")),
    ],
)
def test_values_that_a_job_refuses(run: Run, option: str, value: str, message: str) -> None:
    assert_one_line(run("embed", "x", "y", f"--{option}", value), f"error: --{option} ", message.format(value))


def test_serving_beyond_this_machine_has_to_be_allowed(run: Run, collection: Path) -> None:
    refused = run("serve", collection, "--local", "--host", "0.0.0.0")
    assert_one_line(refused, "expected a loopback host", "--keys (LIKENESS_KEYS_FILE", "--allow-remote (LIKENESS_ALLOW")
    missing = run("serve", collection, "--local", "--port", "0", "--keys", "none.json")
    assert_one_line(missing, f"no key file {Path('none.json').absolute()}")


def test_the_environment_sets_what_options_do_not(
    run: Run, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIKENESS_HOST", "0.0.0.0")
    assert_one_line(run("serve", collection, "--local"), "expected a loopback host", "0.0.0.0")
    monkeypatch.setenv("LIKENESS_MODEL", "./gone")
    assert_one_line(run("search", collection, "--text", "x"), f"there is no folder {tmp_path}/gone")
    assert run("search", collection, "--text", "x", "--model", "demo").code == 0
    monkeypatch.setenv("LIKENESS_THREADS", "many")
    assert_one_line(run("search", collection, "--text", "x"), "LIKENESS_THREADS is 'many': expected a whole number")


@pytest.mark.parametrize(("max_bytes", "file"), [(100, "/.lease'"), (500, "/index/segments/000002-00'")])
def test_a_full_disk_is_reported_with_advice(growing: Path, max_bytes: int, file: str) -> None:
    """A limit on the size of files stands for a full disk: the system refuses the same calls."""
    code = (
        "import resource, sys; sys.dont_write_bytecode = True\n"  # a cut .pyc would break later imports
        "from likeness.cli import app\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop()),) * 2)\n"
        "app.main()"
    )
    done = python("-c", code, "compact", growing, max_bytes)
    result = Result(done.returncode, done.stdout, done.stderr)
    assert_one_line(
        result, "File too large", f"'{growing}{file}", "free some space there and run the same command again"
    )
    assert Collection.open(str(growing)).current() == "000001"


def test_a_folder_that_may_not_be_written_is_reported_with_advice(run: Run, collection: Path) -> None:
    refused = run("export", collection, "/sys/exported")
    assert_one_line(refused, "'/sys/", "expected a place that this user may read, and write if")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("export {collection} {file}/out", "File exists: '{file}': a part of this path is a file: expected folders"),
        ("export {collection} {file}/a/out", "'{file}/a': a part of this path is a file: expected folders"),
        ("embed {collection} {file}/a --model demo", "'{file}/a': a part of this path is a file"),
        ("keys add {file}/keys.json --name a", "'{file}': a part of this path is a file"),
        ("demo --folder {file}", "a part of this path is a file: expected folders"),
        ("match {collection} {collection} --name m --to {file}/a/p.parquet", "in a folder"),
        ("reembed {collection} {collection} --report {collection}", "a folder: expected the path of a file"),
    ],
)
def test_a_place_below_a_file_and_a_folder_for_a_file_are_reported(
    run: Run, collection: Path, tmp_path: Path, command: str, expected: str
) -> None:
    (tmp_path / "file").write_text("")
    places = {"file": str(tmp_path / "file"), "collection": str(collection)}
    assert_one_line(run(*command.format(**places).split()), expected.format(**places))


def test_a_filter_of_an_export_names_the_columns_of_searches(run: Run, collection: Path, tmp_path: Path) -> None:
    refused = run("export", collection, tmp_path / "out", "--filter", '{"colour": 1}')
    searched = run("search", collection, "--filter", '{"colour": 1}')
    assert_one_line(refused, "unknown column 'colour'; columns that can be filtered: image_id (")
    columns = refused.err.partition("filtered: ")[2].strip()
    assert f"one of the columns {columns}, got unknown column" in searched.err


@pytest.mark.parametrize(
    ("command", "slow"),
    [
        ("--help", "numpy pyarrow PIL faiss fastapi ray torch transformers"),
        ("search {collection} --like red.png -k 1", "pandas duckdb fastapi ray torch transformers"),
    ],
)
def test_quick_commands_load_no_slow_modules(collection: Path, command: str, slow: str) -> None:
    script = (
        "import atexit, sys; from likeness.cli import app\n"
        f"atexit.register(lambda: print(sys.modules.keys() & {slow.split()}, file=sys.stderr))\n"
        "app.main()"
    )
    done = python("-c", script, *command.format(collection=collection).split())
    assert (done.returncode, done.stderr) == (0, "set()\n")


@pytest.mark.parametrize("error", [ImportError("initialization failed"), RuntimeError("lock"), ModelError("gone")])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_became_another_exception_is_one(
    run: Run, collection: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, signum: signal.Signals
) -> None:
    """As in modules in C, and in code that reports every failed import."""

    def interrupted(*_: object, **__: object) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signum)
        raise error

    monkeypatch.setattr(Collection, "open", interrupted)
    before = signal.signal(signum, signal.default_int_handler)  # in the background, Ctrl-C is ignored
    try:
        assert run("info", collection) == (130, "", "interrupted\n")
    finally:
        signal.signal(signum, before)


@pytest.mark.parametrize("module", ["typer", "jobs.values"])
def test_ctrl_c_during_loading_ends_quietly(module: str) -> None:
    """The installed command, in a process that gets SIGINT at some import."""
    code = f"""
import os, signal, sys
from importlib.metadata import entry_points

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
[likeness] = entry_points(group="console_scripts", name="likeness")
sys.argv = ["likeness", "--help"]
likeness.load()()
"""
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
