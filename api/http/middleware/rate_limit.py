"""Limits the rate of each caller's requests."""

import time
from collections.abc import Callable

from cachetools import LRUCache


class RateLimit:
    """A bucket of tokens per caller: a minute's worth may be used at once, and comes back evenly.

    For one event loop. Remembers `max_callers`; the least recent one is forgotten first, and starts afresh.
    """

    def __init__(
        self, per_minute: float, *, clock: Callable[[], float] = time.monotonic, max_callers: int = 10_000
    ) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(max_callers)  # tokens, and the time of that count

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

    def charge(self, caller: str, cost: float) -> None:
        """Take `cost` more for a request that has been admitted."""
        self._keep(caller, self._tokens(caller) - cost)

    def _tokens(self, caller: str) -> float:
        now = self._clock()
        tokens, at = self._buckets.get(caller, (self._per_minute, now))
        return min(self._per_minute, tokens + (now - at) * self._per_minute / 60)

    def _keep(self, caller: str, tokens: float) -> None:
        self._buckets[caller] = tokens, self._clock()
