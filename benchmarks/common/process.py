"""Time and memory that work takes, a hard limit on its memory, and processes of its own for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
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
    """What a function returns in a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@dataclass(frozen=True, kw_only=True)
class Command:
    """A whole `likeness …`: seconds from its start to its end, the peak MiB of its process, and what it printed."""

    seconds: float
    peak_mib: float
    printed: str


def likeness(*arguments: str) -> Command:
    """Run the command line in a process of its own. RuntimeError when it fails, with what it said."""
    command = [sys.executable, "-m", "jobs", *arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started, peak = time.perf_counter(), 0
        with subprocess.Popen(command, stdout=out, stderr=err) as process:
            while process.poll() is None:
                # Not `ru_maxrss`, which a new process begins with its parent's.
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max([peak, *map(int, re.findall(r"VmHWM:\s+(\d+) kB", status))])
                time.sleep(0.02)
        seconds = time.perf_counter() - started
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(f"likeness {arguments[0]} exited with {process.returncode}: {err.read()[-4000:]}")
        return Command(seconds=seconds, peak_mib=peak / 2**10, printed=out.read())


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def by_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median seconds, which each returns, by turns in each round. A first round, of cold caches, does not count."""
    found = defaultdict[str, list[float]](list)
    for number in range(rounds + 1):
        for name, run in runs.items():
            seconds = run()
            if number:
                found[name].append(seconds)
    return {name: median(each) for name, each in found.items()}


def peak_rss() -> int:
    """The most bytes that this process ever held."""
    return memory_status("VmHWM")  # not ru_maxrss, which a child inherits from its parent


def memory_status(name: str) -> int:
    """A line of Linux's account of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def can_limit_memory() -> bool:
    """Whether this process may make control groups that limit memory."""
    return os.access(_root(), os.W_OK) and (_root() == _V1 or "memory" in (_V2 / "cgroup.subtree_control").read_text())


@contextmanager
def limited_memory(limit: int) -> Iterator[None]:
    """This process gets at most so many bytes meanwhile, the pages of files that it reads included; the system takes
    back these, or else kills it.
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
