"""Folders for files that only one process needs."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from index.storage.scratch import Scratch

_PROCESS = """
import os, sys, time
from index.storage.scratch import Scratch
scratch = Scratch("test")
(scratch.path / "file").write_text("text")
print(scratch.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a scratch folder, which ends when its input is closed."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-c", _PROCESS]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as running:
        assert running.stdout is not None
        yield running, Path(running.stdout.readline().strip())


def test_a_folder_is_removed_with_its_block_or_its_object() -> None:
    with Scratch("test") as scratch:
        assert scratch.path.is_dir()
    assert not scratch.path.exists()
    kept = Scratch("test")
    path = kept.path
    kept.storage.write_atomic("file", b"data")
    assert (path / "file").read_bytes() == b"data"
    del kept
    gc.collect()
    assert not path.exists()


def test_what_killed_processes_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with process(tmp_path) as (killed, left), process(tmp_path) as (_, running):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "file").exists()
        with process(tmp_path):
            assert not left.parent.exists()
            assert (running / "file").exists()
    assert list(tmp_path.iterdir()) == []


def test_what_no_process_left_is_not_touched(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").touch()
    file, link, pipe, linked, none = (tmp_path / f"likeness-process-{number}" for number in range(5))
    file.touch()
    link.symlink_to(precious)
    for folder in (pipe, linked, none):
        folder.mkdir()
    os.mkfifo(pipe / "lock")
    (linked / "lock").symlink_to(precious / "lock")
    with process(tmp_path):
        assert (precious / "lock").exists()
        assert {file, link, linked, none} <= set(tmp_path.iterdir())
