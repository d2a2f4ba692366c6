"""Calls all shards of a version at once. Decides how long each may take, and when a lost one is tried again.

`api/search/partial_answers.py` decides whether a search then fails or uses the other shards.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from api.deployment.replica_calls import answer
from api.observe.log import current_record
from index.errors import CollectionError
from index.search.sharded_index import Call

logger = logging.getLogger(__name__)

# No search waits longer than this for a lost shard. Another thread tries the shard again every `_TRY_AGAIN_S`.
_LOST_TIMEOUT_S: Final = 0.25
_TRY_AGAIN_S: Final = 1.0
_FAILURES: Final = (RayError, RayServeException, TimeoutError, CollectionError, OSError)


class ShardCaller:
    """Calls the shards of one version. Thread-safe.

    If a replica dies, its calls are repeated at another one. A shard that has not answered within `timeout_s` is lost.
    Until it answers again, searches give it a quarter of a second; once a second one of their calls is repeated with
    the whole time, in a thread of its own.
    """

    def __init__(self, handles: Sequence[DeploymentHandle[Any]], edition: str, timeout_s: float) -> None:
        self._handles = handles
        self._edition = edition
        self._timeout_s = timeout_s
        self._lost: dict[int, float] = {}  # when to try the shard again with the whole time
        self._answered: dict[int, float] = {}  # when it last answered
        self._lock = threading.Lock()

    def __call__(self, calls: Mapping[int, Call]) -> dict[int, Any]:
        """The answers of the shards that answer in time, by number."""
        started = monotonic()
        handles, edition = self._handles, self._edition
        starts = {number: partial(handles[number].call.remote, edition, *call) for number, call in calls.items()}
        timeouts = {number: self._timeout(number, starts[number], started) for number in calls}
        responses = {number: start() for number, start in starts.items()}
        answers: dict[int, Any] = {}
        # Lost shards come first: their time ends first.
        for number in sorted(calls, key=timeouts.__getitem__):
            try:
                answers[number] = answer(starts[number], responses[number], started + timeouts[number])
            except _FAILURES as error:
                logger.log(logging.DEBUG if number in self._lost else logging.WARNING, "shard %d: %r", number, error)
                current_record().lost_shards.append(number)
        self._record(timeouts, answers, started)
        return answers

    def _timeout(self, number: int, start: Callable[[], Any], now: float) -> float:
        """Seconds for a search's call to the shard; tries a lost shard again with `start`, if that is due."""
        with self._lock:
            if number not in self._lost:
                return self._timeout_s
            if now >= self._lost[number]:
                self._lost[number] = inf  # one at a time
                threading.Thread(target=self._try_again, args=(number, start), daemon=True).start()
        return min(_LOST_TIMEOUT_S, self._timeout_s)

    def _try_again(self, number: int, start: Callable[[], Any]) -> None:
        started = monotonic()
        answers: dict[int, Any] = {}
        try:
            with suppress(*_FAILURES):
                answers[number] = answer(start, start(), started + self._timeout_s)
        finally:
            self._record({number: self._timeout_s}, answers, started)

    def _record(self, timeouts: Mapping[int, float], answers: Mapping[int, Any], started: float) -> None:
        now = monotonic()
        with self._lock:
            for number, timeout_s in timeouts.items():
                if number in answers:
                    self._answered[number] = now
                    if self._lost.pop(number, None) is not None:
                        logger.warning("shard %d answers again", number)
                # A shard that has since answered another thread is not lost.
                elif timeout_s == self._timeout_s and self._answered.get(number, started) <= started:
                    self._lost[number] = now + _TRY_AGAIN_S
