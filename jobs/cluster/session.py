"""Ray for a job: a new cluster on this machine, or an existing one."""

import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import ray

from jobs.cluster.join import init, join
from jobs.errors import RayStartError

_CPUS_NEEDED = 2  # one for an actor and one for decoding: with less the pipeline would wait for itself


@contextmanager
def ray_cluster(address: str | None, *, verbose: bool) -> Iterator[None]:
    """Connect to the cluster at `address`, or start one here and stop it at the end.

    Workers' output is shown only with `verbose`; their exceptions reach the driver either way.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not verbose:
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    level = logging.INFO if verbose else logging.ERROR
    with nullcontext() if verbose else _native_stderr_muted():
        if address is not None:
            join(address, log_to_driver=verbose, logging_level=level)
        else:
            _start_here(log_to_driver=verbose, logging_level=level)
        try:
            yield
        finally:
            # Ray's C++ side exits with status 1 if another thread's garbage collection frees an ObjectRef meanwhile.
            gc.collect()
            ray.shutdown()


def _start_here(*, log_to_driver: bool, logging_level: int) -> None:
    try:
        init(
            address="local",  # never the remains of a cluster whose driver was killed
            num_cpus=max(_CPUS_NEEDED, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=log_to_driver,
            logging_level=logging_level,
        )
    except Exception as error:  # Ray raises nothing narrower when its processes are late, for which it allows 30 s
        ray.shutdown()
        raise RayStartError(
            f"Ray did not start on this machine ({error}). It may be too busy: run the same command again, or join a "
            "cluster with --address"
        ) from error


@contextmanager
def _native_stderr_muted() -> Iterator[None]:
    """Hides warnings of Ray's C++ side about what Ray Data does by design. Python's own stderr is still shown."""
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
