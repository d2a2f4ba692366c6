"""The index in shards: answers when a shard is lost, deployments, and all of it on Ray Serve."""

import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from ray.exceptions import ActorDiedError

from api.build_service import build_collections, build_service
from api.client import LikenessClient
from api.deployment.application import run, serve_app, shard_application
from api.deployment.capacity import empty_shards, shard_memory
from api.deployment.searcher import SearcherReplica, open_sharded
from api.deployment.shard_calls import ShardCaller
from api.errors import ServerUnavailable
from api.http.app import create_app
from api.local import running
from api.search.service import SearchService
from api.settings import Replicas, ServeSettings
from benchmarks.common.waiting import eventually
from index.builder.build_index import build_index
from index.collection import Collection
from index.errors import CollectionError
from index.search import Searcher
from index.search.sharded_index import ShardsLostError
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_run, rows, unit_vectors
from tests.support.collections.sharded import DIM, LIMITS, ids_of, make_sharded
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import refusal
from tests.support.servers.fake_models import fakes
from tests.support.servers.serve_handles import Clock, Handle, task_error

GIB = 2**30


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return make_sharded(tmp_path_factory.mktemp("sharded") / "collection")


def copied(collection: Collection, folder: Path) -> Collection:
    return Collection.open(str(shutil.copytree(collection.location, folder)))


def vector(seed: int = 4) -> list[float]:
    return unit_vectors(1, seed=seed, dim=DIM)[0].tolist()  # type: ignore[no-any-return]


# Without Ray


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def handles_of(collection: Collection, shards: int, clock: Clock) -> Any:
    settings = ServeSettings(collection=collection.location, shards=shards)
    return [Handle(SearcherReplica(settings, number), clock) for number in range(shards)]


@pytest.fixture
def handles(collection: Collection, clock: Clock) -> Any:
    return handles_of(collection, 4, clock)


@pytest.fixture
def url(collection: Collection, handles: list[Handle]) -> Iterator[str]:
    """The URL of a server with these shards, which gives each 5 s."""
    settings = ServeSettings(collection=collection.location)
    with running(create_app(service_of(settings, handles))) as url:
        yield url


def service_of(settings: ServeSettings, handles: Any) -> SearchService:
    """A service that has answered a first query."""
    opened = partial(open_sharded, handles, 5.0)
    collections = build_collections(settings, load_model=lambda _: FakeEmbedder(), open_version=opened)
    [service] = collections.open_services.values()
    service.live.warm_up()
    return service


def opened(handle: Handle) -> set[str]:
    """The versions that its searcher was told to open."""
    return {each.args[0].partition(" ")[0] for each in handle.responses if len(each.args) == 1}


def lose(handle: Handle) -> None:
    handle.failures[:] = [(99.0, None)] * 50


def test_with_a_lost_shard_a_search_fails_or_is_partial_as_the_caller_chose(url: str, handles: list[Handle]) -> None:
    query = {"embedding": vector(), "k": 30}
    whole = httpx.post(f"{url}/search", json=query).json()
    assert whole["searched"] == {"rows": 798, "of": 798}
    lost_ids = ids_held(handles[2])
    lose(handles[2])
    refused = httpx.post(f"{url}/search", json=query)
    assert refusal(refused) == (503, "shard-unavailable")
    assert refused.headers["retry-after"] == "2"
    assert f"shard 2 does not answer: {len(lost_ids)} of 798 images" in refused.json()["detail"]
    part = httpx.post(f"{url}/search", json={**query, "allow_partial": True}).json()
    assert part["searched"] == {"rows": 798 - len(lost_ids), "of": 798}
    left = [match for match in whole["matches"] if match["image_id"] not in lost_ids]
    assert part["matches"][: len(left)] == left
    assert not lost_ids.intersection(match["image_id"] for match in part["matches"])
    assert len(part["matches"]) == 30

    both = {"searches": [query, {**query, "allow_partial": True}]}
    failed, partial = httpx.post(f"{url}/search/batch", json=both).json()["results"]
    assert failed["problem"]["type"] == "urn:likeness:problem:shard-unavailable"
    assert partial["ok"]["searched"] == part["searched"]

    with LikenessClient(url, retries=0) as client:
        found = client.search(embedding=vector(), allow_partial=True)
        assert (found.searched, found.ntotal) == (798 - len(lost_ids), 798)
        with pytest.raises(ServerUnavailable, match="shard 2 does not answer"):
            client.search(embedding=vector())
    counted = re.search(r'likeness_lost_shards_total\{shard="2"\} (\d+)', httpx.get(f"{url}/metrics").text)
    assert counted is not None
    assert int(counted[1]) >= 5


