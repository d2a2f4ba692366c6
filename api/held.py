"""What a replica holds: the last two index versions, or models, that it was called for."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, Generic, TypeVar

V = TypeVar("V")

# During a change queries come for the old one and for the new one.
_MOST: Final = 2
# Longer than others may take to make what this replica has made: until all have, nobody calls for it.
_IDLE_S: Final = 900.0


class Held(Generic[V]):
    """At most two values by their keys: those called last, and none that was not called for 15 minutes.

    A value is made once, in a thread, for all who wait for it, and goes on being made when they have left: who asks
    again finds it. Only that which was called counts as used, so what is made beforehand takes the place of what
    nobody calls. For one event loop.
    """

    def __init__(self) -> None:
        self._held: dict[str, V] = {}  # the one called last at the end
        self._used: dict[str, float] = {}
        self._making: dict[str, asyncio.Task[V]] = {}
        self._one_at_a_time = asyncio.Lock()

    def put(self, key: str, value: V) -> None:
        """Hold a value that nobody has called yet."""
        self._held = {key: value, **self._held}
        self._used[key] = monotonic()

    async def make(self, key: str, make: Callable[[], V]) -> V:
        """The value of `key`, made where it is not held. Raises what `make` raises; the next one tries again."""
        if key in self._held:
            return self._held[key]
        if key not in self._making:
            self._making[key] = asyncio.create_task(self._made(key, make))
        return await asyncio.shield(self._making[key])

    async def call(self, key: str, make: Callable[[], V]) -> V:
        """The same, to be used now."""
        value = await self.make(key, make)
        now = monotonic()
        if key in self._held:
            self._held[key] = self._held.pop(key)
            self._used[key] = now
        for other in [other for other, used in self._used.items() if now - used > _IDLE_S]:
            self._drop(other)
        return value

    async def _made(self, key: str, make: Callable[[], V]) -> V:
        try:
            async with self._one_at_a_time:
                # Before the new one is made: there may not be memory for one more.
                while len(self._held) >= _MOST:
                    self._drop(next(iter(self._held)))
                value = await asyncio.to_thread(make)
                self.put(key, value)
                return value
        finally:
            del self._making[key]

    def _drop(self, key: str) -> None:
        del self._held[key], self._used[key]
