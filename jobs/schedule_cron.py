"""When a schedule runs: crontab's five fields, with crontab's meaning."""

import re
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

from jobs.errors import UsageError

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def cron_trigger(expression: str, timezone: str | None, jitter_s: int) -> CronTrigger:
    """The times of `0 3 * * *`, in a time zone or this machine's, each up to `jitter_s` seconds later.

    UsageError for what crontab would not take, and for days of the month and of the week together, where it takes
    either.
    """
    fields = expression.split()
    if len(fields) != 5:
        raise UsageError(f'--cron is {expression!r}: expected five fields, minute hour day month weekday: "0 3 * * *"')
    minute, hour, day, month, weekday = fields
    if day != "*" and weekday != "*":
        raise UsageError(f"--cron is {expression!r}: expected a day of the month or a weekday, and * for the other")
    try:
        zone = ZoneInfo(timezone) if timezone else None
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(f"--timezone is {timezone!r}: expected a name such as Europe/Berlin or UTC") from error
    try:
        return CronTrigger(
            minute=minute,
            hour=hour,
            day=day,
            month=month,
            day_of_week=_weekdays(weekday),
            timezone=zone,
            jitter=jitter_s or None,
        )
    except ValueError as error:
        raise UsageError(f"--cron is {expression!r}: {error}") from error


def _weekdays(field: str) -> str:
    """Names of days. APScheduler counts them from Monday, crontab from Sunday, which is 0 and 7."""
    if field == "*":
        return field
    days: set[int] = set()
    for part in field.lower().split(","):
        match = re.fullmatch(r"(?:(\*)|([0-7]|[a-z]{3})(?:-([0-7]|[a-z]{3}))?)(?:/([1-7]))?", part)
        if not match or (match[4] and match[2] and not match[3]):
            raise ValueError(f"expected weekdays such as 1-5, mon-fri or 0,6, got {field!r}")
        first, last = (0, 6) if match[1] else (_day(match[2]), _day(match[3] or match[2]))
        days |= {day % 7 for day in range(first, last + 1 + (7 if last < first else 0), int(match[4] or 1))}
    return ",".join(_DAYS[day] for day in sorted(days))


def _day(text: str) -> int:
    if text.isdecimal():
        return int(text)
    if text not in _DAYS:
        raise ValueError(f"expected one of {', '.join(_DAYS)}, got {text!r}")
    return _DAYS.index(text)
