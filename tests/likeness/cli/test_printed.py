"""What the command line prints into a pipe and on a terminal."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from api.access.keys import KeyScope, add_key
from index.matches import Match
from likeness.cli.options import console, print_json_list
from likeness.cli.tables import text_table
from likeness.cli.tables.matches import match_table
from likeness.cli.tables.text_table import TextTable, print_table
from tests.support.collections.small_collection import COLOURS, make_collection, png
from tests.support.command_line import Run
from tests.support.fake_embedder import FakeEmbedder

LONG = "IMG_0288 chelsea exif " * 6 + "Ü 日.png"
ODD = "two\nlines and a\ttab :smile: [red].png"


@pytest.fixture
def collection(tmp_path: Path) -> str:
    pictures = dict(zip((LONG, ODD, "plain.png"), map(png, COLOURS.values()), strict=True))
    make_collection(tmp_path / "c", pictures, FakeEmbedder())
    return str(tmp_path / "c")


@pytest.fixture
def output_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command prints into a pipe, which is taken to be 80 columns wide, like a terminal of unknown width."""
    monkeypatch.setattr(console, "width", 80)

    def call(*arguments: str) -> str:
        result = run(*arguments)
        assert result.code == 0
        return result.out

    return call


def test_in_a_pipe_each_match_is_a_line_with_tabs(collection: str, output_of: Callable[..., str]) -> None:
    out = output_of("search", collection, "--like", "plain.png")
    header, *matches = [line.split("\t") for line in out.splitlines()]
    assert header == ["rank", "score", "percentile", "image_id", "uri", "label", "weight"]
    odd = "two\\nlines and a\\ttab :smile: [red]"
    assert {(match[3], match[5]) for match in matches} == {(LONG, LONG.removesuffix(".png")), (f"{odd}.png", odd)}
    assert [match[0] for match in matches] == ["1", "2"]
    assert {(match[3], match[4]) for match in matches} == {
        (LONG, f"memory:{LONG}"),
        (f"{odd}.png", f"memory:{odd}.png"),
    }


def test_json_keeps_every_letter(collection: str, output_of: Callable[..., str]) -> None:
    out = output_of("search", collection, "--like", "plain.png", "--format", "json")
    assert "Ü 日.png" in out
    assert {match["image_id"] for match in json.loads(out)["matches"]} == {LONG, ODD}


def test_letters_that_a_locale_lacks_are_escaped(
    collection: str, output_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    latin = io.TextIOWrapper(io.BytesIO(), "latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", latin)
    output_of("search", collection, "--like", "plain.png", "--format", "json")
    out = latin.buffer.getvalue().decode("latin-1")
    assert "Ü \\u65e5.png" in out
    assert {match["image_id"] for match in json.loads(out)["matches"]} == {LONG, ODD}


def test_in_a_pipe_every_other_table_is_lines_with_tabs(collection: str, output_of: Callable[..., str]) -> None:
    groups = output_of("duplicates", collection, "--kinds", "similar", "--min-score", "-1").splitlines()
    assert (groups[0], len(groups)) == ("group\t\timage\tpicture\tkept because of", 5)
    assert any(line.startswith(f"\tsimilar\t{LONG}\t48 × 40, png, ") for line in groups)
    info = output_of("info", collection).splitlines()
    assert f"collection\t{collection}" in info
    assert any(line.startswith("000001-00\tFlat\t3\t0\t") for line in info)
    assert output_of("versions", collection).splitlines()[1].startswith("000001\tlive\t")
    keys = f"{collection}/keys.json"
    add_key(Path(keys), "a" * 60, KeyScope.search)
    assert output_of("keys", "list", keys).splitlines()[1].startswith("a" * 60 + "\tsearch\t20")


def test_in_a_pipe_all_duplicates_are_printed(tmp_path: Path, output_of: Callable[..., str]) -> None:
    same = {f"{number:03}.png": png((9, 9, 9)) for number in range(30)}
    make_collection(tmp_path / "c", same, FakeEmbedder())
    out = output_of("duplicates", str(tmp_path / "c"), "--kinds", "similar")
    assert [line.split("\t")[2] for line in out.splitlines()[1:-1]] == list(same)


def test_on_a_terminal_columns_are_aligned_and_long_cells_folded() -> None:
    out = io.StringIO()
    matches = [Match(image_id=name, score=0.5, uri="", metadata={}) for name in (LONG, ODD)]
    Console(file=out, width=60, force_terminal=True, color_system=None).print(match_table(matches))
    lines = out.getvalue().splitlines()
    assert lines[0].rstrip() == "rank  score  image_id"
    assert max(map(len, lines)) <= 60
    assert "".join(line[13:].rstrip() for line in lines[1:5]).replace(" ", "") == LONG.replace(" ", "")
    assert lines[5].rstrip() == "2     0.500  two\\nlines and a\\ttab :smile: [red].png"


def test_ranks_beyond_a_thousand_have_no_comma() -> None:
    table = match_table([Match(image_id="a", score=0.5, uri="", metadata={})], first=1_000)
    assert table.rows[0][0] == "1000"


def test_a_terminal_too_narrow_for_the_columns_gets_a_line_for_each() -> None:
    out = io.StringIO()
    metadata = {f"column_{number}": "a text of some length" for number in range(9)}
    matches = [Match(image_id=name, score=0.5, uri="", metadata=metadata) for name in ("one.png", "two.png")]
    Console(file=out, width=80, force_terminal=True, color_system=None).print(match_table(matches))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[:4] == ["rank      1", "score     0.500", "image_id  one.png", "column_0  a text of some length"]
    assert lines[12:14] == ["", "rank      2"]


def test_a_pipe_is_no_terminal_even_with_force_color(tmp_path: Path) -> None:
    make_collection(tmp_path / "c", {"red.png": png((9, 9, 9))}, FakeEmbedder())
    command = [sys.executable, "-m", "likeness", "columns", str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "FORCE_COLOR": "1"})
    assert done.stdout.startswith(b"name\tcolumns\tpredictor")


@pytest.mark.parametrize("items", [[], [{}], [{"a": "x\ny\u2028z", "b": [1, {"c": None}]}, [], "Ü"]])
def test_a_list_is_printed_item_by_item_as_json_prints_all_of_it(
    items: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    print_json_list(iter(items))
    assert capsys.readouterr().out == json.dumps(items, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_rows_of_a_long_table_are_printed_before_the_last_ones_are_known(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_table, "_PART", 40)
    out = Console(file=io.StringIO(), force_terminal=terminal, width=40)
    printed = list[str]()

    def rows() -> Iterator[tuple[str, str]]:
        for number in range(200):
            yield str(number), "x"
        printed.append(out.file.getvalue())  # type: ignore[attr-defined]

    print_table(out, ("number", "letter"), rows())
    assert "150" in printed[0]
    assert "199" in out.file.getvalue()  # type: ignore[attr-defined]


def test_a_short_table_is_printed_as_one() -> None:
    texts = []
    for show in (print_table, lambda out, *parts: out.print(TextTable(*parts))):
        for rows in ([], [("1", "x"), ("2", "y")]):
            for terminal in (False, True):
                out = Console(file=io.StringIO(), force_terminal=terminal, width=40)
                show(out, ("number", "letter"), rows)
                texts.append(out.file.getvalue())  # type: ignore[attr-defined]
    assert texts[:4] == texts[4:]
