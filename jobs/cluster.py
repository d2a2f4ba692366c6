"""Ray for a job: a cluster of one on this machine, or one that is there already."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import ray

from embedder.model import ClipEmbedder
from embedder.protocol import Embedder
from jobs.errors import JobError

_CPUS_NEEDED = 2  # one for an actor and one for decoding: with less the pipeline would wait for itself


@contextmanager
def ray_cluster(address: str | None, *, verbose: bool) -> Iterator[None]:
    """Connect to the cluster at `address`, or start one here and stop it at the end.

    Workers' output is shown with `verbose` alone; their exceptions reach the driver either way.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not verbose:
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    level = logging.INFO if verbose else logging.ERROR
    with nullcontext() if verbose else _native_stderr_muted():
        if address is not None:
            ray.init(address=address, log_to_driver=verbose, logging_level=level)
        else:
            ray.init(
                address="local",  # never the remains of a cluster whose driver was killed
                num_cpus=max(_CPUS_NEEDED, os.cpu_count() or 1),
                include_dashboard=False,
                log_to_driver=verbose,
                logging_level=level,
            )
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _native_stderr_muted() -> Iterator[None]:
    """Ray's C++ side warns on the terminal of what Ray Data does by design. Python's own stderr still shows."""
    python_stderr = sys.stderr
    original = os.dup(2)
    with Path(os.devnull).open("w") as nowhere, os.fdopen(original, "w", buffering=1, closefd=False) as shown:
        os.dup2(nowhere.fileno(), 2)
        sys.stderr = shown
        try:
            yield
        finally:
            sys.stderr = python_stderr
            os.dup2(original, 2)
            os.close(original)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How many embedding actors, (least, most), and the share of a GPU that each takes; 0 for none."""

    actors: tuple[int, int]
    num_gpus: float

    @classmethod
    def fitting(cls, actors: tuple[int, int] | None, num_gpus: float | None) -> "Pool":
        """What was asked for; else an actor for every GPU of the connected cluster, or one a node without GPUs."""
        gpus = ray.cluster_resources().get("GPU", 0.0)  # type: ignore[no-untyped-call]
        cpus = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
        share = (1.0 if gpus else 0.0) if num_gpus is None else num_gpus
        if actors is None:
            nodes = len([node for node in ray.nodes() if node["Alive"]])  # type: ignore[no-untyped-call]
            count = max(1, int(gpus / share)) if share else nodes
            actors = (count, count)
        if actors[1] >= cpus:
            raise JobError(
                f"{actors[1]} actors, with a CPU each, leave none of the cluster's {cpus} CPUs for decoding: "
                f"ask for at most {cpus - 1} with --actors"
            )
        if actors[0] * share > gpus:
            raise JobError(
                f"{actors[0]} actors with {share:g} GPUs each need {actors[0] * share:g} GPUs, the cluster has "
                f"{gpus:g}: ask for fewer with --actors, or for a smaller share with --num-gpus"
            )
        return cls(actors=actors, num_gpus=share)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Loads the model where it is called: in an actor, on its machine."""

    model: str
    revision: str | None
    device: str | None
    batch_size: int

    def __call__(self) -> Embedder:
        # Ray gives a worker as many OpenMP threads as it has CPUs reserved, which is one. On a CPU the forward pass
        # should have the cores that decoding leaves free, and the kernel shares them out better than a fixed split.
        return ClipEmbedder.load(
            self.model,
            revision=self.revision,
            device=self.device,
            batch_size=self.batch_size,
            threads=os.cpu_count(),
        )
