"""Runs a job on a schedule on one machine, each run in a separate process: crontab's five fields, with its meaning."""

import logging
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from tzlocal import get_localzone

from jobs.errors import UsageError
from jobs.schedule.job_process import ScheduledJob

_CHECK_S = 60.0  # how often to look at the clock: a wait does not count the time that a machine sleeps

logger = logging.getLogger(__name__)


def cron_times(expression: str, timezone: str | None, start: datetime) -> Iterator[datetime]:
    """The times of an expression such as `0 3 * * *` after `start`, in a time zone, by default this machine's.

    In the hour that is repeated when daylight saving ends, times for every hour (`*`, `*/2`) come twice, and those of a
    named hour once. A time in the hour that is skipped in spring comes an hour later.

    UsageError for an expression that crontab would refuse, and for a day of the month together with a weekday, for
    which crontab would fire on either.
    """
    fields = expression.lower().split()
    if len(fields) != 5:
        raise UsageError(f'--cron is {expression!r}: expected five fields, minute hour day month weekday: "0 3 * * *"')
    _, hour, day, _, weekday = fields
    if day != "*" and weekday != "*":
        raise UsageError(f"--cron is {expression!r}: expected a day of the month or a weekday, and * for the other")
    try:
        zone = ZoneInfo(timezone) if timezone else get_localzone()
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(f"--timezone is {timezone!r}: expected a name such as Europe/Berlin or UTC") from error
    local_start = start.astimezone(zone)
    every_hour = hour.startswith("*")
    fields[4] = weekday.replace("-sun", "-7")  # to cronsim Sunday is the first day
    try:
        times = CronSim(" ".join(fields), local_start if every_hour else local_start.replace(tzinfo=None))
    except CronSimError as error:
        raise UsageError(f"--cron is {expression!r}: {error}") from error
    if every_hour:
        return times
    # Converted through UTC, so that `fold` is right and the time exists.
    due = (time.replace(tzinfo=zone).astimezone(UTC).astimezone(zone) for time in times)
    return (time for time in due if time > start)


def run_schedule(job: ScheduledJob, times: Iterator[datetime], stop: threading.Event, *, jitter_s: float = 0) -> None:
    """Run a job at these times, each up to `jitter_s` later, until `stop` is set; then stop a run in progress.

    Times that pass during a run are skipped. One run makes up for all that the machine slept through.
    """

    def run_when_due() -> None:
        for due in times:
            if due <= datetime.now(UTC):
                logger.warning("skipping the run at %s: the one before it was still going", due)
                continue
            # In UTC: a sum in a time zone counts by its clock, and forgets which of two equal times is meant.
            start = due.astimezone(UTC) + timedelta(seconds=random.uniform(0, jitter_s))
            logger.info("the next run is at %s", start.astimezone(due.tzinfo))
            while (wait := (start - datetime.now(UTC)).total_seconds()) > 0:
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
