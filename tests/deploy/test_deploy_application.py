"""The application that a Serve config file imports, for KubeRay and `serve deploy`."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from pydantic import ValidationError
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatusOverview, ServeDeploySchema

from api.access.keys import KeyScope, add_key
from api.deployment.application import application
from api.deployment.ingress import APP_NAME
from api.errors import ListenError
from benchmarks.common.waiting import eventually
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from index.errors import NotACollectionError
from tests.support.collections.small_collection import COLOURS, PLAIN, make_collection
from tests.support.paths import DEPLOY


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = tmp_path_factory.mktemp("deployed") / "collection"
    make_collection(location, PLAIN, ClipEmbedder.load(str(DEMO_MODEL)))
    return str(location)


def test_serving_without_keys_must_be_allowed(collection: str) -> None:
    with pytest.raises(ListenError, match="LIKENESS_ALLOW_REMOTE=true"):
        application({"collection": collection})


def test_settings_are_checked_before_a_replica_starts(tmp_path: Path, collection: str) -> None:
    with pytest.raises(ValidationError, match="replica\n"):
        application({"collection": collection, "allow_remote": True, "replica": 2})
    with pytest.raises(NotACollectionError):
        application({"collection": str(tmp_path / "none"), "allow_remote": True})


def test_missing_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, collection: str) -> None:
    monkeypatch.setenv("LIKENESS_COLLECTION", collection)
    monkeypatch.setenv("LIKENESS_ALLOW_REMOTE", "true")
    monkeypatch.setenv("LIKENESS_EMBEDDERS", "2")
    built = application({"replicas": "1:3"})
    deployment = built._bound_deployment
    assert deployment.name == "Likeness"
    scaling = deployment._deployment_config.autoscaling_config
    assert scaling is not None
    assert scaling.max_replicas == 3
    [embedder] = [each for each in deployment.init_args if isinstance(each, serve.Application)]
    assert embedder._bound_deployment.num_replicas == 2


def test_an_updated_secret_replaces_the_keys(tmp_path: Path, collection: str) -> None:
    """Kubernetes mounts each file of a secret as a link into `..data`, itself a link, which an update replaces."""
    (old, new), data, file = (tmp_path / "..1", tmp_path / "..2"), tmp_path / "..data", tmp_path / "keys.json"
    data.symlink_to(old.name)
    file.symlink_to("..data/keys.json")
    for folder in (old, new):
        folder.mkdir()
    add_key(old / "keys.json", "alice", KeyScope.search)
    bob = add_key(new / "keys.json", "bob", KeyScope.search)
    bound: Any = application({"collection": collection, "keys_file": str(file)})._bound_deployment
    keys = bound.init_args[0].access().keys
    data.unlink()
    data.symlink_to(new.name)
    shutil.rmtree(old)
    assert keys.find(bob.encode()).name == "bob"


def test_missing_resources_of_a_starting_cluster_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, collection: str
) -> None:
    """The application is built as soon as the head runs, which has no room for replicas here."""
    monkeypatch.setattr("api.deployment.cluster.nodes", lambda: [{"CPU": 0.0, "memory": 2.0**34}])
    application({"collection": collection, "allow_remote": True, "shards": 1, "searchers": 2})
    assert "some searchers of one shard share a node" in caplog.text
    assert "expected 3 CPUs, 1 for each of 3 replicas, got 0" in caplog.text


def app_status() -> ApplicationStatusOverview:
    return serve.status().applications[APP_NAME]


@pytest.mark.ray
def test_the_service_of_kubernetes_answers(collection: str, cluster: int) -> None:
    """The manifest's config on a real Serve, except for collection, port and resources."""
    manifests = yaml.safe_load_all((DEPLOY / "kubernetes" / "rayservice.yaml").read_text())
    [manifest] = [each for each in manifests if each["kind"] == "RayService"]
    config = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    config["http_options"] |= {"host": "127.0.0.1", "port": cluster}
    [app] = config["applications"]
    assert app["name"] == APP_NAME
    app["args"] = {
        **{name: value for name, value in app["args"].items() if name not in ("keys_file", "num_gpus")},
        "collection": collection,
        "model": str(DEMO_MODEL),
        "replicas": 1,
        "num_cpus": 1,
        "embedders": None,
        # HAProxy hides callers' addresses, which matter without keys.
        "host": "127.0.0.1",
    }
    serve.start(http_options=config["http_options"])
    client = _get_global_client()
    assert client is not None
    client.deploy_apps(ServeDeploySchema.model_validate(config))
    eventually(lambda: app_status().status in ("RUNNING", "DEPLOY_FAILED"), "it is deployed, or has failed", 240)
    assert app_status().status == "RUNNING", app_status().message
    url = f"http://127.0.0.1:{cluster}"
    answer = requests.post(f"{url}/search", json={"text": "a red star", "k": 3}, timeout=60).json()
    assert {match["image_id"] for match in answer["matches"]} == set(COLOURS)
    assert "likeness_scraped_replicas 1.0" in requests.get(f"{url}/metrics", timeout=60).text
