"""How many CPUs this process may use."""

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
    quota = min((ceil(quota) for quota in _quotas() if quota > 0), default=_cpus())
    return quota if quota < _cpus() else None


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas() -> Iterator[float]:
    """Of the control groups (cgroups(7)) that this process is in, version 2 and 1, as far as they are visible."""
    for line in _lines(_GROUP):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = _GROUPS / "cpu" if controllers else _GROUPS
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        own = top / os.path.normpath(f"/{path}").lstrip("/")
        for folder in (own, *own.parents):
            match [word for name in names for line in _lines(folder / name) for word in line.split()]:
                case [quota, period] if quota != "max":
                    yield int(quota) / int(period)
            if folder == top:
                break


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
