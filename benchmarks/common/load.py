"""Searches by upload: one, those of clients who wait for their answers, and those that come at a constant rate."""

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
_AT_ONCE = 512  # searches of a constant rate that wait for their answers
_LOST = 0  # the status of a search that got no answer


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One search. `at` is when it was sent, on the machine's monotonic clock; `status` 0: no answer came, and `body`
    says why.
    """

    at: float
    seconds: float
    picture: str
    status: int
    retry_after: str
    body: bytes

    @property
    def ended(self) -> float:
        """When the answer had come."""
        return self.at + self.seconds

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The body, which is JSON."""
        document: dict[str, Any] = json.loads(self.body)
        return document


def milliseconds(asked: Sequence[Asked], percentile: float) -> float:
    """Of the latencies of those that were answered with 200."""
    return 1e3 * float(np.percentile([each.seconds for each in asked if each.status == 200], percentile))


class Client:
    """Searches over one connection, which it opens when it has to."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_TIMEOUT_S)

    def ask(self, name: str, form: tuple[bytes, str], path: str = "/search") -> Asked:
        """Search by a picture, which is in a body of a media type."""
        body, media_type = form
        status, retry_after = _LOST, ""
        at = time.monotonic()
        try:
            self._connection.request("POST", path, body, {"Content-Type": media_type})
            response = self._connection.getresponse()
            answer = response.read()
            status, retry_after = response.status, response.getheader("Retry-After", "")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            answer = repr(error).encode()
        seconds = time.monotonic() - at
        return Asked(at=at, seconds=seconds, picture=name, status=status, retry_after=retry_after, body=answer)

    def close(self) -> None:
        self._connection.close()


def form_of(name: str, data: bytes) -> tuple[bytes, str]:
    """The body of a search by a picture, or by what a JSON file says, and its media type."""
    if name.endswith(".json"):
        return data, "application/json"
    return encode_multipart_formdata([("image", (name, data))])


def ask_once(url: str, name: str, form: tuple[bytes, str]) -> Asked:
    """One search by a picture, over a connection of its own."""
    with closing(Client(url)) as client:
        return client.ask(name, form)


def crowd(
    url: str,
    pictures: Path,
    *,
    clients: int,
    seconds: float = math.inf,
    answers: int = 0,
    over: threading.Event | None = None,
    paths: Sequence[str] = ("/search",),
) -> list[Asked]:
    """What `clients` asked who each wait for the answer to their last search before the next, as it was answered.

    They go through the files of the folder `pictures`, and through `paths`. It is over for all when one of
    them has an answer after `seconds` and there are `answers` in all, or when `over` is set.
    """
    files, numbers, ended = _read(pictures), count(), over or threading.Event()
    deadline = time.monotonic() + seconds
    asked: list[Asked] = []

    def one() -> None:
        with closing(Client(url)) as client:
            while not ended.is_set():
                number = next(numbers)
                last = client.ask(*files[number % len(files)], paths[number % len(paths)])
                asked.append(last)
                if last.ended >= deadline and len(asked) >= answers:
                    ended.set()

    with ThreadPoolExecutor(clients) as pool:
        for each in [pool.submit(one) for _ in range(clients)]:
            each.result()
    return sorted(asked, key=lambda each: each.ended)


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load that is going on. `asked` has its searches once it has ended."""

    asked: list[Asked] = field(default_factory=list)

    def between(self, start: float, end: float) -> list[Asked]:
        """The searches that were sent from `start` to `end`."""
        return [each for each in self.asked if start <= each.at < end]


@contextmanager
def load(url: str, pictures: Path, rate: float) -> Iterator[Load]:
    """Searches `rate` times a second while the block lasts, whether or not answers come, from a process of its own."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_keep_asking, args=(there, url, pictures, rate))
    process.start()
    there.close()  # so that the end of the process is noticed
    going = Load()
    try:
        here.recv()  # it has begun
        yield going
        here.send("enough")
        going.asked.extend(here.recv())
    finally:
        process.kill()
        process.join()


def _keep_asking(parent: Connection, url: str, pictures: Path, rate: float) -> None:
    """One search each 1/rate seconds, until the parent sends word; then it is sent what was asked."""
    files = _read(pictures)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parent.send("begun")
        started = time.monotonic()
        sent = []
        for number in count():
            if parent.poll(max(0.0, started + number / rate - time.monotonic())):
                break
            sent.append(pool.submit(ask_once, url, *files[number % len(files)]))
        parent.send([each.result() for each in sent])


def _read(pictures: Path) -> list[tuple[str, tuple[bytes, str]]]:
    return [(path.name, form_of(path.name, path.read_bytes())) for path in sorted(pictures.iterdir())]
