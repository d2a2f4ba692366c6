"""Jobs killed at each step of their commits while a server answers: nothing is lost, doubled or left unanswered."""

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import product

import pytest

from benchmarks.common.load import load
from tests.support.collections.s3_server import CREDENTIALS, new_bucket
from tests.support.collections.storage_steps import STEPS
from tests.support.nights.reembed_nights import assert_rows_are_what_is_there, assert_search_is_exact
from tests.support.nights.served_nights import ServedNights, served_nights
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(300)

_RATE = 4.0  # searches a second


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNights]:
    folder = tmp_path_factory.mktemp("folder")
    with served_nights(folder, str(folder / "collection"), pictures=24) as served:
        yield served


@pytest.fixture(scope="module")
def in_bucket(s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNights]:
    """The collection in a local S3 server, the pictures in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("LIKENESS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        location = new_bucket(s3).address("collection")
        with served_nights(tmp_path_factory.mktemp("bucket"), location, pictures=24) as served:
            yield served


def every(steps: Iterable[str], often: tuple[str, str]) -> pytest.MarkDecorator:
    """Before and after each of these steps; `often` is the one that CI takes."""
    points = product(steps, ("before", "after"))
    marks = {True: pytest.mark.slow, False: pytest.mark.long}
    return pytest.mark.parametrize(("step", "when"), [pytest.param(*p, marks=marks[p == often]) for p in points])


@every(STEPS, often=("version manifest", "before"))
def test_a_job_is_killed_in_a_folder(in_folder: ServedNights, step: str, when: str) -> None:
    kill_and_go_on(in_folder, step, when)


@every(("run manifest", "version manifest", "CURRENT"), often=("CURRENT", "after"))
def test_a_job_is_killed_in_a_bucket(in_bucket: ServedNights, step: str, when: str) -> None:
    kill_and_go_on(in_bucket, step, when)


def kill_and_go_on(served: ServedNights, step: str, when: str) -> None:
    nights = served.nights
    served.change(2)
    with load(served.served.url, served.queries, _RATE) as going:
        command = ["-m", "tests.support.nights.killed_night", str(nights.pictures), nights.location, step, when]
        killed = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        served.await_version()  # the new one, where CURRENT was written
        assert_search_is_exact(nights.collection)
        served.night()
    served.require_answered(going.asked)
    assert len(going.asked) > _RATE  # some, all the while
    assert_rows_are_what_is_there(nights)
    assert_search_is_exact(nights.collection)
    assert served.found() == served.there()
    runs = nights.collection.runs()
    again = nights.night()
    assert (again.runs, again.promoted, nights.embedded[-1]) == ([], False, [])
    assert nights.collection.runs() == runs
