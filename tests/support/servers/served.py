"""`likeness serve` in a process of its own, as users start it and as the benchmarks do."""

from benchmarks.common.servers import Server as Served
from benchmarks.common.servers import free_port, replicas_of, serving

__all__ = ["Served", "free_port", "replicas_of", "serving"]
