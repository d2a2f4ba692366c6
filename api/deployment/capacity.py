"""Checks whether a cluster has room for the requested replicas."""

from collections.abc import Mapping, Sequence
from typing import Final

from api.build_service import served_collections
from api.errors import DeployError
from api.settings import ServeSettings
from index.collection.records.version_manifest import VersionManifest
from index.search.shard import split_into_shards
from index.versions.servable import live_manifest

_SEARCHER_BYTES: Final = 300 * 2**20  # Python, faiss and Arrow


def shard_memory(settings: ServeSettings, live: VersionManifest | None) -> list[int]:
    """Memory for a searcher of each shard, in bytes: its own, plus the part of the `live` index that it keeps hot."""
    if settings.shards is None:
        return []
    if live is None:
        return [_SEARCHER_BYTES] * settings.shards
    return [_SEARCHER_BYTES + part.memory for part in split_into_shards(live.segments, settings.shards)]


def empty_shards(settings: ServeSettings, live: VersionManifest) -> str | None:
    """A warning if there are more shards than segments of the `live` version, otherwise None."""
    if len(live.segments) >= (settings.shards or 0):
        return None
    return (
        f"index version {live.version} has {len(live.segments)} segments for {settings.shards} shards, so some shards "
        "are empty: build smaller segments with `likeness index --segment-rows`, or use fewer shards"
    )


def sharded_version(settings: ServeSettings) -> VersionManifest | None:
    """The live version, which is spread over shards; None without shards or without a version.

    Raises DeployError for several collections.
    """
    if settings.shards is None:
        return None
    collections = served_collections(settings)
    if len(collections) > 1:
        raise DeployError(
            f"--shards spreads one collection, got {', '.join(collections)}: serve these without --shards"
        )
    [collection] = collections.values()
    return live_manifest(collection)


Nodes = Sequence[Mapping[str, float]]
"""The resources of each node of a cluster, as Ray counts them: CPU, GPU, memory in bytes."""


def shortage(settings: ServeSettings, nodes: Nodes, shard_memory: Sequence[int] = ()) -> str | None:
    """Why `nodes` have no room for the minimum number of replicas in `settings`, and what to do; None if they have.

    `shard_memory`: the memory that a searcher of each shard reserves, in bytes.
    """
    embedders = settings.embedders.minimum if settings.embedders else 0
    searchers = (settings.shards or 0) * settings.searchers.minimum
    for kind, replicas, per_replica in (
        ("CPU", settings.replicas.minimum + embedders + searchers, settings.num_cpus),
        ("GPU", embedders or settings.replicas.minimum, settings.num_gpus),
    ):
        needed, available = replicas * per_replica, _total(nodes, kind)
        if needed > available + 1e-6:
            return (
                f"expected {needed:g} {kind}s, {per_replica:g} for each of {replicas} replicas, got {available:g}: "
                f"lower --replicas, --embedders or --shards, or reserve less for each with LIKENESS_NUM_{kind}S"
            )
        if per_replica > (largest := _largest(nodes, kind)) + 1e-6:
            return (
                f"expected a node with {per_replica:g} {kind}s for a replica, got {largest:g} at most: reserve less "
                f"for each with LIKENESS_NUM_{kind}S, or add such nodes"
            )
    memory, available = sum(shard_memory) * settings.searchers.minimum, _total(nodes, "memory")
    if memory > available:
        return (
            f"expected {memory / 2**30:.1f} GiB of memory for {searchers} searchers, got {available / 2**30:.1f} GiB: "
            "lower --searchers, build a smaller index with `likeness index --max-memory`, or add nodes"
        )
    if shard_memory and max(shard_memory) > (largest := _largest(nodes, "memory")):
        return (
            f"expected a node with {max(shard_memory) / 2**30:.1f} GiB of memory for the largest shard, got "
            f"{largest / 2**30:.1f} GiB at most: raise --shards, build smaller segments with `likeness index "
            "--segment-rows`, or add such nodes"
        )
    return None


def nodes_with_room(settings: ServeSettings, nodes: Nodes, memory: int) -> int:
    """How many nodes have room for a searcher that reserves `memory` bytes."""
    return sum(node.get("CPU", 0.0) >= settings.num_cpus and node.get("memory", 0.0) >= memory for node in nodes)


def _total(nodes: Nodes, kind: str) -> float:
    return sum(node.get(kind, 0.0) for node in nodes)


def _largest(nodes: Nodes, kind: str) -> float:
    return max((node.get(kind, 0.0) for node in nodes), default=0.0)
