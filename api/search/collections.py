"""The collections of one server: opened when they are first asked for, closed when idle or when memory is short."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, Self, TypeVar

from anyio import CapacityLimiter, to_thread

from api.errors import ApiError, Problem, abbreviate
from api.search.engine import EXPECTED, Batchers
from api.search.service import SearchService
from embedder.images.decoder_pool import DecodePool
from index.collection.records import VersionManifest
from index.versions.servable import LiveVersion

logger = logging.getLogger(__name__)

T = TypeVar("T")

_AGAIN_S: Final = 15.0
_DESCRIBED_WITHIN_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class CollectionSource:
    """How a collection is opened, and what is live in it, which opens nothing. Both block."""

    location: str
    open: Callable[[], SearchService]
    live: Callable[[], LiveVersion]


@dataclass(frozen=True, kw_only=True)
class CollectionState:
    """`failure` says why a collection cannot be opened; `manifest` is None if there is none that can be read."""

    name: str
    is_open: bool = False
    manifest: VersionManifest | None = None
    failure: str | None = None


@dataclass(kw_only=True)
class _Open:
    service: SearchService
    used: float

    @property
    def memory(self) -> int:
        return self.service.engine.searcher.manifest.memory


class Collections:
    """The services of collections, by name. They share models and decoders. For one event loop.

    One is closed after `idle_s` without a request, and earlier, the least recently used first, while the open indexes
    keep more than `max_memory` bytes hot. A request that still has a closed one ends undisturbed, and its memory is
    freed with the last. One that cannot be opened is tried again after 15 s. Requests that name none get the `first`.
    """

    def __init__(
        self,
        sources: Mapping[str, CollectionSource],
        *,
        batchers: Batchers,
        decoders: DecodePool,
        idle_s: float = float("inf"),
        max_memory: int | None = None,
    ) -> None:
        self.names = list(sources)
        self.first = self.names[0]
        self.batchers = batchers
        self.decoders = decoders
        self._sources = sources
        self._idle_s = idle_s
        self._max_memory = max_memory
        self._open: dict[str, _Open] = {}
        self._opening: dict[str, asyncio.Task[SearchService]] = {}
        self._failures: dict[str, tuple[float, str]] = {}
        # Threads enough for all: one that takes long keeps no other waiting.
        self._threads = CapacityLimiter(2 * len(self.names))
        self._describing = CapacityLimiter(len(self.names))
        self._tidying: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, service: SearchService, name: str | None = None) -> Self:
        """A single collection, which is open, and stays so."""
        collection = service.live.source and service.live.source.collection
        source = CollectionSource(
            location=collection.location if collection else "", open=lambda: service, live=LiveVersion
        )
        name = name or (collection.name if collection else "collection")
        single = cls({name: source}, batchers=service.batchers, decoders=service.decoders)
        single._open[name] = _Open(service=service, used=0.0)
        return single

    @property
    def is_single(self) -> bool:
        return len(self.names) == 1

    @property
    def open_services(self) -> dict[str, SearchService]:
        return {name: held.service for name, held in list(self._open.items())}

    @property
    def memory(self) -> int:
        """Bytes that the open indexes keep hot."""
        return sum(held.memory for held in list(self._open.values()))

    async def start(self) -> None:
        """Start what is open, and close what becomes idle from now on."""
        self.decoders.start()
        for service in self.open_services.values():
            await self._in_thread(service.start)
        if not self.is_single:
            self._tidying = asyncio.create_task(self._close_idle())

    async def close(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
        for opening in list(self._opening.values()):
            with suppress(Exception):
                await opening
        for service in self.open_services.values():
            await self._in_thread(service.close)
        self.decoders.close()

    async def service(self, name: str) -> SearchService:
        """The service of a collection, which is opened if it is not. Raises Problem."""
        held = self._open.get(name)
        if held is not None:
            held.used = monotonic()
            return held.service
        if name not in self._sources:
            raise Problem("collection-not-found", f"no collection {abbreviate(name)}: see /collections")
        if name not in self._opening:
            self._require_retry_due(name)
            self._opening[name] = opening = asyncio.create_task(self._opened(name))
            opening.add_done_callback(asyncio.Future.exception)  # nobody may wait for it any more
        return await asyncio.shield(self._opening[name])

    def location(self, name: str) -> str:
        return self._sources[name].location

    async def state(self, name: str) -> CollectionState:
        if (held := self._open.get(name)) is not None:
            manifest = held.service.engine.searcher.manifest
            return CollectionState(name=name, is_open=True, manifest=manifest)
        _, failure = self._failures.get(name, (0.0, ""))
        try:
            async with asyncio.timeout(_DESCRIBED_WITHIN_S):
                live = await to_thread.run_sync(
                    self._sources[name].live, limiter=self._describing, abandon_on_cancel=True
                )
        except TimeoutError:
            live, failure = LiveVersion(), f"its manifest could not be read within {_DESCRIBED_WITHIN_S:g} s"
        except Exception as error:
            live, failure = LiveVersion(), failure or str(error)
        if live.damage and not failure:
            failure = str(live.damage)
        return CollectionState(name=name, manifest=live.manifest, failure=failure or None)

    def _require_retry_due(self, name: str) -> None:
        failed_at, reason = self._failures.get(name, (-_AGAIN_S, ""))
        if monotonic() - failed_at < _AGAIN_S:
            raise _unavailable(name, reason)

    async def _opened(self, name: str) -> SearchService:
        try:
            service = await self._in_thread(partial(self._started, name))
            held = _Open(service=service, used=monotonic())
            if self._max_memory is not None and held.memory > self._max_memory:
                service.live.stop(wait=False)
                raise ApiError(
                    f"its index keeps {held.memory:,} bytes in memory, more than the {self._max_memory:,} that all "
                    "collections may: start the server with a larger --max-memory"
                )
        except Exception as error:
            self._failures[name] = monotonic(), str(error)
            logger.error(
                "collection %s cannot be opened: %s",
                name,
                error,
                exc_info=None if isinstance(error, EXPECTED) else error,
            )
            raise _unavailable(name, str(error)) from error
        finally:
            del self._opening[name]
        self._failures.pop(name, None)
        self._make_room(held.memory)
        self._open[name] = held
        logger.info("collection %s is open: index version %s", name, service.engine.searcher.version)
        return service

    def _started(self, name: str) -> SearchService:
        service = self._sources[name].open()
        service.start()
        return service

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 15.0))
            oldest = monotonic() - self._idle_s
            for name in [name for name, held in self._open.items() if held.used < oldest]:
                self._close(name, "idle")
            self._make_room()  # a new version may need more

    def _make_room(self, needed: int = 0) -> None:
        for name in sorted(self._open, key=lambda name: self._open[name].used):
            if self._max_memory is None or self.memory + needed <= self._max_memory:
                return
            self._close(name, "others need its memory")

    def _close(self, name: str, why: str) -> None:
        self._open.pop(name).service.live.stop(wait=False)
        logger.info("collection %s is closed: %s", name, why)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._threads)


def _unavailable(name: str, reason: str) -> Problem:
    return Problem("collection-unavailable", f"collection {name} cannot be opened: {reason}", retryable=False)
