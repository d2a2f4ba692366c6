"""Runs a job on a schedule on one machine, each run in a separate process."""

import logging
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from jobs.schedule.job_process import ScheduledJob

_CHECK_S = 60.0  # how often to look at the clock: a wait does not count the time that a machine sleeps

logger = logging.getLogger(__name__)


def run_schedule(job: ScheduledJob, times: Iterator[datetime], stop: threading.Event, *, jitter_s: float = 0) -> None:
    """Run a job at these times, each up to `jitter_s` later, until `stop` is set; then stop a run in progress.

    Times that pass during a run are skipped. One run makes up for all that the machine slept through.
    """

    def run_when_due() -> None:
        for due in times:
            if due <= datetime.now(UTC):
                logger.warning("skipping the run at %s: the one before it was still going", due)
                continue
            due += timedelta(seconds=random.uniform(0, jitter_s))
            logger.info("the next run is at %s", due)
            while (wait := (due - datetime.now(UTC)).total_seconds()) > 0:
                if stop.wait(min(wait, _CHECK_S)):
                    return
            try:
                job.run()
            except Exception:  # whatever it is, the next runs must still happen
                logger.exception("the run at %s failed", due)

    thread = threading.Thread(target=run_when_due)
    thread.start()
    stop.wait()
    job.stop()
    thread.join()
