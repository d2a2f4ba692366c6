"""Runs a job in a separate process, stops it, and records its outcome if the process could not do so itself."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from index.collection import Collection
from index.errors import CollectionError, NotACollectionError
from jobs.errors import SpecError
from jobs.schedule.history import HistoryEntry, last_entries, save_output
from jobs.schedule.run_job import finish, record
from jobs.schedule.spec_file import SpecFile
from jobs.spec import JobSpec

COMMAND = (sys.executable, "-P", "-m", "likeness", "reembed", "--spec")
OUTPUT_LINES = 2_000
STOP_S = 60.0
"""Seconds that a job gets to stop. Its next run continues with the rest."""

logger = logging.getLogger(__name__)


class ScheduledJob:
    """The job of a file. `run` and `stop` are called by different threads."""

    def __init__(self, path: Path, out: IO[str]) -> None:
        self._file = SpecFile(path)
        self._out = out
        self._child: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run the job in a separate process, so that its memory is freed; print and store its output."""
        if self._stopping.is_set():
            return
        with suppress(SpecError):  # which the process will report
            self._file.read_again()
        spec = self._file.spec
        entry = HistoryEntry.begin(spec.source, spec.collection)
        try:
            with TemporaryDirectory(prefix="likeness-", ignore_cleanup_errors=True) as folder:
                report = Path(folder) / "report.json"
                child = self._child = self._start(report)
                output = self._wait(child)
                has_notified = child.returncode == 0 or _has_begun(report)
        except OSError as error:  # out of memory, or Likeness was moved: only this process can report it
            finish(spec, entry.end("failed", f"could not be started: {error}"))
            return
        with suppress(SpecError):  # an edit meanwhile is for the next run, but for who is notified
            spec = spec.model_copy(update={"notify": self._file.read_again().notify})
        entry = entry.model_copy(update={"pid": child.pid})
        if child.returncode == 0:
            entry = entry.end("succeeded")
        else:
            message = _failure_message(child.returncode, output)
            entry = entry.end("stopped" if self._stopping.is_set() else "failed", message)
        _record_end(spec, entry, output, has_notified=has_notified)

    def stop(self) -> None:
        """Stop the current run, killing it after `STOP_S`, and start no other."""
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
        """Kill the current run and all its children at once."""
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)

    def _start(self, report: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, str(self._file.path), "--report", str(report)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the scheduler, which passes it on
        )

    def _wait(self, child: subprocess.Popen[str]) -> str:
        """The last of the output of a process, once that has ended."""
        if self._stopping.is_set():  # `stop` was called before the process existed
            child.terminate()
        output: deque[str] = deque(maxlen=OUTPUT_LINES)
        reader = threading.Thread(target=self._copy_output, args=(child, output), daemon=True)
        reader.start()
        child.wait()
        reader.join(timeout=5)  # not for ever: a child of the job may hold the pipe open
        return "".join(output.copy())

    def _copy_output(self, child: subprocess.Popen[str], output: deque[str]) -> None:
        if child.stdout is None:
            return
        with child.stdout as lines:
            for line in lines:
                output.append(line)
                self._out.write(line)
                self._out.flush()


def _record_end(spec: JobSpec, entry: HistoryEntry, output: str, *, has_notified: bool) -> None:
    """Store the output of a process, and its end if it has not recorded that itself."""
    recorded = _find_entry(spec, entry)
    if recorded is not None:
        entry = entry.model_copy(update={"id": recorded.id, "started_at": recorded.started_at})
    if recorded is None or recorded.outcome == "running":
        (record if has_notified else finish)(spec, entry)
    try:
        save_output(Collection.open(spec.collection).storage, entry.id, output)
    except NotACollectionError:
        pass  # its first job has failed
    except (CollectionError, OSError) as error:
        logger.warning("the output of job %s could not be stored: %s", entry.id, error)


def _has_begun(report: Path) -> bool:
    """Whether a process's report names its source: then its job has begun, and has sent its notification itself."""
    try:
        return bool(json.loads(report.read_text("utf-8"))["source"])
    except (OSError, ValueError, KeyError):  # it was killed, or could not start
        return False


def _find_entry(spec: JobSpec, end: HistoryEntry) -> HistoryEntry | None:
    """What a process has recorded of itself; an older process may have had the same id."""
    try:
        entries = last_entries(Collection.open(spec.collection), 20)
    except (CollectionError, OSError):
        return None
    earliest = end.started_at - timedelta(seconds=1)
    same = (each for each in entries if (each.host, each.pid) == (end.host, end.pid) and each.started_at >= earliest)
    return next(same, None)


def _failure_message(code: int, output: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", as happens when memory runs out" if name == "SIGKILL" else "")
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    return f"ended with {code}: {last}"
