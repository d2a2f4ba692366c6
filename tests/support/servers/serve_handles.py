"""Stand-ins for handles of Ray Serve, whose replicas are in this process, and for the time that calls take."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RequestCancelledError

from embedder.errors import EmbedderError
from index.errors import CollectionError


class Clock:
    """The time of calls to replicas, which passes only while somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in ("embedder", "searcher", "shard_calls", "replica_calls"):
            monkeypatch.setattr(f"api.deployment.{module}.monotonic", lambda: self.now)
        monkeypatch.setattr("api.deployment.replica_calls.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Handle:
    """The handle of one `replica`. `failures` are of the next calls: the seconds that a call takes, and an error."""

    def __init__(self, replica: Any, clock: Clock, *failures: tuple[float, Exception | None]) -> None:
        self.replica, self.clock = replica, clock
        self.failures = list(failures)
        self.responses: list[Response] = []

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._call(method, args))

    def _call(self, method: str, args: tuple[Any, ...]) -> "Response":
        self.responses.append(Response(self, getattr(self.replica, method), args))
        return self.responses[-1]

    def broadcast(self, method: str, *args: Any) -> Any:
        response = self._call(method, args)

        def results(*, timeout_s: float, return_exceptions: bool) -> list[Any]:
            try:
                return [response.result(timeout_s=timeout_s)]
            except RayError as error:
                return [error]

        return SimpleNamespace(results=results)

    @property
    def waits(self) -> list[float]:
        """The seconds that callers waited for each call at most."""
        return [each.timeout_s for each in self.responses]


class Response:
    def __init__(self, handle: Handle, method: Any, args: tuple[Any, ...]) -> None:
        seconds, self._error = handle.failures.pop(0) if handle.failures else (0.0, None)
        self.args, self.timeout_s, self.is_cancelled = args, -1.0, False
        self._method, self._clock, self._done = method, handle.clock, handle.clock.now + seconds

    def result(self, *, timeout_s: float) -> Any:
        self.timeout_s = timeout_s
        deadline = self._clock.now + timeout_s
        self._clock.now = max(self._clock.now, min(self._done, deadline))
        if self._done > deadline:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        try:
            return asyncio.run(self._method(*self.args))
        except (CollectionError, EmbedderError) as error:
            raise task_error(error) from None

    def cancel(self) -> None:
        self.is_cancelled = True
        raise RequestCancelledError("1")  # as Serve does if the call has not reached a replica


def task_error(cause: Exception) -> RayTaskError:
    """What Ray raises for an exception of a replica."""
    return RayTaskError("call", "Traceback", cause, proctitle="ray", ip="127.0.0.1")  # type: ignore[no-untyped-call]
