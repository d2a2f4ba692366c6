"""When a schedule runs: crontab's five fields, with crontab's meaning."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger

from jobs.errors import UsageError


class CrontabTrigger(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Like CronTrigger, but also fires in the repeated hour when daylight saving ends, which CronTrigger skips.

    As with cron, times given for every hour (`*`, `*/2`) then come twice, and those of a named hour once. A time in the
    hour that is skipped in spring comes an hour later.
    """

    __slots__ = ("_cron", "_each_hour", "_jitter_s")

    def __init__(self, cron: CronTrigger, *, each_hour: bool, jitter_s: int) -> None:
        self._cron = cron
        self._each_hour = each_hour
        self._jitter_s = jitter_s

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The first time after `previous_fire_time`, or, without one, from `now` on."""
        due = self._from(_second_after(previous_fire_time) if previous_fire_time else now)
        while due.fold and not self._each_hour:
            due = self._from(_second_after(due))
        later: datetime = self._apply_jitter(due, self._jitter_s, now)
        return later

    def _from(self, start: datetime) -> datetime:
        due: datetime = self._cron.get_next_fire_time(None, start.astimezone(UTC))
        return due.astimezone(UTC).astimezone(self._cron.timezone)  # so that `fold` is right, and the time exists


def _second_after(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)


_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def cron_trigger(expression: str, timezone: str | None, jitter_s: int) -> CrontabTrigger:
    """The times of `0 3 * * *`, in a time zone or this machine's, each up to `jitter_s` seconds later.

    UsageError for an expression that crontab would not take, and for a day of the month together with a weekday, for
    which crontab would fire on either.
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
        cron = CronTrigger(
            minute=minute, hour=hour, day=day, month=month, day_of_week=_weekdays(weekday), timezone=zone
        )
    except ValueError as error:
        raise UsageError(f"--cron is {expression!r}: {error}") from error
    if cron.get_next_fire_time(None, datetime.now(UTC)) is None:
        raise UsageError(f"--cron is {expression!r}: there is no such day")
    return CrontabTrigger(cron, each_hour=hour.startswith("*"), jitter_s=jitter_s)


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
