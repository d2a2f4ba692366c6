"""How often each caller may ask."""

import time
from collections import OrderedDict
from collections.abc import Callable


class RateLimit:
    """A bucket of tokens per caller: a minute's worth may be used at once, and comes back evenly.

    For one event loop. Remembers `max_callers`; who has not asked for longest is forgotten first, and starts afresh.
    """

    def __init__(
        self, per_minute: float, *, clock: Callable[[], float] = time.monotonic, max_callers: int = 10_000
    ) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._max_callers = max_callers
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

    def wait_s(self, caller: str, cost: float = 1.0) -> float:
        """0.0 when the caller may ask, and `cost` is taken; else the seconds until it may.

        One token lets in whatever it costs: the rest is a debt that later requests wait for.
        """
        tokens = self._tokens(caller)
        needed = min(cost, 1.0)
        if tokens < needed:
            return (needed - tokens) * 60 / self._per_minute
        self._keep(caller, tokens - cost)
        return 0.0

    def charge(self, caller: str, cost: float) -> None:
        """Take `cost` more for a request that has been let in."""
        self._keep(caller, self._tokens(caller) - cost)

    def _tokens(self, caller: str) -> float:
        now = self._clock()
        tokens, at = self._buckets.get(caller, (self._per_minute, now))
        return min(self._per_minute, tokens + (now - at) * self._per_minute / 60)

    def _keep(self, caller: str, tokens: float) -> None:
        self._buckets[caller] = tokens, self._clock()
        self._buckets.move_to_end(caller)
        if len(self._buckets) > self._max_callers:
            self._buckets.popitem(last=False)
