"""Ray for a job: a new cluster on this machine, or an existing one, to which the code of this process is sent."""

import gc
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import ray.exceptions

from jobs.errors import JobError, RayStartError

_START_S = 300
"""Ray's own patience with its processes is 30 s, too little on a busy machine."""
_OWN = ("embedder", "index", "jobs", "api")
_CPUS_NEEDED = 2  # one for an actor and one for decoding: with less the pipeline would wait for itself


@contextmanager
def ray_cluster(address: str | None, *, verbose: bool, **start: Any) -> Iterator[None]:
    """Connect to the cluster at `address`, or to one that is started for the while; `verbose` shows workers' output.

    `start` are options of `ray.init` for one that is started.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not verbose:
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    shown = {"log_to_driver": verbose, "logging_level": logging.INFO if verbose else logging.ERROR}
    with nullcontext() if verbose else _native_stderr_muted():
        if address is not None:
            join(address, **shown)
        else:
            _start_here({**shown, **start})
        try:
            yield
        finally:
            # Ray's C++ side exits with status 1 if another thread's garbage collection frees an ObjectRef meanwhile.
            gc.collect()
            ray.shutdown()


def _start_here(options: Mapping[str, Any]) -> None:
    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(_START_S))
    try:
        init(
            address="local",  # never the remains of a cluster whose driver was killed
            include_dashboard=False,
            **{"num_cpus": max(_CPUS_NEEDED, os.cpu_count() or 1), **options},
        )
    except Exception as error:  # Ray raises nothing narrower when its processes are late
        ray.shutdown()
        raise RayStartError(
            f"Ray did not start on this machine ({error}). It may be too busy: run the same command again, without Ray "
            "(--on local, for a server --local), or on a cluster by --address"
        ) from error


@contextmanager
def _native_stderr_muted() -> Iterator[None]:
    """Hides warnings of Ray's C++ side about what Ray Data does by design. Python's own stderr is still shown."""
    # Not what a progress bar has put before it for as long as it is shown.
    python_stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
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


def init(**options: Any) -> None:
    """`ray.init`, after which this process's handler of SIGTERM is restored: Ray's own one exits with 15."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        ray.init(**options)
    except SystemExit as stop:
        if callable(handler) and stop.code == signal.SIGTERM:  # Ray's was there already
            handler(signal.SIGTERM, None)
        raise
    finally:
        if callable(handler):  # without one, Ray's own at least ends what it started
            signal.signal(signal.SIGTERM, handler)


def shipped_code() -> dict[str, Any]:
    """The `runtime_env` with which workers import this process's code, whatever their image holds of it.

    Ray sends the folders, including the demo model (5 MB), once for each state of their files.
    """
    root = Path(__file__).resolve().parents[2]
    packages = [str(root / name) for name in _OWN]
    return {"py_modules": packages, "excludes": ["__pycache__", "*.pyc", ".env"]}


def join(address: str, **options: Any) -> None:
    """Connect to the cluster at an address; `options` are those of `ray.init`. JobError when that fails."""
    try:
        # If nobody listens there, `ray.init` tries for two minutes and then exits without a message.
        host, _, port = address.rpartition("://")[2].rpartition(":")
        if port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        with TemporaryDirectory() as empty:
            init(address=address, runtime_env={**shipped_code(), **_working_dir(empty)}, **options)
    except (OSError, SystemExit, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        told = " ".join(str(error).split())
        raise JobError(f"cannot join the Ray cluster at {address} ({told}): {_remedy(told)}") from error


def _working_dir(empty: str) -> dict[str, str]:
    """An empty working directory, unless the job was submitted with one. Without it, Ray puts this process's directory
    before the code that it sends, and a node may hold another Likeness there.
    """
    submitted = os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")
    return {} if '"working_dir"' in submitted else {"working_dir": empty}


def _remedy(told: str) -> str:
    if "Failed to merge" in told:
        return (
            "the job was submitted with py_modules of its own: leave these out, or set RAY_OVERRIDE_JOB_RUNTIME_ENV=1, "
            "with which those of Likeness take their place"
        )
    if "ersion mismatch" in told:
        return (
            "expected the Ray and the Python of the cluster here as well: run the job with these, or on the cluster "
            "with `ray job submit`"
        )
    return (
        "expected HOST:PORT as `ray start --head` printed it, from a machine of the cluster, or auto; from any other "
        "machine submit the job with `ray job submit`"
    )


def lacking(error: BaseException) -> str | None:
    """The message for a worker's error about a missing package; None for other errors."""
    found = re.search(r"No module named '([^'.]+)", str(error))
    if found is None:
        return None
    if found[1] in _OWN:  # Ray's workers look in this process's directory first
        return (
            f"a worker found another {found[1]!r} than that of Likeness: is there a file {found[1]}.py or a folder "
            f"{found[1]} in {Path.cwd()}? Rename it, or run the command elsewhere"
        )
    return (
        f"a worker has no package {found[1]!r}: the image of every node must hold what Likeness needs, in the versions "
        "of constraints.txt; its own code alone is brought along"
    )
