"""Searchers are killed, or replaced by those of something else, while searches come: answers stay right."""

import json
import signal
import threading
import time
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from api.build_service import build_service
from api.deployment.application import run
from api.http.body import parse_search
from api.settings import RequestLimits, ServeSettings
from benchmarks.common.servers import eventually, replicas_of
from embedder.fake import FakeEmbedder
from index.collection import Collection
from index.search import Searcher
from index.search.shard import Shard, split_into_shards
from tests.support.collections.hand_made import unit_vectors
from tests.support.collections.sharded import DIM, ids_of, make_sharded
from tests.support.servers.fake_models import fakes

pytestmark = [pytest.mark.ray, pytest.mark.long]

_RATE = 10.0
_K = 20
_QUERIES = unit_vectors(40, seed=21, dim=DIM)

Match = tuple[str, float, str]
"""Its id, score and address: the last come from the shards in another round than the first."""


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
                "matches": tuple((match["image_id"], match["score"], match["uri"]) for match in said["matches"]),
            }
        elif response.status_code == 503:
            seen = {"problem": json.loads(response.text)["type"]}
        seconds = time.monotonic() - at
        self.told.append(
            Told(at=at, seconds=seconds, query=query, partial=partial, status=response.status_code, **seen)
        )


def ids_in(collection: Collection, number: int, shards: int = 4) -> set[str]:
    """The ids of the live rows of a shard."""
    manifest = collection.read_version("000002")
    return ids_of(Shard.open(collection, manifest, split_into_shards(manifest.segments, shards)[number]))


def answers_of_one_process(collection: Collection) -> list[list[Match]]:
    """All matches of each of the very queries."""
    service = build_service(ServeSettings(collection=collection.location), load_model=lambda _: FakeEmbedder())
    whole = Searcher.open(collection).ntotal
    asked = [{"embedding": query.tolist(), "k": whole} for query in _QUERIES]
    answers = [service.search(parse_search(each, limits=RequestLimits())).matches for each in asked]
    return [[(match.image_id, match.score, match.uri) for match in answer] for answer in answers]


def searchers(number: int) -> list[psutil.Process]:
    return [each for each in replicas_of(psutil.Process()) if f"Searcher-{number}" in " ".join(each.cmdline())]


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    (tmp_path / "notes").mkdir()
    return make_sharded(tmp_path / "collection")


def serving(collection: Collection, tmp_path: Path, port: int, replicas: int) -> str:
    settings = ServeSettings(
        collection=collection.location,
        port=port,
        shards=4,
        searchers=replicas,
        num_cpus=0.25,
        searcher_timeout_s=2,  # a busy machine makes other shards late within one
    )
    return run(settings, blocking=False, models=fakes(tmp_path / "notes"))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_killed_searcher_makes_no_answer_wrong(
    collection: Collection, tmp_path: Path, cluster: int, replicas: int
) -> None:
    url = serving(collection, tmp_path, cluster, replicas)
    whole = Searcher.open(collection)
    ids = [ids_in(collection, number) for number in range(4)]
    # A busy machine may lose others as well.
    losses = [set[str]().union(*lost) for count in range(4) for lost in combinations(ids, count)]
    every = answers_of_one_process(collection)
    with Load(url) as load:
        time.sleep(3)
        before = searchers(2)
        assert len(before) == replicas
        killed = time.monotonic()
        before[0].send_signal(signal.SIGKILL)
        eventually(lambda: is_whole(before), f"{replicas} searchers of shard 2 again", 60)
        time.sleep(4)
    answered = [told for told in load.told if told.status != 429]  # a busy machine has too many at once
    for told in answered:
        if told.status == 200:
            right = [
                tuple([match for match in every[told.query] if match[0] not in missing][:_K])
                for missing in losses
                if told.rows == whole.ntotal - len(missing) and (told.partial or not missing)
            ]
            assert told.matches in right, told
        else:
            assert (told.status, told.problem) == (503, "urn:likeness:problem:shard-unavailable"), told
    refused = [told for told in answered if told.status != 200]
    parts = [told for told in load.told if told.status == 200 and told.rows < whole.ntotal]
    last = max((told.at + told.seconds for told in (*refused, *parts)), default=killed)
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


@pytest.mark.parametrize("changed", ["shards", "collection"])
def test_no_answer_is_wrong_while_the_deployment_is_changed(
    collection: Collection, tmp_path: Path, cluster: int, changed: str
) -> None:
    """Serve replaces the replicas that answer and the searchers at the same time, each one by one."""
    other = make_sharded(tmp_path / "other", seed=1)
    first = ServeSettings(
        collection=collection.location, port=cluster, replicas=2, shards=2, num_cpus=0.25, searcher_timeout_s=1
    )
    changes = {"shards": 4} if changed == "shards" else {"collection": other.location}
    second = first.model_copy(update=changes)
    right = [*right_answers(collection, 2), *right_answers(Collection.open(second.collection), second.shards or 0)]
    models = fakes(tmp_path / "notes")
    url = run(first, blocking=False, models=models)
    with Load(url) as load:
        time.sleep(2)
        run(second, blocking=False, models=models)
        again = time.monotonic()
        time.sleep(3)
    answered = [told for told in load.told if told.status == 200]
    for told in answered:
        assert any(told.matches == matches[told.query] for rows, matches in right if rows == told.rows), told
    # Of those that were sent to the second, whose replicas may still be replaced one by one when it says that it runs.
    last = [told for told in load.told if told.at > again + 2 and told.status != 429]
    expected = right_answers(Collection.open(second.collection), second.shards or 0)[0][1]
    assert [told.matches for told in last] == [expected[told.query] for told in last]


def right_answers(collection: Collection, shards: int) -> list[tuple[int, list[tuple[Match, ...]]]]:
    """How many rows are searched, and the matches of each query: of all shards, and of some where others are lost."""
    every, held = answers_of_one_process(collection), [ids_in(collection, number, shards) for number in range(shards)]
    right = []
    for there in product([True, False], repeat=shards):
        known = set().union(*(ids for ids, is_there in zip(held, there, strict=True) if is_there))
        matches = [tuple([match for match in answer if match[0] in known][:_K]) for answer in every]
        right.append((len(known), matches))
    return right
