"""The model in a deployment of its own, and several replicas of it and of the app."""

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from ray import serve

from api.build_service import build_service
from api.deployment.application import run, serve_app
from api.deployment.capacity import Nodes, shortage
from api.http.app import create_app
from api.local import running
from api.settings import Replicas, ServeSettings
from benchmarks.common.waiting import eventually
from embedder.openmp import OPENMP_ENVIRONMENT
from index.collection import Collection
from jobs.errors import UsageError
from likeness.cli.serve import serve as serve_command
from tests.support.collections.small_collection import PLAIN, add_pictures
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import refusal, search
from tests.support.servers.fake_models import fakes

OTHER_SIDE = 64


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "loaded"
    folder.mkdir()
    return folder


def scale(deployment: Any) -> tuple[float, float, float]:
    """The minimum and maximum number of replicas, and the concurrent requests that each should have."""
    config = deployment._deployment_config.autoscaling_config
    return config.min_replicas, config.max_replicas, config.target_ongoing_requests


def reserved(deployment: Any) -> tuple[float, float]:
    """CPUs and GPUs of each replica."""
    options = deployment.ray_actor_options
    return options["num_cpus"], options["num_gpus"]


# Settings


@pytest.mark.parametrize(("text", "expected"), [("2", (2, 2)), ("1:4", (1, 4)), ("3:3", (3, 3))])
def test_replicas_are_a_number_or_a_range(
    text: str, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIKENESS_EMBEDDERS", text)
    settings = ServeSettings(collection="c", replicas=text)
    assert settings.replicas == settings.embedders == Replicas(*expected)


@pytest.mark.parametrize("text", ["0", "4:1", "0:2", "-1", "many", "1:", ":2", "1:2:3", ""])
def test_replicas_that_make_no_sense_are_refused(text: str) -> None:
    message = "expected a number of replicas, such as 2, or MIN:MAX, such as 1:4"
    with pytest.raises(ValidationError, match=message) as caught:
        ServeSettings.model_validate({"collection": "c", "replicas": text, "embedders": text})
    assert [error["loc"] for error in caught.value.errors()] == [("replicas",), ("embedders",)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": "4:1"}, "--replicas is '4:1': expected a number of replicas"),
        ({"embedders": "0"}, "--embedders is '0': expected a number of replicas"),
        ({"local": True, "replicas": "2"}, "--local is one process"),
        ({"local": True, "shards": 2}, "--local is one process"),
        ({"searchers": "2"}, "expected --shards as well"),
        ({"shards": 2, "searchers": "0"}, "--searchers is '0': expected a number of replicas"),
    ],
)
def test_the_command_says_which_option_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        serve_command(["no such folder"], **options)


def test_serve_gets_the_replicas_and_resources_of_the_settings(collection: Collection) -> None:
    settings = ServeSettings(
        collection=collection.location,
        replicas="2:6",
        target_ongoing_requests=9,
        embedders="1:3",
        target_ongoing_embeddings=2.5,
        num_cpus=0.5,
        num_gpus=0.25,
        max_ongoing_requests=40,
        request_timeout_s=40,
    )
    app = serve_app(settings)
    ingress: Any = app._bound_deployment
    embedder: Any
    (embedder,) = [arg._bound_deployment for arg in ingress.init_args if isinstance(arg, serve.Application)]
    assert scale(ingress) == (2, 6, 9)
    assert (ingress.max_ongoing_requests, reserved(ingress)) == (80, (0.5, 0))
    assert scale(embedder) == (1, 3, 2.5)
    assert reserved(embedder) == (0.5, 0.25)
    # Requests in progress may complete.
    assert {each._deployment_config.graceful_shutdown_timeout_s for each in (ingress, embedder)} == {40}
    # The variables that the command line sets are passed on, as replicas may not inherit them.
    passive = {"env_vars": {**OPENMP_ENVIRONMENT, "OMP_NUM_THREADS": "1"}}
    assert [each.ray_actor_options["runtime_env"] for each in (ingress, embedder)] == [passive, passive]

    whole: Any = serve_app(ServeSettings(collection=collection.location, replicas=3, num_gpus=1))._bound_deployment
    assert whole.num_replicas == 3
    assert whole._deployment_config.autoscaling_config is None
    assert reserved(whole) == (1, 1)


