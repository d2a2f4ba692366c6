"""Runs a job on a schedule on one machine, each run in a separate process: crontab's five fields, with its meaning."""

import logging
import os
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from tzlocal import get_localzone

from jobs.errors import UsageError
from jobs.schedule.job_process import ScheduledJob

_CHECK_S = 60.0  # how often to look at the clock: a wait does not count the time that a machine sleeps

logger = logging.getLogger(__name__)

NextTime = Callable[[datetime], datetime]
"""The first time after another. Both know their time zone."""


def parse_cron(expression: str, timezone: str | None) -> NextTime:
    """The times of an expression such as `0 3 * * *`, in a time zone, by default this machine's.

    In the hour that is repeated when daylight saving ends, times for every hour (`*`, `*/2`) come twice, and those of a
    named hour once. A time in the hour that is skipped in spring comes an hour later, if its hour is named.

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
        given = f"--timezone is {timezone!r}" if timezone else f"without --timezone, TZ is {os.environ.get('TZ')!r}"
        raise UsageError(f"{given}: expected a name such as Europe/Berlin or UTC") from error
    fields[4] = weekday.replace("-sun", "-7")  # to cronsim Sunday is the first day
    pattern, every_hour = " ".join(fields), hour.startswith("*")
    try:
        CronSim(pattern, datetime.now(UTC))
    except CronSimError as error:
        raise UsageError(f"--cron is {expression!r}: {error}") from error

    def next_time(after: datetime) -> datetime:
        local = after.astimezone(zone)
        if every_hour:
            return next(CronSim(pattern, local))
        # From the day before: a time that the clock skips comes later than its name says.
        named = CronSim(pattern, local.replace(tzinfo=None) - timedelta(days=1))
        # In UTC, so that `fold` is right and the time exists.
        due = next(time for each in named if (time := each.replace(tzinfo=zone).astimezone(UTC)) > after)
        return due.astimezone(zone)

    return next_time


def run_schedule(job: ScheduledJob, next_time: NextTime, stop: threading.Event, *, jitter_s: float = 0) -> None:
    """Run a job at these times, each up to `jitter_s` later, until `stop` is set; then stop a run in progress.

    Times that pass during a run are skipped. One run makes up for all that the machine slept through.
    """

    def run_when_due() -> None:
        due = next_time(datetime.now(UTC))
        while not stop.is_set():
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
            now = datetime.now(UTC)
            if (passed := next_time(due)) <= now:
                why = "the last one went on until now, or the machine slept"
                logger.warning("skipping the runs that were due since %s: %s", passed, why)
            due = next_time(now)

    thread = threading.Thread(target=run_when_due)
    thread.start()
    stop.wait()
    job.stop()
    thread.join()
