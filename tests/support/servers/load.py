"""Constant load on a server, from a process of its own, and what came of each request.

`python -m tests.support.servers.load URL PICTURES RATE` searches by upload, RATE times a second whether or not answers
come, until its standard input is closed; then it prints a JSON line for each request.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from tests.support.paths import ROOT

_SEARCH_TIMEOUT_S = 60.0
_LOST = 0  # the status of a request that got no answer


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request. `at` is when it was sent, on the machine's monotonic clock; `status` 0: no answer came.

    `version`, `model` and `ntotal` are those that the answer names, `editions` those of its matches, `best` is the
    image that it found first, with its `score`.
    """

    at: float
    seconds: float
    picture: str
    status: int
    retry_after: str | None = None
    version: str | None = None
    model: str | None = None
    ntotal: int | None = None
    editions: tuple[int, ...] = ()
    best: str | None = None
    score: float | None = None
    error: str | None = None


class Load:
    """A load that is going on. `asked` has its requests once it has ended."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def between(self, start: float, end: float) -> list[Asked]:
        """The requests that were sent from `start` to `end`."""
        return [each for each in self.asked if start <= each.at < end]


@contextmanager
def load(url: str, pictures: Path, rate: float) -> Iterator[Load]:
    """Searches `rate` times a second while the block lasts, with the files of the folder `pictures` in turn."""
    command = [sys.executable, "-m", "tests.support.servers.load", url, str(pictures), str(rate)]
    going = Load()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield going
            lines, _ = process.communicate(timeout=_SEARCH_TIMEOUT_S + 30)
        except BaseException:
            process.kill()
            raise
    for line in lines.splitlines():
        fields = json.loads(line)
        going.asked.append(Asked(**{**fields, "editions": tuple(fields["editions"])}))


def crowd(url: str, pictures: Path, *, clients: int, seconds: float) -> list[Asked]:
    """What `clients` asked who each wait for the answer to their last request before they send the next."""
    files = _read(pictures)
    numbers = count()

    async def run() -> list[Asked]:
        async with _session() as session:
            end = time.monotonic() + seconds

            async def one() -> list[Asked]:
                asked = []
                while time.monotonic() < end:
                    asked.append(await _ask(session, url, *files[next(numbers) % len(files)]))
                return asked

            return [each for asked in await asyncio.gather(*(one() for _ in range(clients))) for each in asked]

    return asyncio.run(run())


def milliseconds(asked: Sequence[Asked], percentile: float) -> float:
    """Of the latencies of those that were answered with 200."""
    return 1e3 * float(np.percentile([each.seconds for each in asked if each.status == 200], percentile))


def eventually(holds: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Fails unless it comes to hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def _read(pictures: Path) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted(pictures.iterdir())]


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=_SEARCH_TIMEOUT_S)
    )


async def _ask(session: aiohttp.ClientSession, url: str, name: str, data: bytes) -> Asked:
    form = aiohttp.FormData()
    form.add_field("image", data, filename=name, content_type="application/octet-stream")
    form.add_field("k", "10")
    at = time.monotonic()
    try:
        async with session.post(f"{url}/search", data=form) as response:
            body = await response.read()
            seconds = time.monotonic() - at
            retry_after = response.headers.get("Retry-After")
            facts: dict[str, Any] = _facts(json.loads(body)) if response.status == 200 else {}
            if response.status not in (200, 429):
                facts = {"error": body.decode(errors="replace")}
            return Asked(at=at, seconds=seconds, picture=name, status=response.status, retry_after=retry_after, **facts)
    except (aiohttp.ClientError, TimeoutError) as error:
        return Asked(at=at, seconds=time.monotonic() - at, picture=name, status=_LOST, error=repr(error))


def _facts(answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": answer["index"]["version"],
        "model": answer["model"]["fingerprint"],
        "ntotal": answer["index"]["ntotal"],
        "editions": tuple(each["metadata"]["edition"] for each in answer["matches"] if "edition" in each["metadata"]),
        "best": answer["matches"][0]["image_id"],
        "score": answer["matches"][0]["score"],
    }


async def _go_on(url: str, pictures: Path, rate: float) -> list[Asked]:
    """One request each 1/rate seconds, until standard input ends."""
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    tasks = []
    async with _session() as session:
        print("begun", flush=True)
        started = time.monotonic()
        for number, (name, data) in enumerate(cycle(_read(pictures))):
            if (early := started + number / rate - time.monotonic()) > 0:
                await asyncio.wait([ended], timeout=early)
            elif number % 16 == 0:
                await asyncio.sleep(0)  # behind: what has come is still read
            if ended.done():
                break
            tasks.append(asyncio.create_task(_ask(session, url, name, data)))
        return list(await asyncio.gather(*tasks))


if __name__ == "__main__":
    for each in asyncio.run(_go_on(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))):
        print(json.dumps(asdict(each)))
