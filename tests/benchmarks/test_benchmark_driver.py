"""The arithmetic of `benchmarks.driver`, and its job."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.common.null_job import Cost, run_null_job
from benchmarks.common.report import Report
from benchmarks.driver import judge
from jobs.cluster.pool import Pool


def test_what_the_start_costs_cancels_out() -> None:
    report = Report("driver", Console(file=StringIO()))
    few, many = Cost(images=1_000, cpu_s=2.01, peak=100), Cost(images=3_000, cpu_s=2.03, peak=120)
    judge([few, many], report)
    assert [(round(bar.value, 9), bar.ok) for bar in report.bars] == [(10.0, True), (1.2, False)]


@pytest.mark.ray
def test_the_job_without_stages_reports_every_image(cluster: int, tmp_path: Path) -> None:
    cost = run_null_job(5_000, tmp_path / "collection", Pool())
    assert (cost.images, cost.cpu_s > 0) == (5_000, True)
