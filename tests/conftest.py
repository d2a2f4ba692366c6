"""What holds for every test: a Ray that asks for no token and reports nothing to anyone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.collections.s3_server import Bucket

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture
def cluster() -> Iterator[None]:
    """A Ray with four CPUs for this test alone, to run Serve on."""
    import ray
    from ray import serve

    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    yield
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """host:port of an S3 server on loopback."""
    from tests.support.collections.s3_server import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Bucket":
    """An empty bucket of this test's own, and a cache for its files. The environment has credentials for it, and not
    the server's address.
    """
    from tests.support.collections.s3_server import CREDENTIALS, new_bucket

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(tmp_path / "cache"))
    return new_bucket(s3)
