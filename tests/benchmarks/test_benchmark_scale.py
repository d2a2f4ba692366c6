"""The measurements behind the sizing guide are right on small inputs."""

from pathlib import Path

import pytest

from benchmarks.common.process import in_new_process
from benchmarks.scale.images import row_bytes
from benchmarks.scale.requests import requests


def test_bytes_of_a_row_follow_its_dimensions(tmp_path: Path) -> None:
    few, many, more, of_manifest = (list(map(float, each.values())) for each in row_bytes(tmp_path).values())
    assert 0.85 < (more[1] - many[1]) / (256 * 4) < 1  # 768 and 512 dimensions; zstd takes a little off
    assert abs(few[0] - few[1]) < 50  # files of 256 and of 4,096 rows
    assert 100 < of_manifest[0] < 250


@pytest.mark.long
def test_requests_of_each_step_to_a_bucket(tmp_path: Path) -> None:
    costs = {what: each for (what, _), each in in_new_process(requests, tmp_path).items()}
    assert 1 <= float(costs["list, for each 1,000 pictures"]["LIST"]) <= 3  # empty ranges cost requests, too
    assert costs["fetch, for each picture"]["GET"] == 1
    assert costs["write, for each row file"] == {"PUT": 1}
    assert costs["open it, for each segment"]["GET"] == 3  # vectors, rows and words; the files of ids are alike
    # A commit opens each file for its facts: its size, its footer and the columns but vectors. Whoever compares reads
    # those. Opening reads no row file. But the held-out queries of eight more files need a second part of 8 MiB.
    limits = {"write": 1, "commit": 3, "read the ids": 0, "compare": 0, "build the index": 1 + 3 / 8, "open it": 1 / 8}
    for step, requests_of_a_file in limits.items():
        assert sum(map(float, costs[f"{step}, for each row file"].values())) <= requests_of_a_file, step
