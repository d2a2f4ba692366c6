"""Ten nights in a row while searches come: nobody notices but by what they find."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.nights.reembed_nights import assert_rows_are_what_is_there, assert_search_is_exact
from tests.support.nights.served_nights import ServedNights, served_nights
from tests.support.pictures.tiny_checkpoints import save_clip
from tests.support.servers.load import Load, crowd, load, milliseconds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_NIGHTS = 10
_ON_RAY = 3  # the night that is the command itself, which starts a Ray
_OTHER_MODEL = 6
_PICTURES = 600


def test_ten_nights_fail_no_search(tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_clip(other)
    with served_nights(tmp_path, str(tmp_path / "collection"), pictures=_PICTURES) as served:
        able = len(crowd(served.served.url, served.queries, clients=4, seconds=4)) / 4
        with load(served.served.url, served.queries, able / 3) as going:
            time.sleep(4)
            began = time.monotonic()
            for number in range(1, _NIGHTS + 1):
                served.change(_PICTURES // 50)
                if number == _ON_RAY:
                    run_the_command(served)
                else:
                    served.night(str(other) if number == _OTHER_MODEL else None)
                assert_search_is_exact(served.nights.collection)
            ended = time.monotonic()
            time.sleep(1)
        tell(going, began, ended)
        versions = served.require_answered(going.asked)
        assert versions == set(served.answers)
        assert len(versions) == 1 + _NIGHTS
        assert_rows_are_what_is_there(served.nights, str(other.resolve()))
        assert served.found() == served.there()


def run_the_command(served: ServedNights) -> None:
    nights = served.nights
    command = ["reembed", str(nights.pictures), nights.location, "--format", "json"]
    done = subprocess.run([sys.executable, "-m", "jobs", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["embedded"] == report["to_embed"] == 2 * _PICTURES // 50
    served.await_version()


def tell(going: Load, began: float, ended: float) -> None:
    during = going.between(began, ended)
    figures = ", ".join(f"p{level} {milliseconds(during, level):.1f} ms" for level in (50, 95, 99))
    print(f"{_NIGHTS} nights in {ended - began:.0f} s: {len(during)} searches, {figures}")
