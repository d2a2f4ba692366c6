"""When a schedule runs: crontab's five fields, with crontab's meaning."""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from tzlocal import get_localzone

from jobs.errors import UsageError


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
