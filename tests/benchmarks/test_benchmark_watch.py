"""`benchmarks.watch` on a small scale, with the watch killed once."""

from pathlib import Path

import pytest

from benchmarks.common.report import Report
from benchmarks.watch import soak_test


@pytest.mark.long
def test_every_picture_is_found_once_and_complete_although_the_watch_is_killed(tmp_path: Path) -> None:
    report = Report("watch")
    soak_test(tmp_path, 12, 6.0, 1, report)
    assert [bar.name for bar in report.bars if not bar.ok and bar.name != "slowest"] == []
