"""When a web address is due for another look."""

import random
from datetime import UTC, datetime, timedelta

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from index.collection.checks import CHECK_SCHEMA
from jobs.addresses.check_listing import CheckRules

_NOW = datetime(2026, 3, 1, 3, tzinfo=UTC)
_DAY = 86_400


def rules(now: datetime = _NOW, refresh_s: int | None = 7 * _DAY) -> CheckRules:
    return CheckRules(now=now, refresh_s=refresh_s, gone_after=3, per_host=1)


def is_due(hours_ago: float, *, gone: int = 0, failed: int = 0, refresh_s: int | None = 7 * _DAY) -> bool:
    check = {"uri": "http://a/1", "checked": _NOW - timedelta(hours=hours_ago), "gone": gone, "failed": failed}
    return bool(due(rules(refresh_s=refresh_s), pa.Table.from_pylist([check], CHECK_SCHEMA))[0])


def due(of: CheckRules, checks: pa.Table) -> list[bool]:
    """Which of the checks are due."""
    return [bool(each) for (each,) in duckdb.connect().execute(f"SELECT {of.due} FROM checks").fetchall()]


@pytest.mark.parametrize(
    ("failed", "pause_h"),
    [(1, 0), (2, 1), (3, 2), (4, 4), (5, 8), (6, 16), (7, 32), (8, 64), (9, 128), (10, 168), (99, 168)],
)
def test_an_address_that_fails_is_tried_again_with_growing_pauses(failed: int, pause_h: float) -> None:
    assert is_due(pause_h, failed=failed)
    assert is_due(pause_h, failed=failed, refresh_s=None)  # rejects are always tried again
    if pause_h:
        assert not is_due(pause_h - 0.1, failed=failed)
    assert is_due(1, failed=failed, refresh_s=3600)


@pytest.mark.parametrize(("gone", "pause_h"), [(1, 20), (2, 20)])
def test_an_address_that_is_gone_is_looked_at_every_day_until_it_is_removed(gone: int, pause_h: float) -> None:
    assert (is_due(pause_h - 0.1, gone=gone), is_due(pause_h, gone=gone)) == (False, True)
    assert is_due(1, gone=gone, refresh_s=3600)


@pytest.mark.parametrize("gone", [0, 3, 50])
def test_an_address_is_due_once_in_a_period(gone: int) -> None:
    assert is_due(7 * 24, gone=gone)
    assert not is_due(0, gone=gone)
    checks = [{"uri": "http://a/1", "checked": _NOW - timedelta(hours=h), "gone": gone} for h in range(7 * 24)]
    hours = due(rules(), pa.Table.from_pylist([each | {"failed": 0} for each in checks], CHECK_SCHEMA))
    assert hours == sorted(hours)  # its moment, and from then on


def test_what_was_never_checked_or_checked_in_the_future_is_due() -> None:
    unknown = pa.Table.from_pylist([{"uri": "http://a/1"}], CHECK_SCHEMA)
    assert due(rules(), unknown) == [True]
    assert is_due(-24 * 365)  # the clock was set back
    assert due(rules(), CHECK_SCHEMA.empty_table()) == []


@pytest.mark.parametrize("days", [1, 7])
def test_checks_are_spread_over_the_nights_of_a_period(days: int) -> None:
    drawn, number, nights = random.Random(0), 3000, 3 * days
    uris = [f"http://host{drawn.randrange(20)}/{number}.jpg" for number in range(number)]
    checked = np.array([_NOW] * number, "O")
    looks = np.zeros((nights, number), bool)
    for night in range(nights):
        # Not to the second, and the first period may be short.
        now = _NOW + timedelta(days=night + 1, seconds=drawn.randrange(60))
        table = pa.table({"uri": uris, "checked": list(checked)} | dict.fromkeys(("gone", "failed"), [0] * number))
        looks[night] = due(rules(now, days * _DAY), table)
        checked[looks[night]] = now
    shares = looks.sum(axis=1)
    assert shares.min() > 0.7 * number / days
    assert shares.max() < 1.3 * number / days
    periods = looks.reshape(3, days, number).sum(axis=1)
    assert (periods == 1).mean() > 0.99  # a look just before or after the end of a period counts for the other
