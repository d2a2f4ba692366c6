"""Starts this process's Ray, and joins an existing cluster, to whose workers it sends the code of this process."""

import os
import re
import signal
import socket
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray.exceptions

from jobs.errors import JobError

_PACKAGES = ("embedder", "index", "jobs", "api")
_OURS = Path(__file__).resolve().parents[2]


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

    Ray sends the folders, including the demo model (5 MB) and without compiled Python files, once for each state of
    their files. Dependencies such as torch and faiss have to be in the image: they are gigabytes, and per machine.
    """
    return {
        "py_modules": [str(_OURS / name) for name in _PACKAGES],
        "excludes": ["__pycache__", "*.pyc", ".env"],
    }


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
    """An empty working directory. Without one, Ray puts this process's directory before the code that it sends, and a
    node may hold another Likeness there. A job that was submitted with a working directory keeps that.
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
    return (
        f"a worker has no package {found[1]!r}: the image of every node must hold what Likeness needs, in the versions "
        "of constraints.txt; its own code alone is brought along"
    )
