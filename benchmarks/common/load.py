"""Searches over HTTP: one at a time, by clients that wait for each answer, and at a constant rate."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from urllib3.filepost import encode_multipart_formdata

_TIMEOUT_S = 120.0
_MAX_PENDING = 512  # searches at a constant rate that wait for their answers


@dataclass(frozen=True, kw_only=True)
class TimedSearch:
    """A search and its answer. `at` is when it was sent, by the monotonic clock. If none came, `status` is 0 and
    `body` the error.
    """

    at: float
    seconds: float
    picture: str
    status: int
    retry_after: str
    body: bytes

    @property
    def ended(self) -> float:
        """When the answer had arrived."""
        return self.at + self.seconds

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The parsed body."""
        document: dict[str, Any] = json.loads(self.body)
        return document


def latencies(searches: Sequence[TimedSearch]) -> dict[str, float]:
    """The "p50 ms" and "p99 ms" of searches that were answered with 200."""
    answered = [search.seconds for search in searches if search.status == 200]
    return {f"p{level} ms": 1e3 * float(np.percentile(answered, level)) for level in (50, 99)}


class Client:
    """Searches over one connection, which it opens when necessary."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)

    def search(self, name: str, form: tuple[bytes, str]) -> TimedSearch:
        """Send `form`, a body with its media type, for the picture called `name`."""
        body, media_type = form
        status, retry_after = 0, ""
        at = time.monotonic()
        try:
            self._connection.request("POST", "/search", body, {"Content-Type": media_type})
            response = self._connection.getresponse()
            answer = response.read()
            status, retry_after = response.status, response.getheader("Retry-After", "")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            answer = repr(error).encode()
        seconds = time.monotonic() - at
        return TimedSearch(at=at, seconds=seconds, picture=name, status=status, retry_after=retry_after, body=answer)

    def close(self) -> None:
        self._connection.close()


def search_form(name: str, data: bytes) -> tuple[bytes, str]:
    """The body of a search by a picture, or by the query in a JSON file, and its media type."""
    if name.endswith(".json"):
        return data, "application/json"
    return encode_multipart_formdata([("image", (name, data))])


def search_once(url: str, name: str, form: tuple[bytes, str]) -> TimedSearch:
    """One search over its own connection."""
    with closing(Client(url)) as client:
        return client.search(name, form)


def closed_loop(
    url: str,
    pictures: Path,
    *,
    clients: int,
    seconds: float = math.inf,
    answers: int = 0,
    stop: threading.Event | None = None,
) -> list[TimedSearch]:
    """The searches of `clients` that each wait for an answer before the next search, in the order of the answers.

    They share the files of the folder `pictures`. All stop once one has an answer after `seconds` and there are
    `answers` in all, or when `stop` is set.
    """
    files, numbers, ended = _read(pictures), count(), stop or threading.Event()
    deadline = time.monotonic() + seconds
    searches: list[TimedSearch] = []

    def run_client() -> None:
        with closing(Client(url)) as client:
            while not ended.is_set():
                last = client.search(*files[next(numbers) % len(files)])
                searches.append(last)
                if last.ended >= deadline and len(searches) >= answers:
                    ended.set()

    with ThreadPoolExecutor(clients) as pool:
        for each in [pool.submit(run_client) for _ in range(clients)]:
            each.result()
    return sorted(searches, key=lambda search: search.ended)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Searches at a constant rate; `searches` is filled when the load ends."""

    searches: list[TimedSearch] = field(default_factory=list)

    def between(self, start: float, end: float) -> list[TimedSearch]:
        """The searches sent from `start` to `end`."""
        return [search for search in self.searches if start <= search.at < end]


@contextmanager
def load(url: str, pictures: Path, rate: float) -> Iterator[Load]:
    """Send `rate` searches a second from a separate process during the block, whether or not answers come."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_send_at_rate, args=(there, url, pictures, rate))
    process.start()
    there.close()  # so that the end of the process is noticed
    running = Load()
    try:
        here.recv()  # it has begun
        yield running
        here.send("stop")
        running.searches.extend(here.recv())
    finally:
        process.kill()
        process.join()


def _send_at_rate(parent: Connection, url: str, pictures: Path, rate: float) -> None:
    """Search every 1/rate seconds until the parent sends a message, then send it the searches."""
    files = _read(pictures)
    with ThreadPoolExecutor(_MAX_PENDING) as pool:
        parent.send("begun")
        started = time.monotonic()
        sent = []
        for number in count():
            if parent.poll(max(0.0, started + number / rate - time.monotonic())):
                break
            sent.append(pool.submit(search_once, url, *files[number % len(files)]))
        parent.send([each.result() for each in sent])


def _read(pictures: Path) -> list[tuple[str, tuple[bytes, str]]]:
    return [(path.name, search_form(path.name, path.read_bytes())) for path in sorted(pictures.iterdir())]
