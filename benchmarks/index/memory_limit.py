"""A hard limit on the memory of this process, the pages of files that it reads included: Linux control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def can_limit() -> bool:
    """Whether this process may make control groups that limit memory."""
    return os.access(_root(), os.W_OK) and (_root() == _V1 or "memory" in (_V2 / "cgroup.subtree_control").read_text())


@contextmanager
def limited_memory(limit: int) -> Iterator[None]:
    """This process gets at most so many bytes meanwhile; the system takes back pages of files, or else kills it."""
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
