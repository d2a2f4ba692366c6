"""What it takes to serve a number of images, from the costs of a unit and assumptions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from benchmarks.scale.costs import Costs
from benchmarks.scale.examples import Assumed, Example


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Machines that hold a kind of index, one replica of it, and what each allows: queries per second, of all.

    `reads` is for vectors that are read from the disk, none of which is in memory; `front` is one front replica.
    """

    kind: str
    memory_bytes: float
    disk_bytes: float
    shards: int
    core_ms: float
    cores: float
    reads: float
    front: float = field(default=math.inf)

    @property
    def rate(self) -> float:
        return min(self.cores, self.reads, self.front)

    @property
    def bottleneck(self) -> str:
        names = {"cores": self.cores, "random reads from disk": self.reads, "the front's calls to shards": self.front}
        return min(names, key=lambda name: names[name])


def serving(costs: Costs, example: Example, assumed: Assumed, kind: str) -> Serving:
    """One replica of an index of a kind, on as few machines as hold it."""
    index, memory = costs.index_of(kind), costs.line(kind, lambda each: each.memory_bytes)
    disk = example.images * index.disk_bytes / index.rows
    shards = max(
        1,
        math.ceil(example.images * memory.slope / (assumed.usable * assumed.memory_bytes - memory.constant)),
        math.ceil(disk / (0.9 * assumed.disk_bytes)),
    )
    held = shards * memory.constant + example.images * memory.slope
    rows = min(example.images, example.segment_rows)
    core_ms = example.segments * index.core_ms * (rows / index.rows) ** costs.growth(kind)
    free = shards * assumed.memory_bytes * 0.9 - held
    in_memory = min(1.0, free / (example.images * index.vectors_bytes / index.rows))
    reads = example.segments * index.candidates * (1 - in_memory)
    return Serving(
        kind=kind,
        memory_bytes=held,
        disk_bytes=disk,
        shards=shards,
        core_ms=core_ms,
        cores=shards * assumed.cores * 1e3 / core_ms,
        reads=shards * assumed.disk_reads_per_s / reads if reads else math.inf,
        front=assumed.cores * 1e3 / (shards * assumed.call_ms) if shards > 1 else math.inf,
    )
