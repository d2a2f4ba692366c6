"""Load on a server: clients that each ask for the next picture as soon as they are answered."""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from urllib3.filepost import encode_multipart_formdata


@dataclass(frozen=True, kw_only=True)
class Load:
    """What came of it: seconds of each answer, answers per second.

    `cpu_ms` is the CPU time that a query cost the server; `asking` is the share of one core that the clients took.
    """

    latencies: list[float]
    queries_per_second: float
    cpu_ms: float
    asking: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The times at which answers ended, in order, and the seconds that each took, while all clients were asking.

    `asked` counts those at the end too; `seconds` is what all took, `cpu_seconds` the clients' own share.
    """

    ends: list[float]
    latencies: list[float]
    asked: int
    seconds: float
    cpu_seconds: float


def ask(port: int, pictures: Sequence[bytes], *, clients: int, seconds: float, turns: int) -> Answers:
    """Ask a server on this machine from so many threads, for `seconds` and until there are `turns` answers for each.

    Raises RuntimeError for an answer that is no success.
    """
    asking = _Asking(port, pictures, seconds=seconds, least=turns * clients)
    started, cpu_started = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(clients) as pool:
        for client in [pool.submit(asking.run) for _ in range(clients)]:
            client.result()
    ends, latencies = zip(*sorted(asking.answers), strict=True)
    return Answers(
        ends=list(ends),
        latencies=list(latencies),
        asked=next(asking.numbers),
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
    )


def rate_of(ends: Sequence[float], clients: int) -> float:
    """Answers per second in steady state, of the times at which they ended, in order.

    Answers of a batch end together. So whole turns are counted, in which every client is answered once, from the end of
    the first turn to the end of the last.
    """
    turns = len(ends) // clients
    return (turns - 1) * clients / (ends[turns * clients - 1] - ends[clients - 1])


class _Asking:
    """`answers` are the times at which they ended and the seconds that they took, until the first client stopped.

    `numbers` counts what was asked.
    """

    def __init__(self, port: int, pictures: Sequence[bytes], *, seconds: float, least: int) -> None:
        self.answers: list[tuple[float, float]] = []
        self._port = port
        self._bodies = [encode_multipart_formdata([("image", ("image", data))]) for data in pictures]
        self.numbers = count()
        self._least = least
        self._deadline = time.perf_counter() + seconds
        self._over = False

    def run(self) -> None:
        """One client."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            while not self._over:
                started = time.perf_counter()
                self._ask(connection, next(self.numbers) % len(self._bodies))
                ended = time.perf_counter()
                if not self._over:
                    self.answers.append((ended, ended - started))
                    self._over = ended >= self._deadline and len(self.answers) >= self._least
        finally:
            self._over = True
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection, number: int) -> None:
        body, media_type = self._bodies[number]
        connection.request("POST", "/search", body, {"Content-Type": media_type})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"expected an answer to picture {number}, got {response.status}: {answer[:500]!r}")
