"""What this process may use of the machine: CPUs and memory."""

import os
from collections.abc import Iterator
from functools import cache
from math import ceil
from pathlib import Path

_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """The CPUs that this process may run on, or fewer: those whose time its container may use."""
    return cpu_quota() or _cpus()


@cache
def cpu_quota() -> int | None:
    """The CPUs whose time its container or service may use, rounded up, as by `docker --cpus 2`; None if that is no
    less than the CPUs it may run on.
    """
    controls = _controls("cpu", ["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])
    quotas = [ceil(int(each[0]) / int(each[1])) for each in controls if len(each) == 2 and each[0] != "max"]
    quota = min((quota for quota in quotas if quota > 0), default=_cpus())
    return quota if quota < _cpus() else None


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory() -> int:
    """Bytes of the machine's memory, or fewer: those that its container may use."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    controls = _controls("memory", ["memory.max"], ["memory.limit_in_bytes"])
    return min([machine, *(int(limit) for [limit] in controls if limit != "max")])


def _controls(controller: str, names: list[str], names_in_1: list[str]) -> Iterator[list[str]]:
    """The words in these files of the control groups (cgroups(7)) that this process is in, as far as they are visible;
    the files have other names in version 1.
    """
    for line in _lines(_GROUP):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = _GROUPS / controller if controllers else _GROUPS
        own = top / os.path.normpath(f"/{path}").lstrip("/")
        for folder in (own, *own.parents):
            files = names_in_1 if controllers else names
            if words := [word for name in files for line in _lines(folder / name) for word in line.split()]:
                yield words
            if folder == top:
                break


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
