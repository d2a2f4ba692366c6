"""Checks whether a cluster has room for the requested replicas."""

from collections.abc import Mapping, Sequence
from typing import Final

from api.build_service import served_collections
from api.errors import DeployError
from api.settings import ServeSettings
from index.collection.records import VersionManifest
from index.search.shard import split_into_shards
from index.versions.servable import live_manifest

_SEARCHER_BYTES: Final = 300 * 2**20  # Python, faiss and Arrow


def shard_memory(settings: ServeSettings, live: VersionManifest | None) -> list[int]:
    """Bytes of memory for a searcher of each shard: its own, plus the part of the `live` index that it keeps hot."""
    if settings.shards is None:
        return []
    if live is None:
        return [_SEARCHER_BYTES] * settings.shards
    return [_SEARCHER_BYTES + part.memory for part in split_into_shards(live.segments, settings.shards)]


def empty_shards(settings: ServeSettings, live: VersionManifest) -> str | None:
    """What to do if there are more shards than segments of the `live` version; None if there are not."""
    if len(live.segments) >= (settings.shards or 0):
        return None
    return (
        f"index version {live.version} has {len(live.segments)} segments for {settings.shards} shards, some of which "
        "hold nothing: build smaller ones with `likeness index --segment-rows`, or ask for fewer shards"
    )


def sharded_version(settings: ServeSettings) -> VersionManifest | None:
    """The live version that is spread over shards; None if there are no shards, or no version.

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
"""What each node of a cluster has, as Ray counts it: CPU, GPU, memory in bytes."""


def shortage(settings: ServeSettings, nodes: Nodes, shard_memory: Sequence[int] = ()) -> str | None:
    """What the minimum number of replicas in `settings` needs beyond what `nodes` have, and what to do about it.

    `shard_memory`: the bytes that a searcher of each shard reserves. None if there is room.
    """
    embedders = settings.embedders.minimum if settings.embedders else 0
    searchers = (settings.shards or 0) * settings.searchers.minimum
    for kind, replicas, each in (
        ("CPU", settings.replicas.minimum + embedders + searchers, settings.num_cpus),
        ("GPU", embedders or settings.replicas.minimum, settings.num_gpus),
    ):
        needed, there = replicas * each, _sum(nodes, kind)
        if needed > there + 1e-6:
            return (
                f"expected {needed:g} {kind}s, {each:g} for each of {replicas} replicas, got {there:g}: ask for fewer "
                f"with --replicas, --embedders and --shards, or for less for each with LIKENESS_NUM_{kind}S"
            )
        if each > (most := _most(nodes, kind)) + 1e-6:
            return (
                f"expected a node with {each:g} {kind}s for a replica, got {most:g} at most: ask for less for each "
                f"with LIKENESS_NUM_{kind}S, or add such nodes"
            )
    memory, there = sum(shard_memory) * settings.searchers.minimum, _sum(nodes, "memory")
    if memory > there:
        return (
            f"expected {memory / 2**30:.1f} GiB of memory for {searchers} searchers, got {there / 2**30:.1f} GiB: ask "
            "for fewer with --searchers, for a smaller index with `likeness index --max-memory`, or add nodes"
        )
    if shard_memory and max(shard_memory) > (most := _most(nodes, "memory")):
        return (
            f"expected a node with {max(shard_memory) / 2**30:.1f} GiB of memory for the largest shard, got "
            f"{most / 2**30:.1f} GiB at most: ask for more with --shards, build smaller segments with `likeness index "
            "--segment-rows`, or add such nodes"
        )
    return None


def places(settings: ServeSettings, nodes: Nodes, memory: int) -> int:
    """How many nodes have room for a searcher that reserves `memory` bytes."""
    return sum(node.get("CPU", 0.0) >= settings.num_cpus and node.get("memory", 0.0) >= memory for node in nodes)


def _sum(nodes: Nodes, kind: str) -> float:
    return sum(node.get(kind, 0.0) for node in nodes)


def _most(nodes: Nodes, kind: str) -> float:
    return max((node.get(kind, 0.0) for node in nodes), default=0.0)
