"""Runs a job on a schedule on one machine, each run in a separate process."""

import logging
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from jobs.schedule.job_process import ScheduledJob

_LOOK_S = 60.0  # after sleep, a machine does not notice by itself that a time has passed

logger = logging.getLogger(__name__)


def run_schedule(job: ScheduledJob, times: Iterator[datetime], stop: threading.Event, *, jitter_s: float = 0) -> None:
    """Run a job at these times, each up to `jitter_s` later, until `stop` is set; then stop a run in progress.

    Times that pass during a run are skipped. One run makes up for all that the machine slept through.
    """

    def run_when_due() -> None:
        for due in times:
            if due <= datetime.now(UTC):
                logger.warning("the run at %s is skipped: the one before it ended later", due)
                continue
            due += timedelta(seconds=random.uniform(0, jitter_s))
            logger.info("the next run is at %s", due)
            while (wait := (due - datetime.now(UTC)).total_seconds()) > 0:
                if stop.wait(min(wait, _LOOK_S)):
                    return
            try:
                job.run()
            except Exception:  # whatever it is, it must not cost the nights to come
                logger.exception("the run at %s failed", due)

    thread = threading.Thread(target=run_when_due)
    thread.start()
    stop.wait()
    job.stop()
    thread.join()
