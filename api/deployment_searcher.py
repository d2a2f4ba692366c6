"""Shards of the index in replicas of their own, and the Searcher that calls them. Uses Ray, like `api.deployment`."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from api.deployment_calls import answer
from api.errors import Problem
from api.held import Held
from api.logs import configure_logs
from api.notes import notes
from api.settings import ServeSettings
from index.collection import Collection
from index.errors import CollectionError, QueryError
from index.search import Searcher, searched_version
from index.shard import Shard, slices, version_schema
from index.shards import Call, Shards

logger = logging.getLogger(__name__)

# A version's files may have to come from a bucket first.
_OPEN_TIMEOUT_S: Final = 900.0
# A lost shard gets only this time, except for one full wait now and then: otherwise it would delay every search.
_LOST_TIMEOUT_S: Final = 0.25
_TRY_AGAIN_S: Final = 1.0


class SearcherReplica:
    """Searches the shard `number` of the version that each call names, and opens that first if it does not hold it.

    So a replica that is new, or that has missed a change of versions, answers like the others. The live version is
    opened at the start, so that a replica is not ready before it can search. If that fails, an older version may still
    be served: it is opened by the first call that names it.
    """

    def __init__(self, settings: ServeSettings, number: int) -> None:
        configure_logs(settings.log_format)
        assert settings.shards is not None
        self._number, self._count = number, settings.shards
        self._collection = Collection.open(settings.collection)
        self._shards = Held[Shard]()  # by version
        try:
            live = self._collection.current()
            if live is not None:
                self._shards.put(live, self._opened(live))
        except (CollectionError, OSError) as error:
            logger.warning("shard %d of the live index version cannot be opened: %s", number, error)

    async def open(self, version: str) -> None:
        """Hold the version. Raises CollectionError, OSError."""
        await self._shards.make(version, partial(self._opened, version))

    async def call(self, version: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """The result of Shard's method. Raises CollectionError, OSError when the version cannot be opened."""
        shard = await self._shards.call(version, partial(self._opened, version))
        return await asyncio.to_thread(getattr(shard, method), *arguments)

    def _opened(self, version: str) -> Shard:
        manifest = self._collection.read_version(version)
        return Shard.open(self._collection, manifest, slices(manifest.segments, self._count)[self._number])


class Searchers:
    """The caller's side of the SearcherReplicas of all shards. Thread-safe; not for an event loop's thread."""

    def __init__(self, handles: Sequence[DeploymentHandle[Any]], timeout_s: float) -> None:
        self._handles = list(handles)
        self._timeout_s = timeout_s

    def open(self, collection: Collection, version: str | None = None) -> Searcher:
        """A searcher of the version (None: the live one), once every replica of every shard holds it.

        Raises CollectionError, and the Problem `shard-unavailable` when replicas do not answer.
        """
        manifest = searched_version(collection, version)
        schema = version_schema(collection, manifest)
        held = dict(enumerate(slices(manifest.segments, len(self._handles))))
        handles = [self._handles[number] for number, part in held.items() if part.segments]
        deadline = monotonic() + _OPEN_TIMEOUT_S
        try:
            # The first answer waits for a replica, where none is up yet.
            calls = [partial(handle.open.remote, manifest.version) for handle in handles]
            for call, begun in [(call, call()) for call in calls]:
                answer(call, begun, deadline)
            for responses in [handle.broadcast("open", manifest.version) for handle in handles]:
                left = max(0.0, deadline - monotonic())
                _require_opened(responses.results(timeout_s=left, return_exceptions=True))
        except RayTaskError as error:
            raise error.cause from None
        except (RayError, RayServeException, TimeoutError) as error:
            raise Problem("shard-unavailable", "searchers do not answer: try again soon", retry_after_s=2) from error
        ask = Asked(self._handles, manifest.version, self._timeout_s)
        return Searcher(manifest, Shards(held, schema, manifest.dim, ask))


class Asked:
    """Calls the shards of one version. Thread-safe.

    If a replica dies, its calls are made again at another one. A shard that has not answered within `timeout_s` is
    lost; until it answers again it gets a quarter of a second, and the whole time once a second.
    """

    def __init__(self, handles: Sequence[DeploymentHandle[Any]], version: str, timeout_s: float) -> None:
        self._handles = handles
        self._version = version
        self._timeout_s = timeout_s
        self._lost: dict[int, float] = {}  # when the shard last got the whole time
        self._answered: dict[int, float] = {}  # when it last answered
        self._lock = threading.Lock()

    def __call__(self, calls: Mapping[int, Call]) -> dict[int, Any]:
        """The answers of the shards that answer in time. Raises QueryError."""
        started = monotonic()
        waits = {number: self._patience(number, started) for number in calls}
        begin = {number: self._begin(number, call) for number, call in calls.items()}
        begun = {number: call() for number, call in begin.items()}
        answers: dict[int, Any] = {}
        # Lost shards come first: their time ends first.
        for number in sorted(calls, key=waits.__getitem__):
            try:
                answers[number] = answer(begin[number], begun[number], started + waits[number])
            except QueryError:
                raise
            except (RayError, RayServeException, TimeoutError, CollectionError, OSError) as error:
                logger.log(logging.DEBUG if number in self._lost else logging.WARNING, "shard %d: %r", number, error)
                notes().lost_shards.append(number)
        self._remember(waits, answers, started)
        return answers

    def _begin(self, number: int, call: Call) -> Callable[[], Any]:
        return partial(self._handles[number].call.remote, self._version, *call)

    def _patience(self, number: int, now: float) -> float:
        with self._lock:
            if number in self._lost:
                if now - self._lost[number] < _TRY_AGAIN_S:
                    return min(_LOST_TIMEOUT_S, self._timeout_s)
                self._lost[number] = now
        return self._timeout_s

    def _remember(self, waits: Mapping[int, float], answers: Mapping[int, Any], started: float) -> None:
        now = monotonic()
        with self._lock:
            for number, waited in waits.items():
                if number in answers:
                    self._answered[number] = now
                    if self._lost.pop(number, None) is not None:
                        logger.warning("shard %d answers again", number)
                # A shard that has answered another thread since is not lost.
                elif waited == self._timeout_s and self._answered.get(number, started) <= started:
                    self._lost[number] = now


def _require_opened(outcomes: Sequence[Any]) -> None:
    """Raises the error of a replica that could not open the version. A dead one's successor opens the live version."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, RayActorError):
            raise outcome
