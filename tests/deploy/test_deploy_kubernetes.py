"""The manifests of deploy/kubernetes fit the schemas of what reads them: Kubernetes, KubeRay, Ray Serve, Likeness."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from ray.serve.schema import ServeDeploySchema

from api.deployment.ingress import APP_NAME
from api.settings import ServeSettings
from jobs.schedule.spec_file import read_spec
from tests.deploy.kuberay_fields import ClusterSpec, RayJob, RayService, valid
from tests.support.paths import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
RAY_KINDS: dict[str, type[BaseModel]] = {"RayJob": RayJob, "RayService": RayService}


def resources(name: str) -> list[dict[str, Any]]:
    """Those of a file, and those that lie in its config maps."""
    found: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / name).read_text()))
    inner = [each["data"]["rayjob.yaml"] for each in found if "rayjob.yaml" in each.get("data", {})]
    return found + [resource for text in inner for resource in yaml.safe_load_all(text)]


def check(resource: dict[str, Any]) -> None:
    if resource["apiVersion"].startswith("ray.io/"):
        RAY_KINDS[resource["kind"]].model_validate(resource)
    else:
        valid(resource)


def ray_resource(name: str) -> dict[str, Any]:
    [found] = [each for each in resources(name) if each["kind"] in RAY_KINDS]
    return found


def ray_cluster(name: str) -> dict[str, Any]:
    spec = ray_resource(name)["spec"]
    cluster: dict[str, Any] = spec.get("rayClusterSpec") or spec["rayClusterConfig"]
    return cluster


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_manifests_fit_their_schemas(path: Path) -> None:
    found = resources(path.name)
    assert found
    for resource in found:
        check(resource)


@pytest.mark.parametrize("name", ["cronjob.yaml", "rayjob.yaml", "rayservice.yaml"])
def test_the_cluster(name: str) -> None:
    cluster = ClusterSpec.model_validate(ray_cluster(name))
    pinned = re.findall(r"(?m)^ray==(.*)$", (ROOT / "constraints.txt").read_text())
    assert [cluster.ray_version] == pinned
    assert cluster.enable_in_tree_autoscaling  # else ranges of replicas and of actors mean nothing
    assert cluster.auth_options is not None
    assert cluster.auth_options.mode == "token"
    assert cluster.head_group_spec.ray_start_params["num-cpus"] == "0"
    for pod in (cluster.head_group_spec.template, *(group.template for group in cluster.worker_group_specs)):
        spec = pod["spec"]
        [container] = spec["containers"]
        assert container["image"].startswith("registry.example/likeness:0.1.0")
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in spec.get("volumes", ())}
        # More memory than was asked for is what a node evicts pods for.
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
        gpus = "nvidia.com/gpu" in container["resources"]["limits"]
        assert not gpus or container["image"].endswith("-cuda")


@pytest.mark.parametrize("name", ["cronjob.yaml", "rayjob.yaml"])
def test_the_job(name: str, tmp_path: Path) -> None:
    [files] = [each for each in resources(name) if each["kind"] == "ConfigMap"]
    (tmp_path / "job.yaml").write_text(files["data"]["job.yaml"])
    spec = read_spec(tmp_path / "job.yaml")
    assert (spec.resources.address, spec.resources.actors) == ("auto", (1, 4))
    [gpu] = ray_cluster(name)["workerGroupSpecs"]
    assert (gpu["minReplicas"], gpu["maxReplicas"]) == spec.resources.actors  # a GPU for each actor
    head = ray_cluster(name)["headGroupSpec"]["template"]["spec"]
    assert head["volumes"][0]["configMap"]["name"] == files["metadata"]["name"]
    mounted = head["containers"][0]["volumeMounts"][0]["mountPath"]
    assert ray_resource(name)["spec"]["entrypoint"] == f"likeness reembed --spec {mounted}/job.yaml"


@pytest.mark.parametrize("name", ["cronjob.yaml", "rayjob.yaml", "rayservice.yaml"])
def test_what_reads_pictures_of_others_may_create_nothing(name: str) -> None:
    """A picture that breaks a decoder is not to start pods."""
    [account] = resources("service-account.yaml")
    cluster = ray_cluster(name)
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    assert {pod["serviceAccountName"] for pod in pods} == {account["metadata"]["name"]}
    bound = [subject["name"] for each in resources(name) for subject in each.get("subjects", ())]
    assert account["metadata"]["name"] not in bound


def gib(quantity: str) -> int:
    return int(quantity.removesuffix("Gi"))


@pytest.mark.parametrize(
    ("name", "with_index"),
    [("cronjob.yaml", {"head"}), ("rayjob.yaml", {"head"}), ("rayservice.yaml", {"cpu", "gpu"})],
)
def test_files_of_the_index_have_room_on_the_nodes_disk(name: str, with_index: set[str]) -> None:
    """Without a request any node is taken, and without LIKENESS_CACHE_BYTES half of its disk."""
    cluster = ray_cluster(name)
    pods = {"head": cluster["headGroupSpec"], **{group["groupName"]: group for group in cluster["workerGroupSpecs"]}}
    for group in with_index:
        pod = pods[group]["template"]["spec"]
        [container] = pod["containers"]
        env = {each["name"]: each.get("value") for each in container["env"]}
        [volume] = [
            each["name"] for each in container["volumeMounts"] if each["mountPath"] == env["LIKENESS_CACHE_DIR"]
        ]
        [limit] = [each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if each["name"] == volume]
        requested = gib(container["resources"]["requests"]["ephemeral-storage"])
        # What is open stays when it loses its place in the cache, until nobody has it open.
        assert int(env["LIKENESS_CACHE_BYTES"]) / 2**30 < gib(limit) < requested
    for group in set(pods) - with_index - {"head"}:
        [container] = pods[group]["template"]["spec"]["containers"]
        assert gib(container["resources"]["requests"]["ephemeral-storage"]) >= 20  # segments that are built, spilling


def test_the_service() -> None:
    service = ray_resource("rayservice.yaml")["spec"]
    config = yaml.safe_load(service["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    [app] = config["applications"]
    assert (app["name"], app["import_path"]) == (APP_NAME, "api.deployment.application:application")
    settings = ServeSettings(**app["args"])
    # The app's own time limit comes first.
    assert config["http_options"]["request_timeout_s"] > settings.request_timeout_s
    groups = {group["groupName"]: group for group in service["rayClusterConfig"]["workerGroupSpecs"]}
    assert settings.embedders is not None
    for group, replicas in (("cpu", settings.replicas), ("gpu", settings.embedders)):
        assert (groups[group]["minReplicas"], groups[group]["maxReplicas"]) == (replicas.minimum, replicas.maximum)
        [container] = groups[group]["template"]["spec"]["containers"]
        assert float(container["resources"]["requests"]["cpu"]) >= settings.num_cpus
        mounted = container["volumeMounts"][0]["mountPath"]
        assert settings.keys_file == f"{mounted}/likeness-keys.json"
