"""The manifests in deploy/kubernetes fit the schemas of Kubernetes, KubeRay, Ray Serve and Likeness."""

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
    """The resources in a file, including those in its config maps."""
    found: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / name).read_text()))
    embedded = [each["data"]["rayjob.yaml"] for each in found if "rayjob.yaml" in each.get("data", {})]
    return found + [resource for text in embedded for resource in yaml.safe_load_all(text)]


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
    assert cluster.enable_in_tree_autoscaling  # otherwise ranges of replicas and actors have no effect
    assert cluster.auth_options is not None
    assert cluster.auth_options.mode == "token"
    assert cluster.head_group_spec.ray_start_params["num-cpus"] == "0"
    for pod in (cluster.head_group_spec.template, *(group.template for group in cluster.worker_group_specs)):
        spec = pod["spec"]
        [container] = spec["containers"]
        assert container["image"].startswith("registry.example/likeness:0.1.0")
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in spec.get("volumes", ())}
        # Nodes evict pods that use more memory than they requested.
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
def test_pods_that_decode_pictures_have_no_permissions(name: str) -> None:
    """A picture that exploits a decoder must not be able to start pods."""
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
def test_the_nodes_disk_has_room_for_the_files_of_the_index(name: str, with_index: set[str]) -> None:
    """Without a request, pods run on any node, and without LIKENESS_CACHE_BYTES they use half of its disk."""
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
        # Evicted files stay on disk until the last process closes them.
        assert int(env["LIKENESS_CACHE_BYTES"]) / 2**30 < gib(limit) < requested
    for group in set(pods) - with_index - {"head"}:
        [container] = pods[group]["template"]["spec"]["containers"]
        assert gib(container["resources"]["requests"]["ephemeral-storage"]) >= 20  # for building segments and spilling


def test_the_service() -> None:
    service = ray_resource("rayservice.yaml")["spec"]
    config = yaml.safe_load(service["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    [app] = config["applications"]
    assert (app["name"], app["import_path"]) == (APP_NAME, "api.deployment.application:application")
    settings = ServeSettings(**app["args"])
    # The app's own time limit must be reached first.
    assert config["http_options"]["request_timeout_s"] > settings.request_timeout_s
    groups = {group["groupName"]: group for group in service["rayClusterConfig"]["workerGroupSpecs"]}
    assert settings.embedders is not None
    for group, replicas in (("cpu", settings.replicas), ("gpu", settings.embedders)):
        assert (groups[group]["minReplicas"], groups[group]["maxReplicas"]) == (replicas.minimum, replicas.maximum)
        [container] = groups[group]["template"]["spec"]["containers"]
        assert float(container["resources"]["requests"]["cpu"]) >= settings.num_cpus
        mounted = container["volumeMounts"][0]["mountPath"]
        assert settings.keys_file == f"{mounted}/likeness-keys.json"
