"""The output of benchmarks, and the arithmetic behind the figures of the demo model, the driver and clusters."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.cluster import steady_rate
from benchmarks.common.embedding import Progress
from benchmarks.common.null_job import Cost, run_null_job
from benchmarks.common.report import Report
from benchmarks.demo_model import captions, text_precision
from benchmarks.driver import judge
from jobs.cluster.pool import Pool


@pytest.fixture
def report() -> Report:
    return Report("speed", Console(file=StringIO(), width=60))


def last_line(report: Report) -> str:
    assert isinstance(report.console.file, StringIO)
    return report.console.file.getvalue().splitlines()[-1]


def test_tables_are_figures_and_the_last_line_is_json(report: Report) -> None:
    report.table("rates", [{"model": "demo", "images/s": 1234.56789}, {"model": None, "images/s": 7}])
    report.figures["numbers"] = {f"figure {number}": number for number in range(50)}  # longer than a line
    report.at_least("recall", 0.951234567, 0.95)
    assert report.conclude() == 0
    assert json.loads(last_line(report)) == {
        "benchmark": "speed",
        "figures": {
            "rates": [{"model": "demo", "images/s": 1234.57}, {"model": None, "images/s": 7}],
            "numbers": {f"figure {number}": number for number in range(50)},
        },
        "bars": [{"name": "recall", "value": 0.951235, "bar": 0.95, "ok": True}],
    }


def test_a_value_equal_to_its_bar_meets_it_and_nan_misses_it(report: Report) -> None:
    nan = float("nan")
    for value, bar in ((0.95, 0.95), (0.949, 0.95), (nan, 0.0)):
        report.at_least("least", value, bar)
    for value, bar in ((200.0, 200.0), (200.1, 200.0), (nan, 0.0)):
        report.at_most("most", value, bar)
    assert [bar.ok for bar in report.bars] == [True, False, False] * 2
    assert report.conclude() == 1
    assert json.loads(last_line(report))["bars"][2]["value"] is None


def test_text_precision_counts_only_as_many_neighbours_as_pictures_fit() -> None:
    every = captions()
    assert every.shape == (320, 3)
    texts = np.eye(320, dtype=np.float32)
    # Two pictures for each of the first two captions; one of the second's lies elsewhere.
    words = every[[0, 0, 1, 1]]
    assert text_precision(texts, texts[[0, 0, 1, 1]], words) == 1.0
    assert text_precision(texts, texts[[0, 0, 1, 5]], words) == pytest.approx((1.0 + 0.5) / 2)


def test_the_rate_covers_the_time_in_which_every_actor_has_work() -> None:
    progress = Progress()
    progress.records = [(10.0, 32, 1), (12.0, 64, 2), (13.0, 96, 2), (14.0, 160, 2), (20.0, 192, 2), (21.0, 224, 2)]
    assert steady_rate(progress, 2, 224) == (160 - 64) / (14.0 - 12.0)


def test_what_the_start_of_a_driver_costs_cancels_out(report: Report) -> None:
    few, many = Cost(images=1_000, cpu_s=2.01, peak=100), Cost(images=3_000, cpu_s=2.03, peak=120)
    judge([few, many], report)
    assert [(round(bar.value, 9), bar.ok) for bar in report.bars] == [(10.0, True), (1.2, False)]


@pytest.mark.ray
def test_the_job_without_stages_reports_every_image(cluster: int, tmp_path: Path) -> None:
    cost = run_null_job(5_000, tmp_path / "collection", Pool())
    assert (cost.images, cost.cpu_s > 0) == (5_000, True)
