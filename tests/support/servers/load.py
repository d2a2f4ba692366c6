"""Load on a server, as the benchmarks make it."""

from benchmarks.common.load import Asked, Load, crowd, load, milliseconds
from benchmarks.common.servers import eventually

__all__ = ["Asked", "Load", "crowd", "eventually", "load", "milliseconds"]
