"""Which tests run together, and fixtures for all of them. Ray runs without tokens and usage reports."""

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.nodeid import NodeId
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from index.collection import Collection
    from tests.support.collections.s3_server import Bucket
    from tests.support.command_line import Run

# `make test-long` runs tests of Hypothesis with the other profile. On a busy machine, drawing examples may take long.
settings.register_profile("quick", max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("long", settings.get_profile("quick"), max_examples=300)
settings.load_profile("quick")
gc.disable()  # until `faster`: hardly anything becomes garbage while tests are collected
# Every process that imports Ray imports jsonschema, and that a package of Jupyter's which compiles its grammars for 2
# seconds. The folder has one of that name which cannot be imported; Ray's processes get the variable from this one.
_QUICK_IMPORTS = str(Path(__file__).parent / "support" / "quick_imports")
sys.path.insert(0, _QUICK_IMPORTS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), _QUICK_IMPORTS)))
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_num_workers_soft_limit", "16")  # not 4 idle ones: the next test uses those of the last
os.environ.setdefault("RAY_worker_niceness", "0")  # not 15, at which Ray's workers would be slow next to other tests
if "PYTEST_XDIST_WORKER" in os.environ:
    # Several processes share the cores: no busy waiting, and no threads that mostly wait for each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, the tests of a group run in the same one. The longest groups come first."""
    for item in items:
        if "PYTEST_XDIST_WORKER" in os.environ:
            # pytest-xdist does this for the marker `xdist_group`, without effect on pytest 9.2 (its issue 1386).
            suffix = f"@{_group(item)}"
            item._id = NodeId.parse(f"{item.nodeid}{suffix}")
            assert item.nodeid.endswith(suffix), "tests are not grouped: see pytest-xdist's issue 1386"
    items.sort(key=lambda item: (*(_group(item) != name for name in _LONGEST), item.get_closest_marker("ray") is None))


_LONGEST = ("ray-jobs", "ray-serve", "browser")


def _group(item: pytest.Item) -> str:
    """Those that share a Ray for jobs, or one with Serve, which would slow jobs down; those that start a browser; and
    each file of others.
    """
    if _uses_ray(item):
        return "ray-serve" if item.path.relative_to(Path(__file__).parent).parts[0] in ("api", "deploy") else "ray-jobs"
    return "browser" if item.get_closest_marker("browser") else item.path.stem


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the shared Ray after the last test that uses it."""
    if _uses_ray(item) and not _uses_ray(nextitem):
        import ray
        from ray import serve

        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


def _uses_ray(item: pytest.Item | None) -> bool:
    return isinstance(item, pytest.Function) and "cluster" in item.fixturenames


@pytest.fixture(scope="session", autouse=True)
def faster() -> Iterator[None]:
    """Nobody waits for the disk, as nothing here has to survive a power cut. A converted model is compiled once, and
    httpx reads its certificates once. What was imported stays: later collections of garbage need not look at it.
    """
    from httpx import create_ssl_context

    from embedder.models import converted

    compile_graph = converted.load_graph

    @lru_cache(maxsize=8)
    def compiled(graph: Path | bytes, _: int, *options: Any) -> Any:
        return compile_graph(graph, *options)

    def load_graph(graph: Path | bytes, precision: Any, threads: int | None) -> Any:
        changed = graph.with_suffix(".bin").stat().st_mtime_ns if isinstance(graph, Path) else 0
        return compiled(graph, changed, precision, threads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(converted, "load_graph", load_graph)
        patch.setattr("httpx._transports.default.create_ssl_context", cache(create_ssl_context))
        gc.freeze()
        gc.enable()
        yield


@pytest.fixture(scope="session")
def serve_port() -> int:
    from benchmarks.common.servers import free_port

    return free_port()


@pytest.fixture
def cluster(serve_port: int) -> Iterator[int]:
    """A Ray with four CPUs, shared by the tests that use it one after another. Returns the port for Serve."""
    import ray
    from ray import cloudpickle, serve
    from ray.serve.context import _get_global_client

    from api.deployment.ingress import APP_NAME
    from api.deployment.proxy import environment
    from api.settings import ServeSettings
    from tests.support import fake_embedder

    cloudpickle.register_pickle_by_value(fake_embedder)  # type: ignore[no-untyped-call]  # workers find no tests
    options: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 200 * 2**20, "log_to_driver": False}
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    if not ray.is_initialized():
        with pytest.MonkeyPatch.context() as patch:
            folder = tempfile.mkdtemp(prefix="likeness-", dir="/tmp")
            for name, value in environment(ServeSettings(collection="c", port=serve_port), folder).items():
                patch.setenv(name, value)
            ray.init(address="local", num_cpus=4, **options)
    # The garbage collector frees the actors and CPUs of failed jobs. It runs here, not at the end of the test, because
    # pytest keeps a test's log records, and the tracebacks in them, until the test has ended completely.
    gc.collect()
    yield serve_port
    if _get_global_client(raise_if_no_controller_running=False) is not None:
        serve.delete(APP_NAME)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Run":
    """The command `likeness`, in this process."""
    from tests.support.command_line import command_line

    return command_line(monkeypatch, capsys)


@pytest.fixture(scope="module")
def template() -> Path | None:
    """Folder of a collection that each test of a file gets a copy of; a file may override it."""
    return None


@pytest.fixture
def collection(tmp_path: Path, template: Path | None) -> "Collection":
    """A copy of the file's `template`, or an empty one."""
    from index.collection import Collection

    if template:
        shutil.copytree(template, tmp_path / "collection")
    return Collection.create_or_open(str(tmp_path / "collection"))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of the plain pictures, with the fake model; shared, so no test may change it."""
    from tests.support.collections.small_collection import PLAIN, make_collection
    from tests.support.fake_embedder import FakeEmbedder

    make_collection(folder := tmp_path_factory.mktemp("plain"), PLAIN, FakeEmbedder())
    return folder


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """host:port of an S3 server on loopback."""
    from tests.support.collections.s3_server import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Bucket":
    """A new, empty bucket and a new cache. The environment has the credentials, but not the server's address."""
    from tests.support.collections.s3_server import CREDENTIALS, new_bucket, new_cache

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(new_cache(tmp_path)))
    return new_bucket(s3)


@pytest.fixture
def store(bucket: "Bucket", monkeypatch: pytest.MonkeyPatch) -> "Bucket":
    """A new bucket, with its server's address in the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    return bucket
