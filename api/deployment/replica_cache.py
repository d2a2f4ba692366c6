"""Caches the index versions or models that a replica used last."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, Generic, TypeVar

V = TypeVar("V")

# During a change, queries come for both the old value and the new one.
_MAX_VALUES: Final = 2
# Longer than the slowest replica may take to make the same value, since nobody calls it until all have made it.
_IDLE_S: Final = 900.0


class ReplicaCache(Generic[V]):
    """The two values that were called last, by key. A value that is not called for 15 minutes is dropped.

    A value is made once, in a thread, for all callers that wait for it. If they leave, making it continues, and a later
    call finds it. Only a call counts as use, so a value made in advance replaces one that nobody calls. For one event
    loop.
    """

    def __init__(self) -> None:
        self._values: dict[str, V] = {}  # most recently called last
        self._used: dict[str, float] = {}
        self._making: dict[str, asyncio.Task[V]] = {}
        self._one_at_a_time = asyncio.Lock()

    def put(self, key: str, value: V) -> None:
        """Add a value that nobody has called yet."""
        self._values = {key: value, **self._values}
        self._used[key] = monotonic()

    async def make(self, key: str, make: Callable[[], V]) -> V:
        """The value of `key`, made if necessary. Raises what `make` raises; the next call tries again."""
        if key in self._values:
            return self._values[key]
        if key not in self._making:
            self._making[key] = asyncio.create_task(self._make_once(key, make))
        return await asyncio.shield(self._making[key])

    async def call(self, key: str, make: Callable[[], V]) -> V:
        """Like `make`, but the value counts as used now."""
        value = await self.make(key, make)
        now = monotonic()
        if key in self._values:
            self._values[key] = self._values.pop(key)
            self._used[key] = now
        for other in [other for other, used in self._used.items() if now - used > _IDLE_S]:
            self._drop(other)
        return value

    async def _make_once(self, key: str, make: Callable[[], V]) -> V:
        try:
            async with self._one_at_a_time:
                # Before making the new one, since there may be no memory for a third.
                while len(self._values) >= _MAX_VALUES:
                    self._drop(next(iter(self._values)))
                value = await asyncio.to_thread(make)
                self.put(key, value)
                return value
        finally:
            del self._making[key]

    def _drop(self, key: str) -> None:
        del self._values[key], self._used[key]
