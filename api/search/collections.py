"""The collections of one server: opened on first use, closed when idle or when memory is short."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, Self, TypeVar

from anyio import CapacityLimiter, to_thread

from api.errors import ApiError
from api.problems import CollectionNotFound, CollectionUnavailable, Problem, abbreviate
from api.search.engine import EXPECTED_ERRORS, Batchers
from api.search.service import SearchService
from embedder.images.decoder_pool import DecodePool
from index.collection import Collection
from index.collection.records.version_manifest import VersionManifest
from index.errors import NotACollectionError
from index.versions.servable import LiveVersion, live_version

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_S: Final = 15.0
_STATE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class ClosedCollection:
    """`open` takes as long as loading its model does."""

    collection: Collection
    open: Callable[[], SearchService]


@dataclass(kw_only=True)
class _OpenCollection:
    service: SearchService
    last_used: float = field(default_factory=monotonic)

    @property
    def memory(self) -> int:
        return self.service.engine.searcher.manifest.memory


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Why a collection cannot be opened; whether it may open when it is tried again."""

    reason: str
    may_pass: bool
    failed_at: float = field(default_factory=monotonic)

    @property
    def waits_s(self) -> float:
        """How long it is not tried again."""
        return self.failed_at + _RETRY_S - monotonic()

    def problem(self, name: str) -> Problem:
        wait = {"retry_after_s": max(0.0, round(self.waits_s, 3))} if self.may_pass else {}
        message = f"collection {name} cannot be opened: {self.reason}"
        return CollectionUnavailable(message, retryable=self.may_pass, **wait)


