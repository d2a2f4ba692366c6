"""How soon a saved picture is found while `likeness watch` runs: `python -m benchmarks.watch [--quick]`.

Pictures of the demo are saved one after the other, every fifth in two halves with a pause between them, and searched
by a server of the same collection. Then the same again, while the watch is killed twice and started again at once.
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
from benchmarks.common.servers import Server, eventually, serving
from index.collection import Collection
from index.search import Searcher
from jobs.demo.gallery import plan_exhibit
from jobs.values import DEMO_MODEL

BAR_S = 10.0
PICTURES, SECONDS = 200, 60.0
_BEFORE = 20
"""Pictures that are there from the start."""


@dataclass
class Saved:
    """When a picture's last byte was written and when it was first found, by the monotonic clock."""

    name: str
    at: float | None = None
    found: float | None = None
    early: bool = False


def name_of(number: int) -> str:
    """Of a file, for a picture of the demo."""
    return plan_exhibit(number).image_id.replace("/", "-")


@dataclass
class Soak:
    """A folder into which pictures are saved, and what became of them."""

    pictures: Path
    saved: list[Saved] = field(default_factory=list)

    def begin(self) -> None:
        self.pictures.mkdir()
        for number in range(_BEFORE):
            (self.pictures / name_of(10_000 + number)).write_bytes(plan_exhibit(10_000 + number).data())

    def save(self, count: int, seconds: float) -> None:
        """Save so many pictures, evenly spread. Those in two halves are written by threads of their own."""
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

    def look(self, server: Server) -> None:
        """Ask the server for each picture that it has not found yet."""
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


class Watching:
    """`likeness watch` in a process of its own, which may be killed."""

    def __init__(self, soak: Soak, collection: Path, log: Path) -> None:
        options = (str(soak.pictures), str(collection), "--model", str(DEMO_MODEL), "--device", "cpu")
        self._command = [sys.executable, "-m", "jobs", "watch", *options]
        self._log = log
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)

    def has_indexed(self) -> bool:
        """Whether there is an index to search; RuntimeError if it has ended.

        It may wait for changes before, as the first pictures are left alone for a second.
        """
        if self._process.poll() is not None:
            raise RuntimeError(f"the watch has ended; its log:\n{self._log.read_text()[-4000:]}")
        return "searchable after" in self._log.read_text()

    def kill_and_start(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def stop(self) -> int:
        """Its exit code after SIGTERM."""
        self._process.terminate()
        return self._process.wait(60)


@contextmanager
def looking(soak: Soak, server: Server) -> Iterator[None]:
    """Look for new pictures whenever the server has another version, and at the end until all are found."""
    done = threading.Event()

    def look() -> None:
        version = ""
        while not done.wait(0.1):
            if (now := server.version()) != version:
                soak.look(server)
                version = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
        eventually(lambda: soak.all_found, "all pictures are found", 60)
    finally:
        done.set()
        thread.join()


def soak_test(folder: Path, pictures: int, seconds: float, kills: int, report: Report) -> None:
    """One soak, with its figures and bars."""
    soak = Soak(folder / "pictures")
    soak.begin()
    watching = Watching(soak, folder / "collection", folder / "watch.log")
    eventually(watching.has_indexed, "the watch is ready", 180)
    with serving(str(folder / "collection"), folder / "serve.log", "--local") as server, looking(soak, server):
        saving = threading.Thread(target=soak.save, args=(pictures, seconds))
        saving.start()
        for _ in range(kills):
            time.sleep(seconds / (kills + 1))
            watching.kill_and_start()
        saving.join()
    code = watching.stop()
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
            "pictures": len(delays),
            "index versions": len(collection.versions()),
            "rows written": sum(run.counts["embedded"] + run.counts["rejected"] for run in collection.runs()),
        },
    )
    report.at_most("slowest", max(delays), BAR_S)
    report.at_most("found before its last byte", sum(each.early for each in soak.saved), 0)
    report.at_most("rows not of the files' bytes", len(differing(soak, collection)), 0)
    report.at_most("not found, or found twice, by its own picture", len(not_found_once(soak, searcher)), 0)
    report.at_most("images in the index − files", abs(searcher.ntotal - len(list(soak.pictures.iterdir()))), 0)
    report.at_most("exit code on SIGTERM − 130", abs(code - 130), 0)


def differing(soak: Soak, collection: Collection) -> list[str]:
    """Files whose live row is missing, a reject, or of other bytes."""
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
    """Saved pictures that a search by their own vector does not find exactly once among its first."""
    names = [picture.name for picture in soak.saved if searcher.row(picture.name)]
    matches = searcher.search([searcher.vector(name) for name in names], 20)
    once = {
        name
        for name, found in zip(names, matches, strict=True)
        if [round(match.score, 3) for match in found if match.image_id == name] == [1.0]
    }
    return [picture.name for picture in soak.saved if picture.name not in once]


def main(report: Report, folder: Path, options: Any) -> None:
    share = 1 / 3 if options.quick else 1.0
    for subject, kills in {"undisturbed": 0, "killed twice": 2}.items():
        (folder / subject).mkdir()
        soak_test(folder / subject, round(PICTURES * share), SECONDS * share, kills, report.about(subject))


if __name__ == "__main__":
    run("watch", __doc__, main, "a third of the pictures, in a third of the time")
