"""Measure time and memory, limit memory, and run functions and commands in new processes."""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")

CORES = os.cpu_count() or 1
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")  # Linux control groups


def in_new_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process; returns its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@dataclass(frozen=True, kw_only=True)
class Command:
    """A finished command: seconds from start to end, CPU seconds of all its processes, peak memory of the first,
    with and without pages of mapped files, which the system may take back, and its output.
    """

    seconds: float
    cpu_s: float
    peak_mib: float
    anonymous_mib: float
    printed: str


def likeness(*arguments: str) -> Command:
    """Run `likeness` in a new process. Raises RuntimeError with its errors if it fails."""
    return run_command([sys.executable, "-m", "likeness", *arguments])


def run_command(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Command:
    """Run a command. Raises RuntimeError with its errors if it fails."""
    cpu = _cpu_of_children()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started, peaks = time.perf_counter(), {"VmHWM": 0, "RssAnon": 0}
        with subprocess.Popen(command, env=environment, stdout=out, stderr=err) as process:
            while process.poll() is None:
                # Not `ru_maxrss`, which a new process begins with its parent's.
                status = Path(f"/proc/{process.pid}/status").read_text()
                for name, size in re.findall(r"(VmHWM|RssAnon):\s+(\d+) kB", status):
                    peaks[name] = max(peaks[name], int(size))
                time.sleep(0.02)
        seconds = time.perf_counter() - started
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(f"{shlex.join(command)} exited with {process.returncode}: {err.read()[-4000:]}")
        peak_mib, anonymous_mib = (size / 2**10 for size in peaks.values())
        return Command(
            seconds=seconds,
            cpu_s=_cpu_of_children() - cpu,
            peak_mib=peak_mib,
            anonymous_mib=anonymous_mib,
            printed=out.read(),
        )


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def spent(work: Callable[[], T]) -> tuple[T, float, float]:
    """What a call returns, and the seconds and CPU seconds that this process takes for it."""
    started, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - started, time.process_time() - cpu


def by_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of the seconds that each returns; they take turns. A first round, with cold caches, does not count."""
    times = defaultdict[str, list[float]](list)
    for number in range(rounds + 1):
        for name, run in runs.items():
            seconds = run()
            if number:
                times[name].append(seconds)
    return {name: median(each) for name, each in times.items()}


def peak_rss() -> int:
    """Peak memory of this process, in bytes."""
    return memory_status("VmHWM")  # not ru_maxrss, which a child inherits from its parent


def memory_status(name: str) -> int:
    """A value of this process's `/proc/self/status`, in bytes."""
    return 1024 * _proc_value("status", name)


def bytes_read(name: str) -> int:
    """Bytes that this process has read: `rchar` by system calls, so without mapped files; `read_bytes` from disk."""
    return _proc_value("io", name)


def _proc_value(file: str, name: str) -> int:
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def can_limit_memory() -> bool:
    """Whether this process may create control groups that limit memory."""
    return os.access(_root(), os.W_OK) and (_root() == _V1 or "memory" in (_V2 / "cgroup.subtree_control").read_text())


@contextmanager
def limited_memory(limit: int) -> Iterator[None]:
    """Limit this process's memory to `limit` bytes during the block, pages of mapped files included. Linux reclaims
    those, and kills the process if that is not enough.
    """
    root = _root()
    group = root / f"likeness-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if root == _V1 else "memory.max")).write_text(str(limit))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _root() -> Path:
    return _V1 if _V1.exists() else _V2
