"""Answers stay right while searchers are killed, or replaced by those of other settings."""

import json
import signal
import threading
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from api.build_service import build_service
from api.deployment.application import run
from api.http.body import BodyReader
from api.settings import RequestLimits, ServeSettings
from benchmarks.common.servers import replicas_of
from benchmarks.common.waiting import eventually
from index.collection import Collection
from index.search import Searcher
from index.search.shard import Shard, split_into_shards
from tests.support.collections.hand_made import unit_vectors
from tests.support.collections.sharded import DIM, ids_of, make_sharded
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.fake_models import fakes

pytestmark = [pytest.mark.ray, pytest.mark.long]

_RATE = 10.0
_K = 20
_QUERIES = unit_vectors(40, seed=21, dim=DIM)

Match = tuple[str, float, str | None]
"""Id, score and URI; shards return URIs in another round than ids and scores."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a search that was sent `at`. `rows` were searched; `problem`: the type of a 503."""

    at: float
    seconds: float
    query: int
    partial: bool
    status: int
    rows: int = 0
    problem: str | None = None
    matches: tuple[Match, ...] = ()


class Load:
    """Searches `_RATE` times a second until it is stopped. Every other search allows partial answers."""

    def __init__(self, url: str) -> None:
        self.outcomes: list[Outcome] = []
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
            document = response.json()
            seen = {
                "rows": document["searched"]["rows"],
                "matches": tuple((match["image_id"], match["score"], match["uri"]) for match in document["matches"]),
            }
        elif response.status_code == 503:
            seen = {"problem": json.loads(response.text)["type"]}
        seconds = time.monotonic() - at
        self.outcomes.append(
            Outcome(at=at, seconds=seconds, query=query, partial=partial, status=response.status_code, **seen)
        )


def ids_in(collection: Collection, number: int, shards: int) -> set[str]:
    """The ids of the live rows of a shard."""
    manifest = collection.read_version("000002")
    return ids_of(Shard.open(collection, manifest, split_into_shards(manifest.segments, shards)[number]))


def answers_of_one_process(collection: Collection) -> list[list[Match]]:
    """All matches of each of `_QUERIES`."""
    service = build_service(ServeSettings(collection=collection.location), load_model=lambda _: FakeEmbedder())
    whole = Searcher.open(collection).ntotal
    searches = [{"embedding": query.tolist(), "k": whole} for query in _QUERIES]
    answers = [service.search(BodyReader(RequestLimits()).parse_search(each)).matches for each in searches]
    return [[(match.image_id, match.score or 0.0, match.uri) for match in answer] for answer in answers]


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
        searcher_timeout_s=2,  # within one second, other shards would be late on a busy machine
    )
    return run(settings, blocking=False, load_model=fakes(tmp_path / "notes"))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_killed_searcher_makes_no_answer_wrong(
    collection: Collection, tmp_path: Path, cluster: int, replicas: int
) -> None:
    url = serving(collection, tmp_path, cluster, replicas)
    whole = Searcher.open(collection)
    possible = right_answers(collection, 4)  # a busy machine may lose other shards as well
    with Load(url) as load:
        time.sleep(3)
        before = searchers(2)
        assert len(before) == replicas
        killed = time.monotonic()
        before[0].send_signal(signal.SIGKILL)
        eventually(lambda: is_whole(before), f"{replicas} searchers of shard 2 again", 60)
        time.sleep(4)
    answered = [outcome for outcome in load.outcomes if outcome.status != 429]  # a busy machine may refuse some
    for outcome in answered:
        if outcome.status == 200:
            assert outcome.partial or outcome.rows == whole.ntotal, outcome
            assert is_right(outcome, possible), outcome
        else:
            assert (outcome.status, outcome.problem) == (503, "urn:likeness:problem:shard-unavailable"), outcome
    refused = [outcome for outcome in answered if outcome.status != 200]
    parts = [outcome for outcome in load.outcomes if outcome.status == 200 and outcome.rows < whole.ntotal]
    last = max((outcome.at + outcome.seconds for outcome in (*refused, *parts)), default=killed)
    assert any(outcome.at > last for outcome in load.outcomes)
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
    load_model = fakes(tmp_path / "notes")
    url = run(first, blocking=False, load_model=load_model)
    with Load(url) as load:
        time.sleep(2)
        run(second, blocking=False, load_model=load_model)
        again = time.monotonic()
        time.sleep(3)
    answered = [outcome for outcome in load.outcomes if outcome.status == 200]
    assert [outcome for outcome in answered if not is_right(outcome, right)] == []
    # Those sent to the second deployment, whose replicas may still be replaced one by one after `run` returns.
    last = [outcome for outcome in load.outcomes if outcome.at > again + 2 and outcome.status != 429]
    expected = right_answers(Collection.open(second.collection), second.shards or 0)[0][1]
    assert [outcome.matches for outcome in last] == [expected[outcome.query] for outcome in last]


def is_right(outcome: Outcome, right: list[tuple[int, list[tuple[Match, ...]]]]) -> bool:
    return any(outcome.matches == matches[outcome.query] for rows, matches in right if rows == outcome.rows)


def right_answers(collection: Collection, shards: int) -> list[tuple[int, list[tuple[Match, ...]]]]:
    """The number of rows searched and the matches of each query, for every set of shards that may answer."""
    every = answers_of_one_process(collection)
    shard_ids = [ids_in(collection, number, shards) for number in range(shards)]
    right = []
    for is_up in product([True, False], repeat=shards):
        known = set().union(*(ids for ids, is_shard_up in zip(shard_ids, is_up, strict=True) if is_shard_up))
        matches = [tuple([match for match in answer if match[0] in known][:_K]) for answer in every]
        right.append((len(known), matches))
    return right
