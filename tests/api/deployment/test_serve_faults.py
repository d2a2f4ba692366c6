"""A replica on Ray Serve is killed while searches come; hosts that dawdle are named while others search."""

import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest
import requests
from ray import serve

from api.deployment.application import run
from api.deployment.ingress import APP_NAME
from api.replicas import Replicas
from api.settings import ServeSettings
from benchmarks.common.collections import draw_pictures
from embedder.models.clip import ClipEmbedder
from index.build.build_index import build_index
from index.collection import Collection
from jobs.values import DEMO_MODEL
from tests.support.collections.editions import add_edition
from tests.support.pictures.picture_server import Server, answer
from tests.support.servers.load import Asked, crowd, eventually, load, milliseconds
from tests.support.servers.served import free_port, replicas_of, serving

pytestmark = [pytest.mark.fault, pytest.mark.ray, pytest.mark.timeout(300)]

_RATE = 8.0
_WHOLE_S = 20.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    collection = Collection.create_or_open(str(folder / "collection"))
    embedder = ClipEmbedder.load(str(DEMO_MODEL), device="cpu")
    add_edition(collection, draw_pictures(folder / "pictures", 60), embedder, 1)
    build_index(collection)
    return folder


@pytest.mark.parametrize("replicas", [2, 1])
def test_a_killed_replica_fails_what_it_had_in_hand_and_nothing_else(
    folder: Path, cluster: None, replicas: int
) -> None:
    settings = ServeSettings(
        collection=str(folder / "collection"),
        port=free_port(),
        replicas=Replicas(replicas, replicas),
        num_cpus=0.5,
        embedding_cache_bytes=0,
    )
    url = run(settings, blocking=False)
    crowd(url, folder / "pictures", clients=4, seconds=2)
    with load(url, folder / "pictures", _RATE) as going:
        time.sleep(5)
        victim, *_ = before = replicas_of(psutil.Process())
        assert len(before) == replicas
        killed = time.monotonic()
        victim.send_signal(signal.SIGKILL)
        eventually(lambda: is_whole(before), f"{replicas} replicas again", _WHOLE_S + 40)
        whole = time.monotonic()
        time.sleep(5)
        ended = time.monotonic()
    # Sent away at once, with leave to come back, is not failed: where no replica is left few can wait for the next.
    refused = [each for each in going.asked if each.status == 429]
    failed = [each for each in going.asked if each.status not in (200, 429)]
    gap = going.between(killed, whole)
    counts = f"{len(going.asked)} searches, {len(failed)} failed, {len(refused)} refused"
    print(f"{replicas} replicas: {counts}; whole after {whole - killed:.1f} s")
    print(f"meanwhile {len(gap)}, the slowest answer in {milliseconds(gap, 100):.0f} ms")
    assert [each for each in failed if not in_flight(each, killed)] == []
    assert replicas == 1 or not refused
    assert all(each.seconds < 2 and each.retry_after == "1" for each in refused)
    assert whole - killed <= _WHOLE_S
    # The queue of those who waited for it takes a moment.
    assert {each.status for each in going.between(whole + 1, ended)} == {200}


def test_a_server_that_is_told_to_stop_takes_the_application_down(folder: Path, tmp_path: Path) -> None:
    """Ray has a handler of its own for SIGTERM, which would leave in the middle of it."""
    with serving(str(folder / "collection"), tmp_path / "log") as served:
        before = served.replicas()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 130
    assert not any(each.is_running() for each in before)
    assert not re.search("Aborted|Traceback|SIGTERM", served.log.read_text())


def in_flight(asked: Asked, when: float) -> bool:
    return asked.at <= when <= asked.at + asked.seconds


def is_whole(before: list[psutil.Process]) -> bool:
    """As many replicas run as there were `before` one of them was killed, and one of them is new."""
    states = serve.status().applications[APP_NAME].deployments["Likeness"].replica_states
    now = replicas_of(psutil.Process())
    return states == {"RUNNING": len(before)} and len(now) == len(before) and set(now) != set(before)


def test_hosts_that_dawdle_keep_nobody_else_from_searching(folder: Path, tmp_path: Path) -> None:
    """64 URLs of a host that sends nothing: 32 wait for it, 32 are refused at once, uploads are answered as ever."""
    host = Server()
    go = threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        go.wait(30)
        answer(handler, b"")

    host.routes["/slow"] = slow
    arguments = ("--local", "--allow-host", f"127.0.0.1:{host.port}")
    statuses: list[tuple[int, str | None]] = []

    def name_it(url: str) -> None:
        response = requests.post(f"{url}/search", json={"url": host.url("/slow")}, timeout=60)
        statuses.append((response.status_code, response.headers.get("Retry-After")))

    settings = {"embedding_cache_bytes": 0, "max_searches": 64}
    with serving(str(folder / "collection"), tmp_path / "log", *arguments, **settings) as served:
        before = crowd(served.url, folder / "pictures", clients=2, seconds=4)
        with ThreadPoolExecutor(64) as pool:
            for _ in range(64):
                pool.submit(name_it, served.url)
            eventually(lambda: len(statuses) == 32, "32 URLs are refused")
            during = crowd(served.url, folder / "pictures", clients=2, seconds=4)
            assert statuses == [(429, "1")] * 32
            go.set()
    host.stop()
    usual, meanwhile = milliseconds(before, 50), milliseconds(during, 50)
    print(f"uploads: {len(before)} before, p50 {usual:.0f} ms; {len(during)} meanwhile, p50 {meanwhile:.0f} ms")
    assert {each.status for each in during} == {200}
    assert meanwhile <= 3 * usual
    assert sorted(set(statuses)) == [(422, None), (429, "1")]
