"""Indexes are tuned with fewer queries than usual, and timed once: that takes less time, and the parameters are rather
too good. One thread is faster with so little data, because threads do not wait for each other.
"""

from collections.abc import Iterator

import faiss
import pytest


@pytest.fixture(scope="module", autouse=True)
def small_machine() -> Iterator[None]:
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("index.builder.tune._QUERIES", 250)
        for module in ("tune", "measure"):
            patch.setattr(f"index.builder.{module}._LAPS", 1)
        yield
    faiss.omp_set_num_threads(threads)
