"""What `benchmarks.startup` makes of what it measured."""

from benchmarks.common.report import Report
from benchmarks.startup import BARS, MOST_MIB, TORCH, judge


def test_bars_compare_with_importing_torch() -> None:
    report = Report("startup")
    judge({TORCH: 2.0, **{name: 2.0 * bar for name, bar in BARS.items()}, "search, by id": 1.1}, MOST_MIB + 1, report)
    assert [bar.value for bar in report.bars] == [0.2, 0.55, 1.0, 1.0, 1.2, MOST_MIB + 1]
    assert [bar.ok for bar in report.bars] == [True, False, True, True, True, False]