def ids_held(handle: Handle) -> set[str]:
    (shard,) = handle.replica._shards._values.values()
    return ids_of(shard)


def test_an_image_of_a_lost_shard_is_unavailable_and_not_missing(url: str, handles: list[Handle]) -> None:
    lost_id, other_id = min(ids_held(handles[1])), min(ids_held(handles[3]))
    lose(handles[1])
    assert httpx.get(f"{url}/image?id={other_id}").json()["image_id"] == other_id
    for image_id in (lost_id, "nobody"):
        assert refusal(httpx.get(f"{url}/image?id={image_id}")) == (503, "shard-unavailable")
        by_id = {"id": image_id, "allow_partial": True}
        assert refusal(httpx.post(f"{url}/search", json=by_id)) == (503, "shard-unavailable")
    handles[1].failures.clear()
    assert httpx.get(f"{url}/image?id={lost_id}").status_code == 200
    assert refusal(httpx.get(f"{url}/image?id=nobody")) == (404, "image-not-found")


def test_a_lost_shard_does_not_delay_later_searches(url: str, handles: list[Handle]) -> None:
    lose(handles[0])
    query = {"embedding": vector(), "allow_partial": True}
    for _ in range(3):
        assert httpx.post(f"{url}/search", json=query).json()["searched"]["rows"] < 798
    assert handles[0].waits[-3:] == [5.0, 0.25, 0.25]
    handles[0].failures.clear()
    assert httpx.post(f"{url}/search", json=query).json()["searched"]["rows"] == 798
    handles[0].responses.clear()
    httpx.post(f"{url}/search", json=query)
    assert handles[0].waits[0] == 5.0
    # Without any shard even a partial search fails.
    for handle in handles:
        lose(handle)
    assert refusal(httpx.post(f"{url}/search", json=query)) == (503, "shard-unavailable")


