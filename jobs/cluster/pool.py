"""How many embedding actors a cluster has room for beside decoding, and what each reserves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from jobs.errors import JobError

DECODE_MEMORY = 2**30
"""Bytes that a decode task may take; without a figure Ray's memory monitor kills and retries tasks for ever."""

_DECODE = {"CPU": 1.0, "memory": float(DECODE_MEMORY)}
_ACCELERATOR = "accelerator_type:"  # Ray's prefix for a kind of GPU in a node's resources


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How many embedding actors, (least, most), and what each reserves; `memory` is in bytes."""

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
        """The least that a job takes of a cluster, for its autoscaler: a bundle for each actor, and one to decode."""
        return [self._needs] * self.actors[0] + [_DECODE]

    @classmethod
    def fitting(
        cls,
        actors: tuple[int, int] | None,
        num_gpus: float | None,
        accelerator_type: str | None = None,
        *,
        num_cpus: float = 1,
        resources: Mapping[str, float] | None = None,
        memory: int = 0,
    ) -> "Pool":
        """The requested actors; by default as many as the nodes' GPUs or `resources` have room for, or one for each
        node if an actor needs neither. `JobError` for actors that the cluster cannot hold: Ray would wait for ever.
        """
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        # Not if the resources stand for another kind of device, on nodes without GPUs.
        able = [node for node in nodes if all(node.get(name, 0) >= need for name, need in (resources or {}).items())]
        share = (1.0 if any(node.get("GPU", 0) >= 1 for node in able) else 0.0) if num_gpus is None else num_gpus
        pool = cls(
            num_cpus=num_cpus,
            num_gpus=share,
            accelerator_type=accelerator_type,
            resources=resources or {},
            memory=memory,
        )
        rooms = _rooms(nodes, pool._needs)
        most = _most_beside_decoding(nodes, rooms, pool._needs)
        if actors is None:
            count = sum(rooms) if share or resources else sum(room > 0 for room in rooms)
            actors = (max(1, int(min(count, most))),) * 2
        if actors[0] > sum(rooms):
            raise JobError(
                f"{actors[0]} actors were asked for, each with {_listed(pool._needs)}; the cluster has room for "
                f"{sum(rooms)}: ask for fewer with --actors, for less for each, or add nodes"
            )
        if actors[0] > most:
            largest = max(node.get("memory", 0.0) for node in nodes)
            raise JobError(
                f"{actors[0]} actors, each with {_listed(pool._needs)}, may leave no node {_listed(_DECODE)} for "
                f"decoding (the largest has {int(largest) >> 20:,} MiB for Ray): "
                + (f"ask for at most {most:.0f} with --actors" if most else "free some memory, or add a node")
            )
        return replace(pool, actors=actors)

    def lacking_now(self) -> str | None:
        """A message if others now hold so much of the cluster that this job has to wait for them, else None."""
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        needs = {name: need + _DECODE.get(name, 0.0) for name, need in {"memory": 0.0, **self._needs}.items()}
        short = {name: need for name, need in needs.items() if free.get(name, 0.0) < need}
        if not short:
            return None
        return (
            f"the cluster has {_listed({name: free.get(name, 0.0) for name in short})} free, an actor and decoding "
            f"take {_listed(short)}: the job waits until others there end, or the cluster grows"
        )

    @property
    def _needs(self) -> dict[str, float]:
        """The needs of one actor, as Ray counts them, without those that are zero."""
        # Any number of actors may share a kind of accelerator: Ray itself takes so little of that resource.
        kind = {f"{_ACCELERATOR}{self.accelerator_type}": 0.001} if self.accelerator_type else {}
        needs = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory), **self.resources, **kind}
        return {name: need for name, need in needs.items() if need}


def _rooms(nodes: Sequence[Mapping[str, float]], needs: Mapping[str, float]) -> list[int]:
    """How many actors with these needs each node can hold; JobError when none can hold one."""
    most = {name: max(node.get(name, 0.0) for node in nodes) for name in needs}
    if short := {name: need for name, need in needs.items() if most[name] < need}:
        raise JobError(_too_much(short, most, nodes))
    # Shares such as 0.1 are not exact.
    rooms = [min(int(node.get(name, 0.0) / need + 1e-6) for name, need in needs.items()) for node in nodes]
    if not any(rooms):
        raise JobError(
            f"no single node has all that an actor needs, {_listed(needs)}: ask for less, or add such a node"
        )
    return rooms


def _most_beside_decoding(
    nodes: Sequence[Mapping[str, float]], rooms: Sequence[int], needs: Mapping[str, float]
) -> float:
    """How many actors leave some node room for decoding, wherever Ray puts them. More could block a job for ever."""

    def decodes(node: Mapping[str, float], actors: int) -> bool:
        return all(node.get(name, 0.0) - actors * needs.get(name, 0.0) >= need for name, need in _DECODE.items())

    filled = [
        next((actors for actors in range(room + 1) if not decodes(node, actors)), math.inf)
        for node, room in zip(nodes, rooms, strict=True)
    ]
    return max(0, sum(filled) - 1)


def _too_much(short: Mapping[str, float], most: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    """The message for needs that no node can meet; `most` is what a node has at most."""
    name = next(iter(short))
    if name.startswith(_ACCELERATOR):
        named = (kind for node in nodes for kind in node if kind.startswith(_ACCELERATOR))
        kinds = sorted({kind.removeprefix(_ACCELERATOR) for kind in named})
        return (
            f"the cluster has no accelerator {name.removeprefix(_ACCELERATOR)!r}: it has {', '.join(kinds) or 'none'}; "
            "name one of these with --accelerator-type, or leave it out"
        )
    remedy = {
        "GPU": "ask for a smaller share with --num-gpus",
        "memory": "free some memory, or add a larger node",
        "CPU": "ask for less with --cpus-per-actor, or add a node with more CPUs for Ray",
    }.get(name, "ask for less with --actor-resources, or add a node that has it")
    if len(short) > 1:  # a cluster that has not grown yet
        remedy = "ask for less, or add such a node"
    has = {name: most[name] for name in short}
    return f"an actor takes {_listed(short)}, the node with the most has {_listed(has)}: {remedy}"


def _listed(amounts: Mapping[str, float]) -> str:
    return ", ".join(
        f"{int(amount) >> 20:,} MiB" if name == "memory" else f"{amount:g} {name}"
        for name, amount in amounts.items()
        if not name.startswith(_ACCELERATOR)
    )
