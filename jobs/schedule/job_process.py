"""A run of a job in a separate process: started, stopped, and recorded if it could not do so itself."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

from index.collection import Collection
from index.errors import CollectionError
from jobs.errors import SpecError
from jobs.schedule.history import HistoryEntry, last_entries, save_output
from jobs.schedule.run_job import finish, record
from jobs.schedule.spec_file import read_spec
from jobs.spec import JobSpec

COMMAND = (sys.executable, "-m", "jobs", "reembed", "--spec")
OUTPUT_LINES = 2_000
STOP_S = 60.0
"""Seconds that a job has to stop. Its next run continues with the rest."""

logger = logging.getLogger(__name__)


class ScheduledJob:
    """The job of a file. `run` and `stop` are called by different threads."""

    def __init__(self, path: Path, out: TextIO) -> None:
        self._path = path
        self._spec = read_spec(path)
        self._out = out
        self._child: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run the job in a separate process, which frees its memory at the end; print and keep its output."""
        if self._stopping.is_set():
            return
        began = datetime.now(UTC) - timedelta(seconds=1)
        try:
            child = self._child = self._start()
        except OSError as error:  # no memory, or Likeness was moved: only this process can report it
            entry = HistoryEntry.begin(self._spec.source, self._spec.collection)
            finish(self._spec, entry.end("failed", f"could not be started: {error}"))
            return
        if self._stopping.is_set():  # `stop` was called before the process existed
            child.terminate()
        kept: deque[str] = deque(maxlen=OUTPUT_LINES)
        reader = threading.Thread(target=self._copy, args=(child, kept), daemon=True)
        reader.start()
        code = child.wait()
        reader.join(timeout=5)  # not for ever: a child of the job may hold the pipe open
        self._close(child.pid, code, began, "".join(kept.copy()))

    def stop(self) -> None:
        """Stop a run, within `STOP_S`, and start no other."""
        self._stopping.set()
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()  # not SIGINT: a process started in the background by a shell ignores that
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End a run and all its children at once."""
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, str(self._path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the scheduler, which passes it on
        )

    def _copy(self, child: subprocess.Popen[str], kept: deque[str]) -> None:
        if child.stdout is None:
            return
        with child.stdout as lines:
            for line in lines:
                kept.append(line)
                self._out.write(line)
                self._out.flush()

    def _close(self, pid: int, code: int, began: datetime, output: str) -> None:
        """Keep the output, and record the job if it could not do so itself."""
        with suppress(SpecError):  # the file's notification targets are told of this job too
            self._spec = read_spec(self._path)
        entry = _entry_of(self._spec, pid, began)
        if entry is None or entry.outcome == "running":
            begun = HistoryEntry.begin(self._spec.source, self._spec.collection)
            entry = entry or begun.model_copy(update={"pid": pid, "started_at": began})
            if code == 0:  # it has sent its notification itself, and only its history could not be written
                entry = entry.end("succeeded")
                record(self._spec, entry)
            else:
                entry = entry.end("stopped" if self._stopping.is_set() else "failed", _why(code, output))
                finish(self._spec, entry)
        try:
            save_output(Collection.open(self._spec.collection).storage, entry.id, output)
        except (CollectionError, OSError) as error:
            logger.warning("the output of job %s could not be stored: %s", entry.id, error)


def _entry_of(spec: JobSpec, pid: int, began: datetime) -> HistoryEntry | None:
    try:
        entries = last_entries(Collection.open(spec.collection), 20)
    except (CollectionError, OSError):
        return None
    mine = (socket.gethostname(), pid)
    return next((each for each in entries if (each.host, each.pid) == mine and each.started_at >= began), None)


def _why(code: int, output: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", as happens when memory runs out" if name == "SIGKILL" else "")
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    return f"ended with {code}: {last}"
