"""How many embedding actors fit into a cluster beside decoding, and what each reserves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from jobs.errors import JobError

DECODE_MEMORY = 2**30
"""Memory reserved for a decode task, in bytes; without it, Ray's memory monitor kills and retries tasks for ever."""

_DECODE = {"CPU": 1.0, "memory": float(DECODE_MEMORY)}
_ACCELERATOR = "accelerator_type:"  # Ray's prefix for a kind of GPU in a node's resources


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The minimum and maximum number of embedding actors, and what each reserves; `memory` is in bytes."""

    actors: tuple[int, int] = (1, 1)
    num_cpus: float = 1
    num_gpus: float = 0
    accelerator_type: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    memory: int = 0

    @property
    def reserved(self) -> dict[str, Any]:
        """Ray's options for one actor."""
        return {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus or None,
            "accelerator_type": self.accelerator_type,
            "resources": dict(self.resources) or None,
            "memory": self.memory or None,
        }

    @property
    def demand(self) -> list[dict[str, float]]:
        """The minimum that a job needs of a cluster, for its autoscaler: a bundle per actor, and one to decode."""
        return [self._needs] * self.actors[0] + [_DECODE]

    def for_cluster(self, actors: tuple[int, int] | None, num_gpus: float | None) -> "Pool":
        """The same with the requested actors and GPUs for each; by default as many as fit by the nodes' GPUs or
        `resources`, or one per node if an actor needs neither. Raises `JobError` if they do not fit, as Ray would wait
        for ever.
        """
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        # `resources` may be another kind of device, on nodes without GPUs.
        able = [node for node in nodes if all(node.get(name, 0) >= need for name, need in self.resources.items())]
        share = (1.0 if any(node.get("GPU", 0) >= 1 for node in able) else 0.0) if num_gpus is None else num_gpus
        pool = replace(self, num_gpus=share)
        capacities = _capacities(nodes, pool._needs)
        limit = _max_beside_decoding(nodes, capacities, pool._needs)
        if actors is None:
            count = sum(capacities) if share or self.resources else sum(capacity > 0 for capacity in capacities)
            actors = (max(1, int(min(count, limit))),) * 2
        if actors[0] > sum(capacities):
            raise JobError(
                f"{actors[0]} actors were requested, each with {_format_amounts(pool._needs)}; the cluster has room "
                f"for {sum(capacities)}: ask for fewer with --actors, or for less for each, or add nodes"
            )
        if actors[0] > limit:
            largest = max(node.get("memory", 0.0) for node in nodes)
            raise JobError(
                f"{actors[0]} actors, each with {_format_amounts(pool._needs)}, may leave no node with "
                f"{_format_amounts(_DECODE)} for decoding (the largest has {int(largest) >> 20:,} MiB for Ray): "
                + (f"ask for at most {limit:.0f} with --actors" if limit else "free some memory, or add a node")
            )
        return replace(pool, actors=actors)

    def shortage(self) -> str | None:
        """A message if other jobs use so much of the cluster that this one has to wait for them, else None."""
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        needs = {name: need + _DECODE.get(name, 0.0) for name, need in {"memory": 0.0, **self._needs}.items()}
        short = {name: need for name, need in needs.items() if free.get(name, 0.0) < need}
        if not short:
            return None
        return (
            f"the cluster has {_format_amounts({name: free.get(name, 0.0) for name in short})} free, but an actor and "
            f"decoding need {_format_amounts(short)}: the job waits until other jobs end or the cluster grows"
        )

    @property
    def _needs(self) -> dict[str, float]:
        """The needs of one actor, as Ray counts them, without zeros."""
        # Ray itself reserves this little of an accelerator type, so that any number of actors can share it.
        kind = {f"{_ACCELERATOR}{self.accelerator_type}": 0.001} if self.accelerator_type else {}
        needs = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory), **self.resources, **kind}
        return {name: need for name, need in needs.items() if need}


def _capacities(nodes: Sequence[Mapping[str, float]], needs: Mapping[str, float]) -> list[int]:
    """How many actors with these needs fit on each node. Raises JobError if none fits anywhere."""
    most = {name: max(node.get(name, 0.0) for node in nodes) for name in needs}
    if short := {name: need for name, need in needs.items() if most[name] < need}:
        raise JobError(_too_much(short, most, nodes))
    # The addend is for rounding, as shares such as 0.1 are not exact.
    capacities = [min(int(node.get(name, 0.0) / need + 1e-6) for name, need in needs.items()) for node in nodes]
    if not any(capacities):
        raise JobError(
            f"no node has all that an actor needs, {_format_amounts(needs)}: ask for less, or add such a node"
        )
    return capacities


def _max_beside_decoding(
    nodes: Sequence[Mapping[str, float]], capacities: Sequence[int], needs: Mapping[str, float]
) -> float:
    """How many actors leave room for decoding on some node, wherever Ray puts them. More could block a job for ever."""

    def can_decode(node: Mapping[str, float], actors: int) -> bool:
        return all(node.get(name, 0.0) - actors * needs.get(name, 0.0) >= need for name, need in _DECODE.items())

    filled = [
        next((actors for actors in range(capacity + 1) if not can_decode(node, actors)), math.inf)
        for node, capacity in zip(nodes, capacities, strict=True)
    ]
    return max(0, sum(filled) - 1)


def _too_much(short: Mapping[str, float], most: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    """The message for needs that no node can meet; `most` has the maximum over nodes."""
    name = next(iter(short))
    if name.startswith(_ACCELERATOR):
        named = (kind for node in nodes for kind in node if kind.startswith(_ACCELERATOR))
        kinds = sorted({kind.removeprefix(_ACCELERATOR) for kind in named})
        return (
            f"the cluster has no accelerator {name.removeprefix(_ACCELERATOR)!r}: it has {', '.join(kinds) or 'none'}; "
            "give one of these as --accelerator-type, or omit it"
        )
    remedy = {
        "GPU": "ask for a smaller share with --num-gpus",
        "memory": "free some memory, or add a larger node",
        "CPU": "ask for less with --cpus-per-actor, or add a node with more CPUs for Ray",
    }.get(name, "ask for less with --actor-resources, or add a node that has it")
    if len(short) > 1:  # a cluster that has not grown yet
        remedy = "ask for less, or add such a node"
    has = {name: most[name] for name in short}
    return f"an actor needs {_format_amounts(short)}, but no node has more than {_format_amounts(has)}: {remedy}"


def _format_amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(
        f"{int(amount) >> 20:,} MiB" if name == "memory" else f"{amount:g} {name}"
        for name, amount in amounts.items()
        if not name.startswith(_ACCELERATOR)
    )
