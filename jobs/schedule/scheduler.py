"""Runs a job on a schedule on one machine, by APScheduler, with a separate process for each run."""

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

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from index.collection import Collection
from index.errors import CollectionError
from jobs.errors import SpecError
from jobs.schedule.history import JobRun, last_runs, save_output
from jobs.schedule.run_job import finish, remember
from jobs.schedule.spec import JobSpec, read_spec

COMMAND = (sys.executable, "-m", "jobs", "reembed", "--spec")
OUTPUT_LINES = 2_000
STOP_S = 60.0
"""Seconds that a job has to stop. Its next run continues with the rest."""

_LOOK_S = 60.0  # after sleep, a machine does not notice by itself that a time has passed

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
            run = JobRun.begin(self._spec.source, self._spec.collection)
            finish(self._spec, run.end("failed", f"could not be started: {error}"))
            return
        if self._stopping.is_set():  # `stop` was called before the process existed
            child.send_signal(signal.SIGINT)
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
        child.send_signal(signal.SIGINT)
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
        """Keep the output, and record the run if it could not do so itself."""
        with suppress(SpecError):  # the file's notification targets are told of this run too
            self._spec = read_spec(self._path)
        run = _run_of(self._spec, pid, began)
        if run is None or run.outcome == "running":
            run = run or _begin(self._spec, pid, began)
            if code == 0:  # it has sent its notification itself, and only its history could not be written
                run = run.end("succeeded")
                remember(self._spec, run)
            else:
                run = run.end("stopped" if self._stopping.is_set() else "failed", _why(code, output))
                finish(self._spec, run)
        try:
            save_output(Collection.open(self._spec.collection).storage, run.id, output)
        except (CollectionError, OSError) as error:
            logger.warning("what run %s printed is not kept: %s", run.id, error)


def run_schedule(job: ScheduledJob, trigger: BaseTrigger, stop: threading.Event) -> None:
    """Run a job at the trigger's times until `stop` is set, and then stop a run in progress.

    A run that is due while another is in progress is skipped, with a warning. One run makes up for all runs that were
    missed while the machine slept.
    """
    scheduler = BackgroundScheduler()

    def run() -> None:
        job.run()
        print_next()

    def print_next() -> None:
        logger.info("the next run is at %s", scheduled.next_run_time)

    scheduled = scheduler.add_job(run, trigger, max_instances=1, coalesce=True, misfire_grace_time=None)
    scheduler.start()
    print_next()
    while not stop.wait(_LOOK_S):
        scheduler.wakeup()
    job.stop()
    scheduler.shutdown()


def _run_of(spec: JobSpec, pid: int, began: datetime) -> JobRun | None:
    try:
        runs = last_runs(Collection.open(spec.collection), 20)
    except (CollectionError, OSError):
        return None
    return next(
        (run for run in runs if (run.host, run.pid) == (socket.gethostname(), pid) and run.started_at >= began), None
    )


def _begin(spec: JobSpec, pid: int, began: datetime) -> JobRun:
    run = JobRun.begin(spec.source, spec.collection)
    return run.model_copy(update={"pid": pid, "started_at": began})


def _why(code: int, output: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", as happens when memory runs out" if name == "SIGKILL" else "")
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    return f"ended with {code}: {last}"
