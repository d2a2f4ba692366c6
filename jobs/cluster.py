"""Ray for a job: a cluster of one on this machine, or one that is there already."""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from jobs.errors import JobError

DECODE_MEMORY = 2**30
"""Bytes that a decode task may take; without a figure Ray's memory monitor kills and retries for ever."""

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
            _connect(address, log_to_driver=verbose, logging_level=level)
        else:
            _start_here(log_to_driver=verbose, logging_level=level)
        try:
            yield
        finally:
            ray.shutdown()


def _init(**options: Any) -> None:
    """`ray.init`, which puts a handler of SIGTERM that exits with 15 in the place of this process's own."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        ray.init(**options)
    except SystemExit as stop:
        if callable(handler) and stop.code == signal.SIGTERM:  # Ray's was there already
            handler(signal.SIGTERM, None)
        raise
    finally:
        if callable(handler):  # without one, Ray's at least ends what it started
            signal.signal(signal.SIGTERM, handler)


def _start_here(*, log_to_driver: bool, logging_level: int) -> None:
    try:
        _init(
            address="local",  # never the remains of a cluster whose driver was killed
            num_cpus=max(_CPUS_NEEDED, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=log_to_driver,
            logging_level=logging_level,
        )
    except Exception as error:  # Ray raises nothing narrower when its processes are late, for which it allows 30 s
        ray.shutdown()
        raise JobError(
            f"Ray did not start on this machine ({error}). It may be too busy: run the same command again, or join a "
            "cluster with --address"
        ) from error


def _connect(address: str, *, log_to_driver: bool, logging_level: int) -> None:
    """Join a cluster. Where nobody listens `ray.init` tries for two minutes and then exits without a word."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), timeout=10).close()
        _init(address=address, log_to_driver=log_to_driver, logging_level=logging_level)
    except (OSError, SystemExit, RuntimeError, ValueError) as error:
        raise JobError(
            f"cannot join the Ray cluster at {address} ({error}): expected HOST:PORT as `ray start --head` printed it, "
            "ray://HOST:PORT, or auto"
        ) from error


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
    """How many embedding actors, (least, most), and what each takes: a share of a GPU, or none, of some kind."""

    actors: tuple[int, int] = (1, 1)
    num_gpus: float = 0
    accelerator_type: str | None = None

    @classmethod
    def fitting(
        cls, actors: tuple[int, int] | None, num_gpus: float | None, accelerator_type: str | None = None
    ) -> "Pool":
        """What was asked for; else an actor for every GPU of the connected cluster, or one a node without GPUs.

        Raises `JobError` for what the cluster cannot hold: Ray would wait for it for ever.
        """
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus, cpus = resources.get("GPU", 0.0), int(resources.get("CPU", 0))
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
        kinds = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
        if accelerator_type is not None and accelerator_type not in kinds:
            raise JobError(
                f"the cluster has no accelerator {accelerator_type!r}: it has {', '.join(kinds) or 'none'}; "
                "name one of these with --accelerator-type, or leave it out"
            )
        if resources.get("memory", 0) < DECODE_MEMORY:
            raise JobError(
                f"decoding takes up to {DECODE_MEMORY >> 20:,} MiB, Ray sees {int(resources.get('memory', 0)) >> 20:,} "
                "MiB to work with: free some memory"
            )
        return cls(actors=actors, num_gpus=share, accelerator_type=accelerator_type)
