"""How many CPUs and how much memory a process may use, in a container or service that has a part of a machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from embedder import machine


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the control groups of a made-up machine with 64 CPUs are; `group` names those of this process."""
    monkeypatch.setattr(machine, "_GROUP", tmp_path / "group")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    machine.cpu_quota.cache_clear()
    yield tmp_path
    machine.cpu_quota.cache_clear()


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2),  # docker --cpus 2
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "10000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 64),
        ("0::/", {"cpu.max": "6500000 100000"}, 64),
        ("0::/", {}, 64),
        ("0::/a/b", {"cpu.max": "800000 100000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/my group/b", {"my group/cpu.max": "500000 100000"}, 5),
        ("0::/../../b", {"cpu.max": "400000 100000"}, 4),  # a group outside this container's namespace
        ("3:cpuset:/\n1:cpu,cpuacct:/docker/c", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "25000"}, 2),
        ("1:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_quotas_of_control_groups(groups: Path, group: str, files: dict[str, str], expected: int) -> None:
    write(groups, {"group": group, **files})
    assert machine.usable_cpus() == expected


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {"memory.max": "1000"}, 1000),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/", {}, None),
        ("0::/a", {"memory.max": "900", "a/memory.max": "2000"}, 900),
        ("1:memory:/a", {"memory/a/memory.limit_in_bytes": "700"}, 700),
        ("1:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_memory_of_control_groups(groups: Path, group: str, files: dict[str, str], expected: int | None) -> None:
    write(groups, {"group": group, **files})
    assert machine.usable_memory() == (expected or psutil.virtual_memory().total)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")


def test_no_control_groups(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.cpu_quota() is None
    assert machine.usable_cpus() == 64
    monkeypatch.delattr(os, "sched_getaffinity")
    assert machine.usable_cpus() == os.cpu_count()
