"""`likeness reembed` with a Ray of its own, as a schedule starts it, and twice in a row after a day of changes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nights.reembed_nights import (
    BROKEN,
    Nights,
    assert_rows_are_what_is_there,
    assert_search_is_exact,
    bmp,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def reembed(*arguments: str | Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "jobs", "reembed", *map(str, arguments), "--format", "json"]
    done = subprocess.run([*command, "--max-reject-rate", "0.2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_first_run_a_day_of_changes_and_twice_in_a_row(tmp_path: Path) -> None:
    pictures, location = tmp_path / "pictures", tmp_path / "collection"
    pictures.mkdir()
    for number in range(10):
        (pictures / f"{number}.bmp").write_bytes(bmp(number))
    nights = Nights(pictures, str(location))
    first = reembed(pictures, location, "--model", "demo")
    assert (first["new"], first["embedded"], first["index_after"]) == (10, 10, "000001")
    assert first["seconds"]["start"] > first["seconds"]["embed"] > 0
    assert_rows_are_what_is_there(nights)

    (pictures / "0.bmp").write_bytes(bmp(20))
    (pictures / "1.bmp").rename(pictures / "moved.bmp")
    (pictures / "2.bmp").write_bytes(BROKEN)
    (pictures / "3.bmp").unlink()
    changed = reembed(pictures, location)
    assert (changed["listed"], changed["unchanged"], changed["new"], changed["changed"]) == (9, 6, 1, 2)
    assert (changed["reused"], changed["to_embed"], changed["embedded"], changed["rejected"]) == (1, 2, 1, 1)
    assert (changed["missing"], changed["moved"], changed["deleted"]) == (2, 1, 2)
    assert (changed["index_after"], changed["promoted"]) == ("000002", True)
    assert changed["seconds"]["start"] > 0
    assert changed["worker_seconds"]["model"] > 0  # reading a local file takes less than a thousandth
    assert_rows_are_what_is_there(nights)
    assert_search_is_exact(nights.collection)

    runs = nights.collection.runs()
    again = reembed(pictures, location)
    assert (again["unchanged"], again["runs"], again["promoted"]) == (9, [], False)
    assert "start" not in again["seconds"]
    assert nights.collection.runs() == runs
