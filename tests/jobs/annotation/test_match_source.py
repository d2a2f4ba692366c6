"""Matches of a source of pictures, which is embedded first, into a collection beside the file of pairs."""

import re
import sys
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.records.model_record import UNKNOWN_MODEL
from tests.support.collections.hand_made import MODEL, add_version, rows, unit_vectors, written_rows
from tests.support.collections.small_collection import png
from tests.support.collections.storage_steps import KilledError, at, expire, is_number, kill
from tests.support.command_line import Result, Run
from tests.support.listings import write_files

EMBEDDER = """
class {name}:
    dim = 3
    side = 32

    def embed_images(self, pixels):
        return pixels.mean(axis=(1, 2)) {and_more}
"""
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (20, 40, 210), "grey": (99, 99, 99)}
MINE = {"rose.png": (230, 60, 70), "sea.png": (30, 70, 190), "grass.png": (10, 220, 60)}


@pytest.fixture
def match(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """The command with these options, in a folder with pictures of mine and a gallery, which is indexed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = {name: EMBEDDER.format(name=name, and_more=more) for name, more in {"Mean": "", "Other": "** 2"}.items()}
    (tmp_path / "match_colours.py").write_text("".join(modules.values()))
    write_files(tmp_path / "pictures", {f"{name}.png": png(colour) for name, colour in COLOURS.items()})
    write_files(tmp_path / "mine", {name: png(colour) for name, colour in MINE.items()})
    embed("gallery", run)
    yield lambda *options, source="mine", to="out/pairs.parquet", by="Mean": run(
        *("match", source, "gallery", "--to", to, "--embedder", f"match_colours:{by}", *options)
    )
    sys.modules.pop("match_colours")


def embed(collection: str, run: Run, by: str = "Mean", command: str = "embed") -> None:
    done = run(command, "pictures", collection, "--embedder", f"match_colours:{by}")
    assert done.code == 0, done.err


def pairs(file: str = "out/pairs.parquet") -> dict[str, list[tuple[str, Any]]]:
    """The matches of each image, best first, with their scores."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for row in pq.read_table(file).to_pylist():
        assert (Path(row["uri"]).name, Path(row["match_uri"]).name) == (row["image_id"], row["match_id"])
        found.setdefault(row["image_id"], []).append((row["match_id"], row["score"]))
    return found


def expected(mine: dict[str, tuple[int, int, int]], k: int = 10, power: int = 1) -> dict[str, list[tuple[str, Any]]]:
    """The nearest pictures of each of mine, by comparing all."""
    vectors = {f"{name}.png": np.array(colour, float) ** power for name, colour in COLOURS.items()}

    def scores(colour: Any) -> dict[str, float]:
        own = np.array(colour, float) ** power
        return {name: own @ each / np.linalg.norm(own) / np.linalg.norm(each) for name, each in vectors.items()}

    ranked = {name: sorted(scores(colour).items(), key=lambda each: -each[1]) for name, colour in mine.items()}
    return {name: [(key, pytest.approx(score, abs=1e-5)) for key, score in each[:k]] for name, each in ranked.items()}


def test_pictures_are_embedded_and_matched_and_only_new_ones_again(match: Callable[..., Result], run: Run) -> None:
    Path("mine/bad.png").write_text("no picture")
    done = match("-k", 2, "--max-reject-rate", 0.5)
    assert (done.code, "6 pairs: out/pairs.parquet" in done.out) == (0, True), done
    assert "rejected\t1" in done.out
    assert "no index" not in done.out + done.err
    assert pairs() == expected(MINE, 2)
    assert run("info", "gallery").code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["pairs.collection", "pairs.parquet"]
    more = {"sun.png": (250, 240, 20)}
    write_files(Path("mine"), {"sun.png": png(more["sun.png"])})
    Path("mine/bad.png").unlink()
    Path("mine/sea.png").unlink()
    left = {name: colour for name, colour in MINE.items() if name != "sea.png"}
    done = match("-k", 2, "--name", "near", "--max-missing", 1)
    assert (done.code, "embedded\t1" in done.out) == (0, True), done
    assert pairs() == expected(left | more, 2)
    # Another source has its own pairs.
    write_files(Path("others"), {"leaf.png": png((20, 180, 30))})
    assert match(source="others").code == 0
    assert pairs() == expected({"leaf.png": (20, 180, 30)})
    # A collection with another model by now needs vectors of that.
    embed("gallery", run, "Other", "reembed")
    assert (done := match(by="Other")).code == 0, done
    assert pairs() == expected(left | more, power=2)


def test_a_list_of_pictures_is_a_source(match: Callable[..., Result], tmp_path: Path) -> None:
    Path("list.csv").write_text(f"id,uri\n1,{tmp_path / 'mine/rose.png'}\n")
    assert match(source="list.csv", to="pairs.parquet").code == 0
    [row, *_] = pq.read_table("pairs.parquet").to_pylist()
    assert (row["image_id"], row["match_id"]) == ("1", "red.png")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_command_that_is_killed_before_a_step_embeds_and_matches_each_image_once(
    match: Callable[..., Result],
) -> None:
    for step in count(1):
        try:
            with at(is_number(step), after=False, action=kill):
                match()
            break
        except KilledError:
            if Path("out/pairs.collection").exists():
                expire(Collection.open_or_empty("out/pairs.collection").storage)
    assert step > 5
    assert pairs() == expected(MINE)
    collection = Collection.open("out/pairs.collection")
    for log in (collection, annotation_log(collection, "match")):
        files = [(made, log.files_of(made)) for made in log.runs()]
        ids = [written_rows(log, *each).read(["image_id"])["image_id"].to_pylist() for each in files]
        assert sorted(map(str, chain(*ids))) == sorted(MINE)


@pytest.mark.usefixtures("match")
def test_wrong_arguments(run: Run) -> None:
    unknown = Collection.create_or_open("unknown")
    add_version(unknown, rows(["a"], unit_vectors(1)), model=MODEL.model_copy(update={"id": UNKNOWN_MODEL}))
    Collection.create_or_open("unindexed")
    for arguments, message in (
        (["nowhere", "gallery", "--to", "p.parquet"], "nowhere does not exist .*: expected a collection, or a source"),
        (["mine", "gallery"], "mine is not a collection: expected one, or for a source of pictures --to PAIRS.parquet"),
        (["mine", "gallery", "--to", "mine/p.parquet"], "--to is 'mine/p.parquet', in the source, where"),
        (["mine", "unindexed", "--to", "p.parquet"], "unindexed has no index to search: embed images first"),
        (["mine", "unknown", "--to", "p.parquet"], "imported without the name of their model, so nothing can be added"),
        (["mine", "gallery", "--to", "p.parquet"], "is a Python class, and its code runs only if you name it: give"),
        (["gallery", "gallery"], "--name is missing: expected a name for the columns that gallery gets"),
    ):
        refused = run("match", *arguments)
        assert (refused.code, bool(re.search(message, refused.err))) == (2, True), refused.err
        assert not Path("p.collection").exists()
