"""Progress of jobs, to kill them at random moments."""

import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.waiting import eventually
from tests.support.paths import ROOT


def pictures_so_far(log: Path) -> int:
    """For a job that logs a line for each picture."""
    return len(log.read_text().splitlines()) if log.exists() else 0


def await_random_moment(
    job: "subprocess.Popen[bytes]",
    progress: Callable[[], int],
    rng: random.Random,
    *,
    steps: int = 1,
    longest_s: float = 0.2,
) -> None:
    """Wait until a running job has made up to so many more steps of its `progress`, and up to `longest_s` longer."""
    aim = progress() + rng.randint(1, steps)
    eventually(lambda: progress() >= aim or job.poll() is not None, "the job makes progress", 120)
    time.sleep(rng.uniform(0, longest_s))
    assert job.poll() is None, "the job ended before it could be killed: give it more to do"


def kill_ten_times(command: Sequence[object], progress: Callable[[], int], **moments: Any) -> None:
    """Start a command and kill it at a random moment, ten times; then let it finish. `moments` are options of
    `await_random_moment`.
    """
    arguments, rng = list(map(str, command)), random.Random(4)
    for _ in range(10):
        job = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, cwd=ROOT)
        await_random_moment(job, progress, rng, **moments)
        job.kill()
        job.wait()
    subprocess.run(arguments, stdout=subprocess.DEVNULL, cwd=ROOT, check=True)
