"""Indexes are tuned with fewer queries than usual, and timed once: that takes less time, and the parameters are rather
too good.
"""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def fewer_queries() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("index.builder.tune._QUERIES", 250)
        for module in ("tune", "measure"):
            patch.setattr(f"index.builder.{module}._LAPS", 1)
        yield
