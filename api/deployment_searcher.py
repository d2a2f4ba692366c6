"""Shards of the index in replicas of their own, and the Searcher that asks them. Uses Ray, as `api.deployment` does."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from api.errors import Problem
from api.logs import configure_logs
from api.notes import notes
from api.settings import ServeSettings
from index.collection import Collection
from index.errors import CollectionError, DamagedVersionError
from index.search import Searcher, searched_version
from index.shard import Shard, slices, version_schema
from index.shards import Call, Shards

logger = logging.getLogger(__name__)

# During a change of versions queries come for the old one and for the new one.
_VERSIONS_HELD: Final = 2
# A version's files may have to come from a bucket first.
_OPEN_TIMEOUT_S: Final = 900.0
# A shard that was lost is waited for no longer than this, but once in a while: it would hold up every search.
_LOST_TIMEOUT_S: Final = 0.25
_TRY_AGAIN_S: Final = 1.0
# What has been answered while another was waited for is taken all the same.
_AT_HAND_S: Final = 0.05


class SearcherReplica:
    """Searches the shard `number` of the version that each call names, and opens it first where it does not hold it.

    So a replica that is new, or that has missed a change of versions, answers like the others. The live version is
    opened at once, so that a replica is not there before it can search. Where that fails an older version may still
    be what is served: it is opened when it is asked for.
    """

    def __init__(self, settings: ServeSettings, number: int) -> None:
        configure_logs(settings.log_format)
        assert settings.shards is not None
        self._number, self._count = number, settings.shards
        self._collection = Collection.open(settings.collection)
        self._held: dict[str, Shard] = {}  # by version, the one used last at the end
        self._opening = asyncio.Lock()
        try:
            live = self._collection.current()
            if live is not None:
                self._held[live] = self._opened(live)
        except (CollectionError, OSError) as error:
            logger.warning("shard %d of the live index version cannot be opened: %s", number, error)

    async def open(self, version: str) -> None:
        """Hold the version. Raises CollectionError, OSError."""
        await self._hold(version)

    async def call(self, version: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """What the method of Shard answers. Raises CollectionError, OSError when the version cannot be opened."""
        shard = await self._hold(version)
        return await asyncio.to_thread(getattr(shard, method), *arguments)

    async def _hold(self, version: str) -> Shard:
        if version not in self._held:
            async with self._opening:
                if version not in self._held:
                    # Before the new one is opened: there may not be memory for one more.
                    while len(self._held) >= _VERSIONS_HELD:
                        del self._held[next(iter(self._held))]
                    self._held[version] = await asyncio.to_thread(self._opened, version)
        shard = self._held[version] = self._held.pop(version)
        return shard

    def _opened(self, version: str) -> Shard:
        manifest = self._collection.read_version(version)
        return Shard.open(self._collection, manifest, slices(manifest.segments, self._count)[self._number])


class Searchers:
    """The SearcherReplicas of all shards, from where they are asked. Thread-safe; not for an event loop's thread.

    What a replica that dies leaves undone another one is asked for. A shard that has not answered within `timeout_s` is
    lost; until it answers again it gets a quarter of a second, and the whole time once a second.
    """

    def __init__(self, handles: Sequence[DeploymentHandle[Any]], timeout_s: float) -> None:
        self._handles = list(handles)
        self._timeout_s = timeout_s
        self._lost: dict[int, float] = {}  # when it was last given the whole time
        self._lock = threading.Lock()

    def open(self, collection: Collection, version: str | None = None) -> Searcher:
        """A searcher of the version, once every replica of every shard holds it; None: of the live one.

        Raises CollectionError, and the Problem `shard-unavailable` when replicas do not answer.
        """
        manifest = searched_version(collection, version)
        schema = version_schema(collection, manifest)
        held = dict(enumerate(slices(manifest.segments, len(self._handles))))
        handles = [self._handles[number] for number, part in held.items() if part.segments]
        try:
            # The first answer waits for a replica, where none is up yet.
            for response in [handle.open.remote(manifest.version) for handle in handles]:
                response.result(timeout_s=_OPEN_TIMEOUT_S)
            for responses in [handle.broadcast("open", manifest.version) for handle in handles]:
                _require_opened(responses.results(timeout_s=_OPEN_TIMEOUT_S, return_exceptions=True))
        except RayTaskError as error:
            raise error.cause from None
        except (RayError, RayServeException, TimeoutError) as error:
            raise Problem("shard-unavailable", "searchers do not answer: try again soon", retry_after_s=2) from error
        return Searcher(manifest, Shards(held, schema, manifest.dim, partial(self._ask, manifest.version)))

    def _ask(self, version: str, calls: Mapping[int, Call]) -> dict[int, Any]:
        """The answers of the shards that answer in time."""
        started = monotonic()
        waits = {number: self._patience(number, started) for number in calls}
        asked = {number: self._begin(version, number, call) for number, call in calls.items()}
        answers: dict[int, Any] = {}
        # Those that are known to be lost first: their time ends first.
        for number in sorted(calls, key=waits.__getitem__):
            try:
                answers[number] = self._answer(version, number, calls[number], asked[number], started + waits[number])
            except (RayError, RayServeException, TimeoutError, DamagedVersionError, OSError) as error:
                logger.log(logging.DEBUG if number in self._lost else logging.WARNING, "shard %d: %r", number, error)
                notes().lost_shards.append(number)
        self._remember(waits, answers)
        return answers

    def _begin(self, version: str, number: int, call: Call) -> Any:
        return self._handles[number].call.remote(version, *call)

    def _answer(self, version: str, number: int, call: Call, response: Any, deadline: float) -> Any:
        try:
            while True:
                try:
                    return response.result(timeout_s=max(_AT_HAND_S, deadline - monotonic()))
                except RayActorError:
                    if monotonic() >= deadline:
                        raise
                    response = self._begin(version, number, call)
        except RayTaskError as error:
            raise error.cause from None
        except TimeoutError:
            with suppress(RayError, RayServeException):  # of what came of it meanwhile
                response.cancel()
            raise

    def _patience(self, number: int, now: float) -> float:
        with self._lock:
            if number in self._lost:
                if now - self._lost[number] < _TRY_AGAIN_S:
                    return min(_LOST_TIMEOUT_S, self._timeout_s)
                self._lost[number] = now
        return self._timeout_s

    def _remember(self, waits: Mapping[int, float], answers: Mapping[int, Any]) -> None:
        with self._lock:
            for number, waited in waits.items():
                if number not in answers:
                    if waited == self._timeout_s:
                        self._lost[number] = monotonic()
                elif self._lost.pop(number, None) is not None:
                    logger.warning("shard %d answers again", number)


def _require_opened(outcomes: Sequence[Any]) -> None:
    """Raises why a replica could not open the version. One that has died opens the live one when it is replaced."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, RayActorError):
            raise outcome
