"""What holds for every test: a Ray that asks for no token and reports nothing to anyone."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture
def cluster() -> Iterator[None]:
    """A Ray with four CPUs for this test alone, to run Serve on."""
    import ray
    from ray import serve

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    yield
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()
