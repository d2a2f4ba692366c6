"""Jobs killed at each step of their commits while a server answers: nothing is lost or doubled, no search fails."""

import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, islice, product
from pathlib import Path

import pytest
import requests

from benchmarks.common.load import TimedSearch, load
from benchmarks.common.servers import Server, serving
from benchmarks.common.waiting import eventually
from tests.support.collections.s3_server import CREDENTIALS, new_bucket, new_cache
from tests.support.collections.storage_steps import STEPS
from tests.support.nights.reembed_nights import DEMO, Nights, assert_rows_match_files, assert_search_is_exact, bmp
from tests.support.processes import python

pytestmark = pytest.mark.timeout(300)

_RATE = 4.0  # searches a second


@dataclass
class ServedNights:
    """`answers` are the versions that may answer, with their model and size. `queries` is a folder of pictures."""

    nights: Nights
    served: Server
    queries: Path
    numbers: Iterator[int]
    answers: dict[str, tuple[str, int]] = field(default_factory=dict)

    def change(self, number: int) -> None:
        """Draw, edit, move and delete `number` pictures each: afterwards there are as many as before."""
        files = sorted(self.nights.pictures.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        edited, moved, deleted = (files[number * part : number * (part + 1)] for part in range(3))
        for path in moved:
            path.rename(path.with_name(f"{next(self.numbers)}.bmp"))
        for path in deleted:
            path.unlink()
        for path in edited:
            path.write_bytes(bmp(next(self.numbers)))
        draw(self.nights.pictures, islice(self.numbers, number))

    def await_version(self) -> None:
        """Wait until the live version answers."""
        collection = self.nights.collection
        live = collection.read_version(str(collection.current()))
        self.answers[live.version] = (live.model.fingerprint, live.ntotal)
        eventually(lambda: self.served.version() == live.version, f"{live.version} answers", seconds=60)

    def require_answered(self, searches: list[TimedSearch]) -> None:
        """Check that no search failed, and that each answer is of one version, with its own model."""
        failed = Counter((each.status, each.body) for each in searches if each.status != 200)
        assert not failed, f"of {len(searches)} searches failed, by status and answer: {failed}"
        for each in searches:
            index, model = each.answer["index"], each.answer["model"]
            assert (model["fingerprint"], index["ntotal"]) == self.answers[index["version"]], each

    def searchable(self) -> list[str]:
        """The ids of all images that a search returns, sorted."""
        with (self.queries / "0.bmp").open("rb") as file:
            answer = requests.post(f"{self.served.url}/search", files={"image": file}, data={"k": "1000"}, timeout=60)
        answer.raise_for_status()
        return sorted(match["image_id"] for match in answer.json()["matches"])


def draw(folder: Path, numbers: Iterable[int]) -> None:
    for number in numbers:
        (folder / f"{number}.bmp").write_bytes(bmp(number))


@contextmanager
def served_nights(folder: Path, location: str) -> Iterator[ServedNights]:
    """Pictures below `folder`, embedded into the collection at `location`, and `likeness serve --local`."""
    pictures, queries = folder / "pictures", folder / "queries"
    for each, number in ((pictures, 24), (queries, 12)):
        each.mkdir()
        draw(each, range(number))
    nights = Nights(pictures, location, block=64)
    nights.night(DEMO)
    # A server with a picture's vector in its cache would not need the model.
    settings = {"embedding_cache_bytes": 0, "swap_interval_s": 0.2}
    with serving(location, folder / "log", "--local", **settings) as served:
        made = ServedNights(nights, served, queries, numbers=count(25))
        made.await_version()
        yield made


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNights]:
    folder = tmp_path_factory.mktemp("folder")
    with served_nights(folder, str(folder / "collection")) as served:
        yield served


@pytest.fixture(scope="module")
def in_bucket(s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNights]:
    """The collection in a local S3 server, the pictures in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("LIKENESS_CACHE_DIR", str(new_cache(tmp_path_factory.mktemp("cached"))))
        location = new_bucket(s3).address("collection")
        with served_nights(tmp_path_factory.mktemp("bucket"), location) as served:
            yield served


def at_steps(steps: Iterable[str], often: tuple[str, str]) -> pytest.MarkDecorator:
    """Before and after each of these steps; `often` is the one that CI runs."""
    points = product(steps, ("before", "after"))
    marks = {True: pytest.mark.slow, False: pytest.mark.long}
    return pytest.mark.parametrize(("step", "when"), [pytest.param(*p, marks=marks[p == often]) for p in points])


@at_steps(STEPS, often=("version manifest", "before"))
def test_a_job_is_killed_in_a_folder(in_folder: ServedNights, step: str, when: str) -> None:
    kill_and_resume(in_folder, step, when)


@at_steps(("run manifest", "version manifest", "CURRENT"), often=("CURRENT", "after"))
def test_a_job_is_killed_in_a_bucket(in_bucket: ServedNights, step: str, when: str) -> None:
    kill_and_resume(in_bucket, step, when)


def kill_and_resume(served: ServedNights, step: str, when: str) -> None:
    nights = served.nights
    served.change(2)
    with load(served.served.url, served.queries, _RATE) as searches:
        command = ["-m", "tests.support.nights.killed_night", str(nights.pictures), nights.location, step, when]
        killed = python(*command)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        served.await_version()  # the new one, where CURRENT was written
        assert_search_is_exact(nights.collection)
        nights.night()
        served.await_version()
    served.require_answered(searches.searches)
    assert len(searches.searches) > _RATE  # searches ran all the while
    assert_rows_match_files(nights)
    assert_search_is_exact(nights.collection)
    assert served.searchable() == sorted(path.name for path in nights.pictures.iterdir())
    runs = nights.collection.runs()
    again = nights.night()
    assert (again.runs, again.promoted, nights.embedded[-1]) == ([], False, [])
    assert nights.collection.runs() == runs
