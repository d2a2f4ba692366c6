"""What `benchmarks.cluster` makes of what it noted."""

from functools import partial

import pytest

from benchmarks.cluster import Outcome, judge, steady_rate
from benchmarks.common.embedding import Progress
from benchmarks.common.report import Report


def test_the_rate_is_of_the_time_in_which_every_actor_has_work() -> None:
    progress = Progress()
    progress.noted = [(10.0, 32, 1), (12.0, 64, 2), (13.0, 96, 2), (14.0, 160, 2), (20.0, 192, 2), (21.0, 224, 2)]
    assert steady_rate(progress, 2, 224) == (160 - 64) / (14.0 - 12.0)


@pytest.mark.parametrize(
    ("rates", "met"),
    [
        ({1: 48, 2: 90, 4: 180}, [True, True, True]),
        ({1: 48, 2: 90, 4: 160}, [True, True, False]),  # 0.83 of linear
        ({1: 44, 2: 88}, [False, True]),  # of the device's 50
    ],
)
def test_bars_compare_with_one_node(rates: dict[int, float], met: list[bool]) -> None:
    report = Report("cluster")
    outcome = partial(Outcome, start_seconds=3.0, idle_share=0.02)
    judge([outcome(nodes=nodes, images_per_second=rate) for nodes, rate in rates.items()], report)
    assert [bar.ok for bar in report.bars] == met
