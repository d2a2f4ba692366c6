"""Limits how often each caller may send requests."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from cachetools import LRUCache
from fastapi import Request
from starlette.types import Scope

from api.http.middleware.admission import SEARCH_PATHS, route_path
from api.problems import RateLimited

# A page of results is one search and dozens of thumbnails.
_READ_COST: Final = 0.1

_CHARGE: Final = "likeness.charge"


def charge(request: Request, searches: int) -> None:
    """Count `searches` more for a batch. The batch is not refused any more; the caller's next requests wait longer."""
    if (charge_caller := request.scope.get(_CHARGE)) is not None:
        charge_caller(searches)


class RateLimit:
    """A token bucket per caller: it holds a minute's worth of tokens, and refills evenly.

    For one event loop. Remembers the 10,000 most recent callers; others start with a full bucket.
    """

    def __init__(self, per_minute: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(10_000)  # tokens, and when they were counted

    def wait_s(self, caller: str, cost: float = 1.0) -> float:
        """Seconds until a request of this cost is admitted; if that is now, its cost is charged.

        One token admits a request of any cost; the rest is a debt, for which later requests wait.
        """
        tokens = self._tokens(caller)
        needed = min(cost, 1.0)
        if tokens < needed:
            return (needed - tokens) * 60 / self._per_minute
        self._store(caller, tokens - cost)
        return 0.0

    def admit(self, scope: Scope, caller: str) -> None:
        """Count a request. Raises Problem with the seconds to wait if its caller has sent too many."""
        if wait_s := self.wait_s(caller, _cost(scope)):
            wait_s = math.ceil(wait_s)
            raise RateLimited(
                f"more than {self._per_minute:g} requests a minute: retry in {wait_s} s. The limit, for each key or "
                "address, is the server's setting LIKENESS_RATE_LIMIT_PER_MINUTE",
                retry_after_s=wait_s,
            )
        scope[_CHARGE] = partial(self.charge, caller)

    def charge(self, caller: str, cost: float) -> None:
        self._store(caller, self._tokens(caller) - cost)

    def _tokens(self, caller: str) -> float:
        now = self._clock()
        tokens, at = self._buckets.get(caller, (self._per_minute, now))
        return min(self._per_minute, tokens + (now - at) * self._per_minute / 60)

    def _store(self, caller: str, tokens: float) -> None:
        self._buckets[caller] = tokens, self._clock()


def _cost(scope: Scope) -> float:
    is_read = scope["method"] in ("GET", "HEAD") and route_path(scope) not in SEARCH_PATHS
    return _READ_COST if is_read else 1.0
