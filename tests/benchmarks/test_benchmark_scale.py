"""The measurements behind the sizing guide are right on small inputs."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.process import in_new_process
from benchmarks.scale.images import photo, row_bytes
from benchmarks.scale.listing import listing
from benchmarks.scale.requests import Counting, requests


def test_photos_are_seeded_and_have_the_spectrum_of_photographs() -> None:
    picture = np.asarray(photo(512, 256), np.float32)
    assert picture.shape == (256, 512, 3)
    assert np.array_equal(picture, np.asarray(photo(512, 256), np.float32))
    light = picture.mean(axis=-1) - picture.mean()
    power = np.abs(np.fft.rfft(light, axis=1)).mean(axis=0)
    # Along a line amplitudes fall as 1 ÷ √frequency: power is 1 ÷ f² over the plane.
    slope = np.polyfit(np.log(np.arange(4, 100)), np.log(power[4:100]), 1)[0]
    assert -0.75 < slope < -0.35


def test_bytes_of_a_row_follow_its_dimensions(tmp_path: Path) -> None:
    few, many, more, of_manifest = (list(map(float, each.costs.values())) for each in row_bytes(tmp_path))
    assert 0.85 < (more[1] - many[1]) / (256 * 4) < 1  # 768 and 512 dimensions; zstd takes a little off
    assert abs(few[0] - few[1]) < 50  # files of 256 and of 4,096 rows
    assert 100 < of_manifest[0] < 250


def test_requests_are_counted_by_method() -> None:
    def answered(environ: dict[str, str], start_response: object) -> Iterable[bytes]:
        return [environ["REQUEST_METHOD"].encode()]

    counting = Counting(answered)
    queries = {"HEAD": "", "PUT": "partNumber=1", "POST": ""}
    for method, query in (("GET", ""), ("GET", "list-type=2&prefix=a"), *queries.items()):
        answer = counting({"REQUEST_METHOD": method, "QUERY_STRING": query}, None)  # type: ignore[arg-type]
        assert answer == [method.encode()]
    assert counting.take() == {"GET": 1, "LIST": 1, "HEAD": 1, "PUT": 1, "POST": 1}
    assert not counting.take()


@pytest.mark.long
def test_requests_of_each_step_to_a_bucket(tmp_path: Path) -> None:
    costs = {each.what: each.costs for each in in_new_process(requests, tmp_path)}
    assert 1 <= float(costs["list, for each 1,000 pictures"]["LIST"]) <= 3  # empty ranges cost requests, too
    assert costs["fetch, for each picture"]["GET"] == 1
    assert costs["write, for each row file"] == {"PUT": 1}
    assert costs["open it, for each segment"]["GET"] == 2  # vectors and rows
    # A commit opens each file for its facts: its size, its footer and the columns but vectors. Whoever compares reads
    # those. Opening reads no row file. But the held-out queries of eight more files need a second part of 8 MiB.
    limits = {"write": 1, "commit": 3, "read the ids": 0, "compare": 0, "build the index": 1 + 3 / 8, "open it": 1 / 8}
    for step, requests_of_a_file in limits.items():
        assert sum(map(float, costs[f"{step}, for each row file"].values())) <= requests_of_a_file, step


@pytest.mark.slow
def test_costs_of_listing_and_comparing_are_marginal(tmp_path: Path) -> None:
    of_listing, of_comparing = listing(tmp_path, files=2_000, rows=20_000)[1::2]
    # A process of 150 MB, divided by 2,000 files, would be 75 kB.
    for memory in (of_listing, of_comparing):
        assert 0 <= float(memory.costs[""]) < 20_000, memory