def test_no_search_waits_the_whole_time_for_a_lost_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that answers later than that is found again by a thread beside the searches."""
    monkeypatch.setattr("api.deployment.shard_calls._TRY_AGAIN_S", 0.0)
    monkeypatch.setattr("api.deployment.shard_calls._LOST_TIMEOUT_S", 0.01)
    waits: list[tuple[bool, float]] = []
    answers = threading.Event()

    def result(*, timeout_s: float) -> int:
        is_search = threading.current_thread() is threading.main_thread()
        waits.append((is_search, timeout_s))
        if is_search and (timeout_s < 1 or not answers.is_set()):
            raise TimeoutError
        if not answers.wait(timeout_s):
            raise TimeoutError
        return 7

    call = SimpleNamespace(remote=lambda *_: SimpleNamespace(result=result, cancel=lambda: None))
    caller = ShardCaller([SimpleNamespace(call=call)], "000001", 5.0)  # type: ignore[list-item]
    for _ in range(4):
        assert caller({0: ("count", ("{}",))}) == {}
    assert [timeout_s > 1 for is_search, timeout_s in waits if is_search] == [True, False, False, False]
    answers.set()
    eventually(lambda: caller({0: ("count", ("{}",))}) == {0: 7}, "the shard is found again")


def test_a_dead_replicas_calls_are_repeated_at_another_one(url: str, handles: list[Handle]) -> None:
    expected = httpx.post(f"{url}/search", json={"embedding": vector()}).json()["matches"]
    handles[1].failures[:] = [(0, ActorDiedError())] * 2
    handles[2].failures[:] = [(0, ActorDiedError())]
    again = httpx.post(f"{url}/search", json={"embedding": vector()}).json()
    assert (again["matches"], again["searched"]["rows"]) == (expected, 798)


def test_empty_shards_are_not_called(collection: Collection, clock: Clock) -> None:
    handles = handles_of(collection, 7, clock)
    searcher = open_sharded(handles, 5.0, collection)
    queries = unit_vectors(3, seed=8, dim=DIM)
    assert searcher.search(queries, 20) == Searcher.open(collection).search(queries, 20)
    assert [opened(handle) for handle in handles] == [{"000002"}] * 5 + [set()] * 2


def test_calls_to_dying_replicas_are_repeated_with_pauses_until_the_deadline(
    url: str, handles: list[Handle], clock: Clock
) -> None:
    handles[1].failures[:] = [(0, ActorDiedError())] * 1_000
    refused = httpx.post(f"{url}/search", json={"embedding": vector()})
    assert refusal(refused) == (503, "shard-unavailable")
    assert clock.now == pytest.approx(105.0, abs=0.1)


def test_a_shard_that_cannot_be_opened_is_lost(url: str, handles: list[Handle]) -> None:
    handles[2].failures[:] = [(0, task_error(CollectionError("no room in the cache for vectors.faiss")))]
    refused = httpx.post(f"{url}/search", json={"embedding": vector()})
    assert refusal(refused) == (503, "shard-unavailable")


def test_a_replica_that_dies_while_it_opens_a_version_does_not_fail_the_swap(
    collection: Collection, handles: list[Handle]
) -> None:
    handles[2].failures[:] = [(0, ActorDiedError())] * 2
    assert open_sharded(handles, 5.0, collection).ntotal == 798  # type: ignore[arg-type]
    assert [opened(handle) for handle in handles] == [{"000002"}] * 4


def test_a_version_of_another_collection_with_the_same_number_is_not_searched(
    collection: Collection, tmp_path: Path, clock: Clock
) -> None:
    """A searcher that is restarted finds another collection in this place."""
    collection = copied(collection, tmp_path / "collection")
    handles = handles_of(collection, 2, clock)
    searcher = open_sharded(handles, 5.0, collection)
    (tmp_path / "collection").rename(tmp_path / "before")
    make_sharded(tmp_path / "collection", seed=1)
    query = unit_vectors(1, dim=DIM)
    assert len(searcher.search(query, 10)[0]) == 10
    handles[1].replica = handles_of(collection, 2, clock)[1].replica
    with pytest.raises(ShardsLostError, match="shard 1 does not answer"):
        searcher.search(query, 10)


def test_a_version_with_a_damaged_shard_is_replaced_by_the_last_good_one(
    collection: Collection, tmp_path: Path, clock: Clock
) -> None:
    collection = copied(collection, tmp_path / "collection")
    newest = collection.read_version("000002").segments[-1].name
    path = tmp_path / "collection/index/segments" / newest / "vectors.faiss"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    settings, handles = ServeSettings(collection=collection.location), handles_of(collection, 2, clock)
    assert service_of(settings, handles).engine.searcher.version == "000001"


# Settings


def test_serve_gets_a_deployment_for_each_shard(collection: Collection) -> None:
    settings = ServeSettings(collection=collection.location, shards=3, searchers="2:4", num_cpus=0.5)
    ingress: Any = serve_app(settings)._bound_deployment
    (bound,) = [arg for arg in ingress.init_args if isinstance(arg, list)]
    searchers: list[Any] = [each._bound_deployment for each in bound]
    assert [each.name.rpartition("-")[0] for each in searchers] == [f"Searcher-{number}-of-3" for number in range(3)]
    assert {each._deployment_config.autoscaling_config.max_replicas for each in searchers} == {4}
    live = collection.read_version("000002")
    memory = [each.ray_actor_options["memory"] for each in searchers]
    assert memory == shard_memory(settings, live)
    assert sum(memory) == 3 * 300 * 2**20 + live.memory
    assert empty_shards(settings.model_copy(update={"shards": 5}), live) is None
    warning = empty_shards(settings.model_copy(update={"shards": 6}), live) or ""
    assert warning.startswith("index version 000002 has 5 segments for 6 shards, so some shards are empty")


def test_searchers_of_another_collection_or_number_of_shards_have_another_name(
    collection: Collection, tmp_path: Path
) -> None:
    """With the same name, Serve would replace them one by one while callers search both."""
    settings = ServeSettings(collection=collection.location, shards=3)
    more = settings.model_copy(update={"shards": 4})
    other = settings.model_copy(update={"collection": copied(collection, tmp_path / "other").location})
    names = {shard_application(each, 0, 0)._bound_deployment.name for each in (settings, more, other)}
    assert len(names) == 3
    another_cpu = settings.model_copy(update={"num_cpus": 2, "searchers": Replicas.parse("2")})
    assert shard_application(another_cpu, 0, 0)._bound_deployment.name in names


LARGE, NO_MEMORY, NO_CPU = ({"CPU": cpus, "memory": GIB * gib} for cpus, gib in ((4.0, 1.0), (4.0, 0.1), (0.0, 1.0)))


@pytest.mark.parametrize(
    ("nodes", "apart"), [([LARGE] * 2, 1), ([LARGE], None), ([LARGE, NO_MEMORY], None), ([LARGE, NO_CPU], None)]
)
def test_searchers_of_a_shard_are_on_separate_nodes_if_these_have_room(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]], apart: int | None
) -> None:
    monkeypatch.setattr("api.deployment.application.nodes", lambda: nodes)
    ingress: Any = serve_app(ServeSettings(collection=collection.location, shards=2, searchers=2))._bound_deployment
    (bound,) = [arg for arg in ingress.init_args if isinstance(arg, list)]
    assert {each._bound_deployment._replica_config.max_replicas_per_node for each in bound} == {apart}


# On Ray Serve


@pytest.mark.ray
@pytest.mark.parametrize("factory", [pytest.param("Flat", marks=pytest.mark.long), "IVF8,PQ8x4fs,Refine(SQ8)"])
def test_four_searchers_answer_as_one_process_does(tmp_path: Path, cluster: int, factory: str) -> None:
    collection = make_sharded(tmp_path / "collection", LIMITS.model_copy(update={"factory": factory}))
    notes = tmp_path / "notes"
    notes.mkdir()
    settings = ServeSettings(collection=collection.location, port=cluster, shards=4, num_cpus=0.25, swap_interval_s=0.1)
    url = run(settings, blocking=False, load_model=fakes(notes))
    whole = build_service(settings, load_model=lambda _: FakeEmbedder())
    queries: list[dict[str, Any]] = [{"text": f"star {number}", "k": 1 + 7 * number} for number in range(12)]
    queries += [{"id": "007"}, {"id": "777", "distinct": 0.5}, {"embedding": vector(), "offset": 30, "k": 50}]
    queries += [{"embedding": vector(5), "filter": {"label": "dog"}, "min_score": 0.1}] * 2
    with running(create_app(whole)) as local, httpx.Client(base_url=url, timeout=30) as client:
        for query in queries:
            expected = httpx.post(f"{local}/search", json=query).json()
            found = client.post("/search", json=query).json()
            for document in (expected, found):
                del document["timing_ms"]
            assert found == expected
        assert client.get("/image?id=042").json() == httpx.get(f"{local}/image?id=042").json()
        assert refusal(client.post("/search", json={"id": "500"})) == (404, "image-not-found")
        # All searchers open a new version before it answers.
        new = rows(["new"], np.array([vector(6)], np.float32))
        add_run(collection, new, model=model_record(FakeEmbedder().identity))
        build_index(collection, LIMITS.model_copy(update={"factory": factory}))
        eventually(lambda: client.get("/index").json()["version"] == "000003", "the new version answers")
        first = client.post("/search", json={"embedding": vector(6), "k": 1}).json()
        assert (first["matches"][0]["image_id"], first["searched"]) == ("new", {"rows": 799, "of": 799})
