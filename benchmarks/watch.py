"""How soon a saved picture is found while `likeness watch` runs: `python -m benchmarks.watch [--quick]`.

Pictures of the demo are saved one after the other, every fifth in two halves with a pause in between, and a server of
the same collection is searched for them. Then the same again, while the watch is killed twice and restarted at once.
"""

import hashlib
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from benchmarks.common.report import Report, run
from benchmarks.common.servers import Server, serving
from benchmarks.common.waiting import eventually
from index.collection import Collection
from index.search import Searcher
from jobs.demo.gallery import plan_exhibit
from jobs.values import DEMO_MODEL

BAR_S = 10.0
PICTURES, SECONDS = 200, 60.0
_INITIAL = 20
"""Pictures that exist from the start."""


@dataclass
class Saved:
    """When a picture's last byte was written and when it was first found, by the monotonic clock."""

    name: str
    at: float | None = None
    found: float | None = None
    early: bool = False


def name_of(number: int) -> str:
    """File name of a picture of the demo."""
    return plan_exhibit(number).image_id.replace("/", "-")


@dataclass
class Soak:
    """A folder into which pictures are saved, and when each was saved and found."""

    pictures: Path
    saved: list[Saved] = field(default_factory=list)

    def begin(self) -> None:
        self.pictures.mkdir()
        for number in range(_INITIAL):
            (self.pictures / name_of(10_000 + number)).write_bytes(plan_exhibit(10_000 + number).data())

    def save(self, count: int, seconds: float) -> None:
        """Save `count` pictures, spread evenly over `seconds`, in threads because some are written in two halves."""
        rng, started, threads = random.Random(0), time.monotonic(), []
        for number in range(count):
            time.sleep(max(0.0, started + number * seconds / count - time.monotonic()))
            self.saved.append(picture := Saved(name_of(number)))
            pause = rng.uniform(0.3, 4.0) if number % 5 == 0 else 0.0
            threads.append(threading.Thread(target=self._write, args=(picture, plan_exhibit(number).data(), pause)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _write(self, picture: Saved, data: bytes, pause: float) -> None:
        half = len(data) // 2 if pause else len(data)
        with (self.pictures / picture.name).open("wb") as file:
            file.write(data[:half])
            file.flush()
            time.sleep(pause)
            file.write(data[half:])
        picture.at = time.monotonic()

    def search(self, server: Server) -> None:
        """Search for each picture that the server has not found yet."""
        for picture in [each for each in self.saved if each.found is None]:
            answer = requests.post(f"{server.url}/search", json={"id": picture.name, "k": 1}, timeout=30)
            if answer.status_code == 200:
                picture.early = picture.at is None
                picture.found = time.monotonic()

    @property
    def all_found(self) -> bool:
        return all(each.found is not None for each in self.saved)

    @property
    def delays(self) -> list[float]:
        """Seconds from the last byte to the first answer, in the order of saving."""
        return [(each.found or float("inf")) - (each.at or 0.0) for each in self.saved]


class Watch:
    """`likeness watch` in a separate process, which may be killed."""

    def __init__(self, soak: Soak, collection: Path, log: Path) -> None:
        options = (str(soak.pictures), str(collection), "--model", str(DEMO_MODEL), "--device", "cpu")
        self._command = [sys.executable, "-m", "likeness", "watch", *options]
        self._log = log
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)

    def has_indexed(self) -> bool:
        """Whether there is an index to search. Raises RuntimeError if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the watch has ended; its log ends with:\n{self._log.read_text()[-4000:]}")
        return "searchable after" in self._log.read_text()

    def restart(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self._process.terminate()
        return self._process.wait(60)


@contextmanager
def searching(soak: Soak, server: Server) -> Iterator[None]:
    """Search for new pictures whenever the server has a new version, and at the end until all are found."""
    done = threading.Event()

    def run() -> None:
        version = ""
        while not done.wait(0.1):
            if (now := server.version()) != version:
                soak.search(server)
                version = now

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        eventually(lambda: soak.all_found, "all pictures are found", 60)
    finally:
        done.set()
        thread.join()


def soak_test(folder: Path, pictures: int, seconds: float, kills: int, report: Report) -> None:
    """Save pictures, restart the watch `kills` times meanwhile, and judge the result."""
    soak = Soak(folder / "pictures")
    soak.begin()
    watch = Watch(soak, folder / "collection", folder / "watch.log")
    eventually(watch.has_indexed, "the watch is ready", 180)
    with serving(str(folder / "collection"), folder / "serve.log", "--local") as server, searching(soak, server):
        saving = threading.Thread(target=soak.save, args=(pictures, seconds))
        saving.start()
        for _ in range(kills):
            time.sleep(seconds / (kills + 1))
            watch.restart()
        saving.join()
    code = watch.stop()
    judge(soak, Collection.open(str(folder / "collection")), code, report)


def judge(soak: Soak, collection: Collection, code: int, report: Report) -> None:
    delays = soak.delays
    searcher = Searcher.open(collection)
    report.values(
        "saved until found over HTTP, in seconds",
        {
            "median": statistics.median(delays),
            "p90": statistics.quantiles(delays, n=10)[-1],
            "slowest": max(delays),
        },
    )
    report.at_most("slowest", max(delays), BAR_S)
    report.at_most("found before its last byte", sum(each.early for each in soak.saved), 0)
    report.at_most("rows not of the files' bytes", len(differing(soak, collection)), 0)
    report.at_most("not found, or found twice, by its own picture", len(not_found_once(soak, searcher)), 0)
    report.at_most("images in the index − files", abs(searcher.ntotal - len(list(soak.pictures.iterdir()))), 0)
    report.at_most("exit code on SIGTERM − 130", abs(code - 130), 0)


def differing(soak: Soak, collection: Collection) -> list[str]:
    """Files whose live row is missing, is a reject, or has the hash of other bytes."""
    live = collection.live_rows(["image_id", "content_hash", "error_reason"])
    rows = {row["image_id"]: row for row in live.to_pylist()}
    return [
        path.name
        for path in soak.pictures.iterdir()
        if (row := rows.get(path.name)) is None
        or row["error_reason"]
        or row["content_hash"] != hashlib.sha256(path.read_bytes()).hexdigest()
    ]


def not_found_once(soak: Soak, searcher: Searcher) -> list[str]:
    """Saved pictures that a search by their own vector does not find exactly once among the first 20 matches."""
    names = [picture.name for picture in soak.saved if searcher.row(picture.name)]
    matches = searcher.search([searcher.vector(name) for name in names], 20)
    once = {
        name
        for name, first in zip(names, matches, strict=True)
        if [round(match.score or 0.0, 3) for match in first if match.image_id == name] == [1.0]
    }
    return [picture.name for picture in soak.saved if picture.name not in once]


def main(report: Report, folder: Path, options: Any) -> None:
    share = 1 / 3 if options.quick else 1.0
    for subject, kills in {"undisturbed": 0, "killed twice": 2}.items():
        (folder / subject).mkdir()
        soak_test(folder / subject, round(PICTURES * share), SECONDS * share, kills, report.about(subject))


if __name__ == "__main__":
    run("watch", __doc__, main, "a third of the pictures, in a third of the time")
