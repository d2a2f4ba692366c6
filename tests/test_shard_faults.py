"""One of four searchers is killed while searches come: answers stay right, and soon are whole again."""

import json
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from api.asked import SearchRequest
from api.compose import build_service
from api.deployment import run
from api.reading import query_of
from api.settings import RequestLimits, ServeSettings
from embedder.fake import FakeEmbedder
from index.collection import Collection
from index.search import Searcher
from index.shard import Shard, slices
from tests.hand_made import unit_vectors
from tests.load import eventually
from tests.served import free_port, replicas_of
from tests.test_sharded_serving import DIM, make_collection
from tests.test_split_serving import fakes

pytestmark = [pytest.mark.fault, pytest.mark.ray, pytest.mark.timeout(300)]

_RATE = 10.0
_WHOLE_S = 20.0
_K = 20
_QUERIES = unit_vectors(40, seed=21, dim=DIM)

Match = tuple[str, float]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What came of a search that was sent `at`. `rows` were searched; `problem`: the type of a 503."""

    at: float
    seconds: float
    query: int
    partial: bool
    status: int
    rows: int = 0
    problem: str | None = None
    matches: tuple[Match, ...] = ()


class Load:
    """Searches `_RATE` times a second, every other one content with a part of the index, until it is stopped."""

    def __init__(self, url: str) -> None:
        self.told: list[Told] = []
        self._client = httpx.Client(base_url=url, timeout=30, limits=httpx.Limits(max_connections=None))
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._going = threading.Thread(target=self._go_on)

    def __enter__(self) -> "Load":
        self._going.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in (self._going, *self._threads):
            thread.join()
        self._client.close()

    def _go_on(self) -> None:
        while not self._stop.wait(1 / _RATE):
            self._threads.append(threading.Thread(target=self._ask, args=(len(self._threads),)))
            self._threads[-1].start()

    def _ask(self, number: int) -> None:
        query, partial, at = number % len(_QUERIES), number % 2 == 1, time.monotonic()
        body = {"embedding": _QUERIES[query].tolist(), "k": _K, "allow_partial": partial}
        response = self._client.post("/search", json=body)
        seen: dict[str, Any] = {}
        if response.status_code == 200:
            said = response.json()
            seen = {
                "rows": said["searched"]["rows"],
                "matches": tuple((match["image_id"], match["score"]) for match in said["matches"]),
            }
        elif response.status_code == 503:
            seen = {"problem": json.loads(response.text)["type"]}
        seconds = time.monotonic() - at
        self.told.append(
            Told(at=at, seconds=seconds, query=query, partial=partial, status=response.status_code, **seen)
        )


def ids_of(collection: Collection, number: int) -> set[str]:
    """The ids of the live rows of a shard."""
    manifest = collection.read_version("000002")
    shard = Shard.open(collection, manifest, slices(manifest.segments, 4)[number])
    return {image_id for part in shard._segments.parts for image_id in part.ids(part.live_positions())}


def searchers(number: int) -> list[psutil.Process]:
    return [each for each in replicas_of(psutil.Process()) if f"Searcher-{number}" in " ".join(each.cmdline())]


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    (tmp_path / "notes").mkdir()
    return make_collection(tmp_path / "collection")


def serving(collection: Collection, tmp_path: Path, replicas: int) -> str:
    settings = ServeSettings(
        collection=collection.location,
        port=free_port(),
        shards=4,
        searchers=replicas,
        num_cpus=0.25,
        searcher_timeout_s=1,
    )
    return run(settings, blocking=False, models=fakes(tmp_path / "notes"))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_killed_searcher_makes_no_answer_wrong(
    collection: Collection, tmp_path: Path, cluster: None, replicas: int
) -> None:
    url = serving(collection, tmp_path, replicas)
    whole = Searcher.open(collection)
    gone = ids_of(collection, 2)
    # Of the very requests, as one process answers them.
    service = build_service(ServeSettings(collection=collection.location), load_model=lambda _: FakeEmbedder())
    asked = [SearchRequest(embedding=query.tolist(), k=whole.ntotal) for query in _QUERIES]
    answers = [service.search(query_of(each, RequestLimits())).matches for each in asked]
    every = [[(match.image_id, match.score) for match in answer] for answer in answers]
    with Load(url) as load:
        time.sleep(3)
        before = searchers(2)
        assert len(before) == replicas
        killed = time.monotonic()
        before[0].send_signal(signal.SIGKILL)
        eventually(lambda: is_whole(before), f"{replicas} searchers of shard 2 again", 60)
        replaced = time.monotonic()
        time.sleep(4)
    for told in load.told:
        if told.status == 200:
            missing = set() if told.rows == whole.ntotal else gone
            expected = [match for match in every[told.query] if match[0] not in missing][:_K]
            assert told.rows == whole.ntotal - len(missing)
            assert told.matches == tuple(expected), told
            assert told.partial or not missing
        else:
            assert (told.status, told.problem) == (503, "urn:likeness:problem:shard-unavailable"), told
    refused = [told for told in load.told if told.status != 200]
    parts = [told for told in load.told if told.status == 200 and told.rows < whole.ntotal]
    last = max((told.at + told.seconds for told in (*refused, *parts)), default=killed)
    slowest = max(told.seconds for told in load.told if told.at > killed)
    counts = f"{len(load.told)} searches, {len(refused)} refused, {len(parts)} in part, none wrong"
    print(f"{replicas} of each shard: {counts}; whole answers {last - killed:.1f} s after the kill,")
    print(f"all searchers {replaced - killed:.1f} s; the slowest answer took {slowest:.2f} s")
    assert last - killed <= _WHOLE_S
    assert replaced - killed <= _WHOLE_S
    assert any(told.at > last for told in load.told)
    if replicas == 1:
        assert refused
        assert parts
    else:
        assert (refused, parts) == ([], [])


def is_whole(before: list[psutil.Process]) -> bool:
    """As many searchers run as there were `before` one was killed, and one of them is new."""
    now = searchers(2)
    return len(now) == len(before) and set(now) != set(before)
