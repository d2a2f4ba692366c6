"""How often each caller may send requests, and how much a request counts."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from cachetools import LRUCache
from fastapi import Request
from starlette.types import Scope

from api.errors import Problem
from api.http.middleware.admission import SEARCHING, route_path

# A page of results is one search and dozens of thumbnails.
_COST_OF_READING: Final = 0.1

_CHARGE: Final = "likeness.charge"


def charge(request: Request, searches: int) -> None:
    """Count `searches` more for a request that holds many. It is not refused any more: the next ones wait longer."""
    if (more := request.scope.get(_CHARGE)) is not None:
        more(searches)


class RateLimit:
    """A bucket of tokens per caller: a minute's worth may be used at once, and comes back evenly.

    For one event loop. Remembers 10,000 callers; the least recent one is forgotten first, and starts afresh.
    """

    def __init__(self, per_minute: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(10_000)  # tokens, and the time of that count

    def wait_s(self, caller: str, cost: float = 1.0) -> float:
        """0.0 if the request is admitted, and `cost` is taken; else the seconds until it can be.

        One token admits a request of any cost: the rest is a debt for which later requests wait.
        """
        tokens = self._tokens(caller)
        needed = min(cost, 1.0)
        if tokens < needed:
            return (needed - tokens) * 60 / self._per_minute
        self._keep(caller, tokens - cost)
        return 0.0

    def admit(self, scope: Scope, caller: str) -> None:
        """Count a request. Raises Problem with the seconds to wait when its caller has sent too many."""
        if wait_s := self.wait_s(caller, _cost(scope)):
            wait_s = math.ceil(wait_s)
            raise Problem("rate-limited", f"too many requests: come back in {wait_s} s", retry_after_s=wait_s)
        scope[_CHARGE] = partial(self.charge, caller)

    def charge(self, caller: str, cost: float) -> None:
        self._keep(caller, self._tokens(caller) - cost)

    def _tokens(self, caller: str) -> float:
        now = self._clock()
        tokens, at = self._buckets.get(caller, (self._per_minute, now))
        return min(self._per_minute, tokens + (now - at) * self._per_minute / 60)

    def _keep(self, caller: str, tokens: float) -> None:
        self._buckets[caller] = tokens, self._clock()


def _cost(scope: Scope) -> float:
    reads = scope["method"] in ("GET", "HEAD") and route_path(scope) not in SEARCHING
    return _COST_OF_READING if reads else 1.0
