"""How soon a saved picture is found while `likeness watch` runs: `python -m benchmarks.watch [--quick]`.

Pictures of the demo are saved one after the other, every fifth in two halves with a pause in between, and a server of
the same collection is searched for them. Then the same again, while the watch is killed twice and restarted at once.
"""

import hashlib
import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import requests

from benchmarks.common.report import Report, run
from benchmarks.common.servers import Server, serving
from benchmarks.common.waiting import eventually
from embedder.models.checkpoint import DEMO_MODEL
from index.collection import Collection
from index.search import Searcher
from jobs.demo.gallery import plan_exhibit

BAR_S = 10.0
PICTURES, SECONDS = 200, 60.0
_INITIAL = 20
"""Pictures that exist from the start."""


def name_of(number: int) -> str:
    """File name of a picture of the demo."""
    return plan_exhibit(number).image_id.replace("/", "-")


@dataclass(frozen=True)
class Soak:
    """A folder into which pictures are saved. By name: when the last byte of each was `written`, and when it was first
    `found`, by the monotonic clock.
    """

    pictures: Path
    written: dict[str, float] = field(default_factory=dict)
    found: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        self.pictures.mkdir()
        for number in range(10_000, 10_000 + _INITIAL):
            (self.pictures / name_of(number)).write_bytes(plan_exhibit(number).data())

    def save(self, count: int, seconds: float) -> None:
        """Save `count` pictures, spread evenly over `seconds`, in threads because some are written in two halves."""
        rng, started = random.Random(0), time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            for number in range(count):
                time.sleep(max(0.0, started + number * seconds / count - time.monotonic()))
                self.written[name_of(number)] = math.inf
                pool.submit(self._write, number, rng.uniform(0.3, 4.0) if number % 5 == 0 else 0.0)

    def _write(self, number: int, pause: float) -> None:
        data = plan_exhibit(number).data()
        half = len(data) // 2 if pause else len(data)
        with (self.pictures / name_of(number)).open("wb") as file:
            file.write(data[:half])
            file.flush()
            time.sleep(pause)
            file.write(data[half:])
        self.written[name_of(number)] = time.monotonic()

    def search(self, server: Server) -> None:
        """Search for each picture that the server has not found yet."""
        for name in [each for each in list(self.written) if each not in self.found]:
            answer = requests.post(f"{server.url}/search", json={"id": name, "k": 1}, timeout=30)
            if answer.status_code == 200:
                self.found[name] = time.monotonic()

    @property
    def delays(self) -> list[float]:
        """Seconds from the last byte to the first answer."""
        return [self.found.get(name, math.inf) - at for name, at in self.written.items()]


class Watch:
    """`likeness watch` in a separate process, which may be killed."""

    def __init__(self, soak: Soak, collection: Path, log: Path) -> None:
        options = (str(soak.pictures), str(collection), "--model", str(DEMO_MODEL), "--device", "cpu")
        self._command = [sys.executable, "-m", "likeness", "watch", *options]
        self._log = log
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def has_indexed(self) -> bool:
        """Whether there is an index to search. Raises RuntimeError if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the watch has ended; its log ends with:\n{self._log.read_text()[-4000:]}")
        return "searchable after" in self._log.read_text()

    def restart(self) -> None:
        self._process.kill()
        self._process.wait()
        self._start()

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
        eventually(lambda: len(soak.found) == len(soak.written), "all pictures are found", 60)
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
        {"median": median(delays), "p90": quantiles(delays, n=10)[-1], "slowest": max(delays)},
    )
    report.at_most("slowest", max(delays), BAR_S)
    report.at_most("found before its last byte", sum(delay < 0 for delay in delays), 0)
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
    names = [name for name in soak.written if searcher.row(name)]
    matches = searcher.search([searcher.vector(name) for name in names], 20)
    once = {
        name
        for name, first in zip(names, matches, strict=True)
        if [round(match.score or 0.0, 3) for match in first if match.image_id == name] == [1.0]
    }
    return [name for name in soak.written if name not in once]


def main(report: Report, folder: Path, options: Any) -> None:
    share = 1 / 3 if options.quick else 1.0
    for subject, kills in {"undisturbed": 0, "killed twice": 2}.items():
        (folder / subject).mkdir()
        soak_test(folder / subject, round(PICTURES * share), SECONDS * share, kills, report.about(subject))


if __name__ == "__main__":
    run("watch", __doc__, main, "a third of the pictures, in a third of the time")
