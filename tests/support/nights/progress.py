"""Progress of jobs that log a line for each picture, to kill them at random moments."""

import random
import subprocess
import time
from pathlib import Path

from benchmarks.common.waiting import eventually


def pictures_so_far(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def await_random_moment(job: "subprocess.Popen[bytes]", log: Path, rng: random.Random, *, pictures: int) -> None:
    """Wait until a running job has logged up to so many more pictures, and a fraction of a second longer."""
    aim = pictures_so_far(log) + rng.randint(1, pictures)
    eventually(lambda: pictures_so_far(log) >= aim or job.poll() is not None, "the job makes progress", 120)
    assert job.poll() is None, "the job ended before it could be killed: give it more to do"
    time.sleep(rng.uniform(0, 0.2))
