"""Ray for a job: a new cluster on this machine, or an existing one that gets the code of this process."""

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

from embedder.machine import usable_cpus
from jobs.errors import JobError, RayStartError

_START_S = 300
"""How long Ray waits for its processes; its default of 30 s is too short on a busy machine."""
_PACKAGES = ("embedder", "index", "jobs", "api")
_MIN_CPUS = 2  # one for an actor and one for decoding; with less the pipeline would wait for itself


@contextmanager
def ray_cluster(address: str | None, *, verbose: bool, **start: Any) -> Iterator[None]:
    """Connect to the cluster at `address`; without an address, start one here and stop it at the end.

    `verbose` shows the workers' output. `start` are options of `ray.init` for starting.
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
            # If another thread's garbage collection frees an ObjectRef during shutdown, Ray's C++ code exits with 1.
            gc.collect()
            ray.shutdown()


def _start_here(options: Mapping[str, Any]) -> None:
    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(_START_S))
    try:
        init(
            address="local",  # never the remains of a cluster whose driver was killed
            include_dashboard=False,
            **{"num_cpus": max(_MIN_CPUS, usable_cpus()), **options},
        )
    except Exception as error:  # Ray raises nothing narrower when its processes are late
        ray.shutdown()
        raise RayStartError(
            f"Ray did not start on this machine ({error}). It may be too busy: run the same command again, without Ray "
            "(--on local, for a server --local), or on a cluster by --address"
        ) from error


@contextmanager
def _native_stderr_muted() -> Iterator[None]:
    """Hides warnings of Ray's C++ code about things that Ray Data does by design. Python's stderr is still shown."""
    # While a progress bar is shown, sys.stderr is its proxy.
    python_stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    original = os.dup(2)
    with Path(os.devnull).open("w") as devnull, os.fdopen(original, "w", buffering=1, closefd=False) as shown:
        os.dup2(devnull.fileno(), 2)
        sys.stderr = shown
        try:
            yield
        finally:
            sys.stderr = python_stderr
            os.dup2(original, 2)
            os.close(original)


def init(**options: Any) -> None:
    """`ray.init`, but with this process's handler of SIGTERM restored afterwards: Ray's own exits with 15."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        ray.init(**options)
    except SystemExit as stop:
        if callable(handler) and stop.code == signal.SIGTERM:  # it reached Ray's handler
            handler(signal.SIGTERM, None)
        raise
    finally:
        if callable(handler):  # otherwise Ray's handler stays, and at least stops the processes that Ray started
            signal.signal(signal.SIGTERM, handler)


def shipped_code() -> dict[str, Any]:
    """The `runtime_env` that makes workers import this process's code, whatever version their image has.

    Ray uploads the folders, including the demo model (5 MB), again only after a file has changed.
    """
    root = Path(__file__).resolve().parents[2]
    packages = [str(root / name) for name in _PACKAGES]
    return {"py_modules": packages, "excludes": ["__pycache__", "*.pyc", ".env"]}


def join(address: str, **options: Any) -> None:
    """Connect to the cluster at an address; `options` are those of `ray.init`. Raises JobError if that fails."""
    try:
        # If nothing listens there, `ray.init` retries for two minutes and then exits without a message.
        host, _, port = address.rpartition("://")[2].rpartition(":")
        if port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        with TemporaryDirectory() as empty:
            init(address=address, runtime_env={**shipped_code(), **_working_dir(empty)}, **options)
    except (OSError, SystemExit, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        message = " ".join(str(error).split())
        raise JobError(f"cannot join the Ray cluster at {address} ({message}): {_remedy(message)}") from error


def _working_dir(empty: str) -> dict[str, str]:
    """An empty working directory, unless the job was submitted with one. Without it, workers would look in this
    process's directory first, where a node may have another Likeness.
    """
    submitted = os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")
    return {} if '"working_dir"' in submitted else {"working_dir": empty}


def _remedy(message: str) -> str:
    if "Failed to merge" in message:
        return (
            "the job was submitted with its own py_modules: omit them, or set RAY_OVERRIDE_JOB_RUNTIME_ENV=1 so "
            "that those of Likeness replace them"
        )
    if "ersion mismatch" in message:
        return (
            "expected the versions of Ray and Python that the cluster has: run the job with these, or on the cluster "
            "with `ray job submit`"
        )
    return (
        "expected auto, or HOST:PORT as `ray start --head` printed it, on a machine of the cluster; from any other "
        "machine, submit the job with `ray job submit`"
    )


def missing_package_message(error: BaseException) -> str | None:
    """The message for a worker's error about a missing package; None for other errors."""
    found = re.search(r"No module named '([^'.]+)", str(error))
    if found is None:
        return None
    if found[1] in _PACKAGES:  # Ray's workers look in this process's directory first
        return (
            f"a worker imported another {found[1]!r} than that of Likeness: is there a file {found[1]}.py or a folder "
            f"{found[1]} in {Path.cwd()}? Rename it, or run the command elsewhere"
        )
    return (
        f"a worker has no package {found[1]!r}: the image of every node must have what Likeness needs, in the versions "
        "of constraints.txt; the job sends only its own code"
    )
