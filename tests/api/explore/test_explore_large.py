"""A collection of 100,000 rows is opened for exploring in moments, and without reading it into memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from index.build.build_index import build_index
from index.collection import Collection
from jobs.demo.clustered import Clustered, add_rows

_OPEN = """
import json, sys, time
import api.explore

def anonymous_mib():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

before, started, clock = anonymous_mib(), time.process_time(), time.perf_counter()
likeness = api.explore.Likeness.open(sys.argv[1])
opened, seconds = time.process_time() - started, time.perf_counter() - clock
found = likeness.search(likeness.searcher.vector("77"), k=3)
figures = {"cpu_s": opened, "wall_s": seconds, "mib": anonymous_mib() - before}
print(json.dumps({**figures, "ntotal": len(likeness), "first": found[0].image_id}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_a_hundred_thousand_rows_open_quickly_and_stay_on_disk(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path / "large"))
    add_rows(collection, Clustered(), range(100_000))
    build_index(collection)
    command = [sys.executable, "-c", _OPEN, str(tmp_path / "large")]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(figures)
    assert (figures["ntotal"], figures["first"]) == (100_000, "77")
    assert figures["cpu_s"] < 2  # not the clock's: other processes may be busy
    assert figures["mib"] < 500