class Collections:
    """The services of collections, by name. They share models and decoders. For one event loop.

    A collection is closed after `idle_s` without a request; or earlier, the least recently used first, while the open
    indexes keep more than `max_memory` bytes hot. Requests that still use it complete normally, and the last one frees
    its memory. If one cannot be opened, it is tried again after 15 s. One that is `served` as a SearchService is open
    and never closed. Requests without a name get the `first`.
    """

    def __init__(
        self,
        served: Mapping[str, ClosedCollection | SearchService],
        *,
        batchers: Batchers,
        decoders: DecodePool,
        idle_s: float = float("inf"),
        max_memory: int | None = None,
    ) -> None:
        self.names = list(served)
        self.first = self.names[0]
        self.batchers = batchers
        self.decoders = decoders
        self._idle_s = idle_s
        self._max_memory = max_memory
        self._closable = {name: each for name, each in served.items() if isinstance(each, ClosedCollection)}
        """Those that may be closed, whether or not they are now."""
        services = {name: each for name, each in served.items() if isinstance(each, SearchService)}
        self._open = {name: _OpenCollection(service=service) for name, service in services.items()}
        self._opening: dict[str, asyncio.Task[SearchService]] = {}
        self._failures = dict[str, _Failure]()
        # Enough threads for all, so that a slow collection does not delay the others.
        self._threads = CapacityLimiter(2 * len(self.names))
        self._state_threads = CapacityLimiter(len(self.names))
        self._idle_task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, service: SearchService, name: str | None = None) -> Self:
        """A single collection, which is open and never closed."""
        name = name or (service.live.collection.name if service.live.collection else "collection")
        return cls({name: service}, batchers=service.live.batchers, decoders=service.decoders)

    @property
    def is_single(self) -> bool:
        return len(self.names) == 1

    @property
    def open_services(self) -> dict[str, SearchService]:
        return {name: opened.service for name, opened in list(self._open.items())}

    @property
    def memory(self) -> int:
        """Bytes that the open indexes keep hot."""
        return sum(opened.memory for opened in list(self._open.values()))

    async def start(self) -> None:
        """Start the open services, and from now on close idle ones."""
        self.decoders.start()
        for service in self.open_services.values():
            await self._in_thread(service.start)
        if self._closable:
            self._idle_task = asyncio.create_task(self._close_idle())

    async def close(self) -> None:
        if self._idle_task is not None:
            self._idle_task.cancel()
        for opening in list(self._opening.values()):
            with suppress(Exception):
                await opening
        for service in self.open_services.values():
            await self._in_thread(service.close)
        self.decoders.close()

    async def service(self, name: str) -> SearchService:
        """The service of a collection, which is opened if necessary. Raises Problem."""
        opened = self._open.get(name)
        if opened is not None:
            opened.last_used = monotonic()
            return opened.service
        if name not in self._closable:
            raise CollectionNotFound(f"no collection {abbreviate(name)}: see /collections")
        if name not in self._opening:
            if (failure := self._recent_failure(name)) is not None:
                raise failure.problem(name)
            self._opening[name] = opening = asyncio.create_task(self._open_once(name))
            opening.add_done_callback(asyncio.Future.exception)  # all who wait for it may have left
        return await asyncio.shield(self._opening[name])

    def location(self, name: str) -> str:
        closable = self._closable.get(name)
        collection = closable.collection if closable else self._open[name].service.live.collection
        return collection.location if collection else ""

    async def state(self, name: str) -> tuple[VersionManifest | None, str | None]:
        """The manifest of a collection's live version, if one can be read, and why it cannot be opened."""
        if (opened := self._open.get(name)) is not None:
            return opened.service.engine.searcher.manifest, None
        recent = self._recent_failure(name)
        failure = recent and recent.reason
        try:
            async with asyncio.timeout(_STATE_TIMEOUT_S):
                live = await to_thread.run_sync(
                    live_version, self._closable[name].collection, limiter=self._state_threads, abandon_on_cancel=True
                )
        except TimeoutError:
            live, failure = LiveVersion(), f"its manifest could not be read within {_STATE_TIMEOUT_S:g} s"
        except Exception as error:
            live, failure = LiveVersion(), failure or str(error)
        if live.damage and not failure:
            failure = str(live.damage)
        return live.manifest, failure or None

    def _recent_failure(self, name: str) -> _Failure | None:
        """Why the collection could not be opened; None if the next request tries again."""
        failure = self._failures.get(name)
        return failure if failure and failure.waits_s > 0 else None

    async def _open_once(self, name: str) -> SearchService:
        try:
            service = await self._in_thread(partial(self._open_and_start, name))
            opened = _OpenCollection(service=service)
            if self._max_memory is not None and opened.memory > self._max_memory:
                service.live.stop(wait=False)
                raise ApiError(
                    f"its index keeps {opened.memory:,} bytes in memory, more than the {self._max_memory:,} allowed "
                    "for all collections: start the server with a larger --max-memory"
                )
        except Exception as error:
            # A folder or bucket may be back soon; a file that is damaged stays so.
            may_pass = isinstance(error, (NotACollectionError, OSError))
            self._failures[name] = failure = _Failure(reason=str(error), may_pass=may_pass)
            logger.error(
                "collection %s cannot be opened: %s",
                name,
                error,
                exc_info=None if isinstance(error, EXPECTED_ERRORS) else error,
            )
            raise failure.problem(name) from error
        finally:
            del self._opening[name]
        self._failures.pop(name, None)
        self._make_room(opened.memory)
        self._open[name] = opened
        logger.info("collection %s is open: index version %s", name, service.engine.searcher.version)
        return service

    def _open_and_start(self, name: str) -> SearchService:
        storage = self._closable[name].collection.storage
        if not storage.exists():
            raise NotACollectionError(f"{storage.location} does not exist")
        service = self._closable[name].open()
        service.start()
        return service

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 15.0))
            oldest = monotonic() - self._idle_s
            for name in self._least_recently_used():
                if self._open[name].last_used < oldest:
                    self._close(name, "idle")
            self._make_room()  # a new index version may need more

    def _make_room(self, needed: int = 0) -> None:
        for name in self._least_recently_used():
            if self._max_memory is None or self.memory + needed <= self._max_memory:
                return
            self._close(name, "others need its memory")

    def _least_recently_used(self) -> list[str]:
        """The open collections that may be closed, in this order."""
        return sorted(self._open.keys() & self._closable.keys(), key=lambda name: self._open[name].last_used)

    def _close(self, name: str, why: str) -> None:
        self._open.pop(name).service.live.stop(wait=False)
        logger.info("collection %s is closed: %s", name, why)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._threads)
