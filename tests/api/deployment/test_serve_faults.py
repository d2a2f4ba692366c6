"""A replica on Ray Serve is killed under load, and the server gets SIGTERM."""

import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
from ray import serve

from api.deployment.application import run
from api.deployment.ingress import APP_NAME
from api.settings import Replicas, ServeSettings
from benchmarks.common.collections import draw_pictures
from benchmarks.common.load import TimedSearch, closed_loop, load
from benchmarks.common.servers import replicas_of, serving
from benchmarks.common.waiting import eventually
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from index.builder.build_index import build_index
from index.collection import Collection
from tests.support.collections.many_rows import add_many

pytestmark = pytest.mark.ray

_RATE = 8.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    collection = Collection.create_or_open(str(folder / "collection"))
    embedder = ClipEmbedder.load(str(DEMO_MODEL), device="cpu")
    add_many(collection, draw_pictures(folder / "pictures", 60), embedder)
    build_index(collection)
    return folder


@pytest.mark.parametrize("replicas", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_replica_fails_only_its_requests_in_progress(folder: Path, cluster: int, replicas: int) -> None:
    settings = ServeSettings(
        collection=str(folder / "collection"),
        port=cluster,
        replicas=Replicas(replicas, replicas),
        num_cpus=0.5,
        embedding_cache_bytes=0,
    )
    url = run(settings, blocking=False)
    closed_loop(url, folder / "pictures", clients=4, seconds=2)
    with load(url, folder / "pictures", _RATE) as going:
        time.sleep(5)
        victim, *_ = before = replicas_of(psutil.Process())
        assert len(before) == replicas
        killed = time.monotonic()
        victim.send_signal(signal.SIGKILL)
        # Its port accepts connections until its last thread ends, a tenth of a second later; these requests fail too.
        psutil.wait_procs([victim], timeout=30)
        gone = time.monotonic()
        eventually(lambda: is_whole(before), f"{replicas} replicas again", 120)
        whole = time.monotonic()
        time.sleep(5)
        ended = time.monotonic()
    # A request refused with Retry-After has not failed: with one replica left, or none, few requests can wait.
    refused = [each for each in going.searches if each.status == 429]
    failed = [each for each in going.searches if each.status not in (200, 429)]
    assert [each for each in failed if not in_flight(each, killed, gone)] == []
    assert all(each.retry_after == "1" for each in refused)
    # The queue of waiting requests takes a moment, and longer on a busy machine.
    after = {each.status for each in going.between(whole + 1, ended)}
    assert 200 in after <= {200, 429}


def test_a_server_that_gets_sigterm_deletes_the_application(folder: Path, tmp_path: Path) -> None:
    """Ray's own handler of SIGTERM would exit before this is done."""
    with serving(str(folder / "collection"), tmp_path / "log") as served:
        before = served.replicas()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 130
    eventually(lambda: not any(each.is_running() for each in before), "the replicas end")
    assert not re.search("Aborted|Traceback|SIGTERM", served.log.read_text())


def test_a_signal_to_the_whole_group_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    """Ray's processes get it as well, so the application cannot be deleted; HAProxy would keep the port."""
    with serving(str(folder / "collection"), tmp_path / "log") as served:
        started = psutil.Process(served.process.pid).children(recursive=True)
        proxies = [each for each in started if each.name() == "haproxy"]
        files = {Path(each.cmdline()[each.cmdline().index("-f") + 1]).parents[1] for each in proxies}
        assert all(each.stat().st_mode & 0o777 == 0o700 for each in files)
        os.killpg(served.process.pid, signal.SIGTERM)
        served.process.wait(50)
    assert not any(each.is_running() for each in proxies)
    assert not any(each.exists() for each in files)


def in_flight(search: TimedSearch, start: float, end: float) -> bool:
    """Whether the request was in progress at some time from `start` to `end`."""
    return search.at <= end and start <= search.ended


def is_whole(before: list[psutil.Process]) -> bool:
    """As many replicas run as there were `before` one of them was killed, and one of them is new."""
    states = serve.status().applications[APP_NAME].deployments["Likeness"].replica_states
    now = replicas_of(psutil.Process())
    return states == {"RUNNING": len(before)} and len(now) == len(before) and set(now) != set(before)