GIB = 2**30
TWO_CPUS = [{"CPU": 2.0}]
SMALL = [{"CPU": 4.0, "memory": 1.0 * GIB}, {"CPU": 5.0, "memory": 1.0 * GIB}]
LARGE = [{"CPU": 2.0, "memory": 8.0 * GIB}] * 4
EIGHT_SEARCHERS = {"shards": 4, "searchers": 2}
NO_GPUS = "expected 0.5 GPUs, 0.5 for each of 1 replicas, got 0:.*LIKENESS_NUM_GPUS"
LARGEST = "expected a node with 12.0 GiB of memory for the largest shard, got 8.0 GiB at most: raise --shards"


@pytest.mark.parametrize(
    ("options", "nodes", "shard_memory", "message"),
    [
        ({"replicas": 2}, TWO_CPUS, [], None),
        ({"replicas": "1:8"}, TWO_CPUS, [], None),
        ({"replicas": 3}, TWO_CPUS, [], "expected 3 CPUs, 1 for each of 3 replicas, got 2: lower --replicas"),
        ({"replicas": 4, "num_cpus": 0.5}, TWO_CPUS, [], None),
        ({"replicas": 2, "embedders": 1}, TWO_CPUS, [], "expected 3 CPUs, 1 for each of 3 replicas, got 2"),
        ({"embedders": 1, "num_gpus": 0.5}, TWO_CPUS, [], NO_GPUS),
        (EIGHT_SEARCHERS, [{"CPU": 8.0}], [], "expected 9 CPUs, 1 for each of 9 replicas, got 8"),
        (EIGHT_SEARCHERS, SMALL, [GIB // 4] * 4, None),
        (EIGHT_SEARCHERS, SMALL, [GIB // 2] * 4, "expected 4.0 GiB of memory for 8 searchers, got 2.0 GiB"),
        # Serve would wait for ever for a node with the memory of all four together.
        ({"shards": 2}, LARGE, [8 * GIB, 4 * GIB], None),
        ({"shards": 2}, LARGE, [4 * GIB, 12 * GIB], LARGEST),
        ({"shards": 2, "num_cpus": 2.5}, LARGE, [], "expected a node with 2.5 CPUs for a replica, got 2 at most"),
    ],
)
def test_missing_room_is_reported_in_numbers(
    options: dict[str, Any], nodes: Nodes, shard_memory: list[int], message: str | None
) -> None:
    missing = shortage(ServeSettings(collection="c", **options), nodes, shard_memory)
    assert (missing is None) if message is None else re.match(message, missing or "")


# On Ray Serve


@pytest.mark.ray
def test_separate_embedders_answer_like_one_process(collection: Collection, cluster: int, notes: Path) -> None:
    settings = ServeSettings(
        collection=collection.location,
        port=cluster,
        replicas=2,
        embedders=1,
        num_cpus=0.5,
        swap_interval_s=0.1,
        max_searches=64,
        embedder_timeout_s=4,
    )
    url = run(settings, blocking=False, load_model=fakes(notes))
    whole = build_service(settings, load_model=fakes(notes))
    queries: list[dict[str, Any]] = [{"text": f"star {n}"} for n in range(20)]
    queries += [{"id": "red.png"}, {"embedding": [1.0] * 16}]
    with running(create_app(whole)) as local, httpx.Client(base_url=url, timeout=30) as client:
        expected = [httpx.post(f"{local}/search", json=query).json()["matches"] for query in queries]
        assert [search(client, **query)["matches"] for query in queries] == expected
        batch = client.post("/search/batch", json={"searches": queries}).json()["results"]
        assert [each["ok"]["matches"] for each in batch] == expected
        found = client.post("/search", files={"image": PLAIN["blue.png"]}).json()["matches"][0]
        assert (found["image_id"], found["score"]) == ("blue.png", pytest.approx(1.0, abs=1e-5))
        # A query that the model refuses does not affect the others.
        mixed = {"searches": [{"text": "unspeakable"}, {"text": "star 3"}]}
        refused, fine = client.post("/search/batch", json=mixed).json()["results"]
        assert refused["problem"]["type"] == "urn:likeness:problem:internal"
        assert fine["ok"]["matches"] == expected[3]

        _metrics_include_both_replicas(client, requests=len(queries) + 1)
        _a_slow_embedder_is_not_waited_for(client, notes)
        _models_change_together(client, collection)
        _one_embedder_is_replaced(client, notes)


def _metrics_include_both_replicas(client: httpx.Client, requests: int) -> None:
    """Each replica returns the counts of both."""
    for _ in range(4):
        counted: dict[str, float] = {}
        for family in text_string_to_metric_families(client.get("/metrics").text):
            for sample in family.samples:
                if sample.name == "likeness_request_duration_seconds_count" and sample.labels["route"] == "/search":
                    replica = sample.labels["replica"]
                    counted[replica] = counted.get(replica, 0) + sample.value
        assert len(counted) == 2
        assert sum(counted.values()) == requests


def _a_slow_embedder_is_not_waited_for(client: httpx.Client, notes: Path) -> None:
    """Once the embedder is done, it answers again."""
    before = set(notes.iterdir())
    refused = client.post("/search", json={"text": "slow"})
    assert refusal(refused) == (503, "embedder-unavailable")
    assert refused.headers["retry-after"] == "2"
    (notes.parent / "go").touch()
    assert len(search(client, text="quick")["matches"]) == 3
    assert set(notes.iterdir()) == before  # the same replica


def _models_change_together(client: httpx.Client, collection: Collection) -> None:
    """While queries go on, every answer comes from the old model and index, or from the new ones."""
    old, new = FakeEmbedder(), FakeEmbedder(side=OTHER_SIDE)
    pairs: set[tuple[str, str]] = set()
    wrong: list[object] = []
    done = threading.Event()

    def ask() -> None:
        number = 0
        while not done.is_set():
            number += 1
            found = client.post("/search", files={"image": PLAIN["red.png"]}, data={"k": "1"})
            document = found.json()
            pair = (document["index"]["version"], document["model"]["fingerprint"])
            pairs.add(pair)
            if found.status_code != 200 or abs(document["matches"][0]["score"] - 1) > 1e-5:
                wrong.append(document)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        add_pictures(collection, PLAIN, new)
        eventually(lambda: ("000002", new.identity.fingerprint) in pairs, "the new model and index answer")
        time.sleep(1)
    finally:
        done.set()
        asking.join()
    assert wrong == []
    assert pairs == {("000001", old.identity.fingerprint), ("000002", new.identity.fingerprint)}


def _one_embedder_is_replaced(client: httpx.Client, notes: Path) -> None:
    """Searches wait for the next one or are refused with Retry-After, until it answers."""
    killed = [int(name.name) for name in notes.iterdir() if int(name.name) != os.getpid()]
    assert len(killed) == 1
    os.kill(killed[0], signal.SIGKILL)
    deadline = time.monotonic() + 60
    statuses: list[int] = []
    while time.monotonic() < deadline:
        response = client.post("/search", json={"text": f"after {len(statuses)}"})
        statuses.append(response.status_code)
        if response.status_code == 200:
            break
        assert refusal(response) == (503, "embedder-unavailable")
        assert response.headers["retry-after"] == "2"
    assert statuses[-1] == 200, statuses
    vector = np.array(client.post("/embed", json={"texts": ["star"]}).json()["results"][0]["ok"])
    assert vector == pytest.approx(FakeEmbedder(side=OTHER_SIDE).embed_texts(["star"])[0], abs=1e-5)
