"""Replicas that hold the shards of the index, and the searcher that calls them. Uses Ray."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from api.build_service import served_collections
from api.deployment.replica_cache import ReplicaCache
from api.deployment.replica_calls import answer, replica_errors
from api.deployment.shard_calls import ShardCaller
from api.observe.log import configure_logs
from api.problems import ShardUnavailable
from api.settings import ServeSettings
from index.collection import Collection
from index.errors import CollectionError
from index.search.searcher import searched_version
from index.search.shard import Shard, split_into_shards, version_schema
from index.search.sharded_index import ShardedIndex
from index.search.version_searcher import VersionSearcher

logger = logging.getLogger(__name__)

# A version's files may have to be downloaded from a bucket first.
_OPEN_TIMEOUT_S: Final = 900.0


class SearcherReplica:
    """Searches the shard `number` of the version whose edition each call names.

    It opens versions the way an EmbedderReplica loads models.
    """

    def __init__(self, settings: ServeSettings, number: int) -> None:
        configure_logs(settings.log_format)
        assert settings.shards is not None
        self._number, self._count = number, settings.shards
        [self._collection] = served_collections(settings).values()
        self._shards = ReplicaCache[Shard]()  # by edition
        try:
            live = self._collection.current()
            if live is not None:
                edition = self._collection.read_version(live).edition
                self._shards.put(edition, self._open_shard(edition))
        except (CollectionError, OSError) as error:
            logger.warning("shard %d of the live index version cannot be opened: %s", number, error)

    async def open(self, edition: str) -> None:
        """Open the version if necessary. Raises CollectionError, OSError."""
        await self._shards.make(edition, partial(self._open_shard, edition))

    async def call(self, edition: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """The result of a method of Shard. Raises CollectionError, OSError if the version cannot be opened."""
        shard = await self._shards.call(edition, partial(self._open_shard, edition))
        return await asyncio.to_thread(getattr(shard, method), *arguments)

    def _open_shard(self, edition: str) -> Shard:
        manifest = self._collection.read_version(edition.partition(" ")[0])
        if manifest.edition != edition:
            raise CollectionError(
                f"expected index version {edition}, got {manifest.edition}: {self._collection.location} is another "
                "collection now; restart the server"
            )
        return Shard.open(self._collection, manifest, split_into_shards(manifest.segments, self._count)[self._number])


def open_sharded(
    handles: Sequence[DeploymentHandle[Any]], timeout_s: float, collection: Collection, version: str | None = None
) -> VersionSearcher:
    """A searcher of the version (None: the live one) that calls the SearcherReplicas of all shards, once all replicas
    have opened it. Thread-safe; not for an event loop's thread.

    Raises CollectionError, and ShardUnavailable if replicas do not answer.
    """
    manifest = searched_version(collection, version)
    schema = version_schema(collection, manifest)
    shards = dict(enumerate(split_into_shards(manifest.segments, len(handles))))
    opening = [handles[number] for number, shard in shards.items() if shard.segments]
    deadline = monotonic() + _OPEN_TIMEOUT_S
    with replica_errors(ShardUnavailable, "searchers do not answer"):
        # The first answer waits for a replica, if none is up yet.
        calls = [partial(handle.open.remote, manifest.edition) for handle in opening]
        for call, response in [(call, call()) for call in calls]:
            answer(call, response, deadline)
        for responses in [handle.broadcast("open", manifest.edition) for handle in opening]:
            time_left = max(0.0, deadline - monotonic())
            for outcome in responses.results(timeout_s=time_left, return_exceptions=True):
                # A dead replica's successor opens the live version.
                if isinstance(outcome, BaseException) and not isinstance(outcome, RayActorError):
                    raise outcome
    caller = ShardCaller(handles, manifest.edition, timeout_s)
    return VersionSearcher(manifest, ShardedIndex(shards, schema, manifest.dim, caller))
