"""The manifests of deploy/kubernetes fit the schemas of what reads them: Kubernetes, KubeRay, Ray Serve, Likeness."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import ValidationError as KubernetesError
from pydantic import BaseModel, ValidationError
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


def test_what_does_not_fit_is_found() -> None:
    """The check itself: a typing error at each level."""
    job = ray_resource("rayjob.yaml")
    misspelt = copy.deepcopy(job)
    misspelt["spec"]["shutdownAfterJobFinish"] = True
    with pytest.raises(ValidationError, match="shutdownAfterJobFinish"):
        check(misspelt)
    in_the_pod = copy.deepcopy(job)
    in_the_pod["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imag"] = "x"
    with pytest.raises((ValidationError, KubernetesError), match="imag"):
        check(in_the_pod)
    a_number = copy.deepcopy(job)
    a_number["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0  # KubeRay wants texts
    with pytest.raises(ValidationError, match="num-cpus"):
        check(a_number)


def changed(job: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy of it, with another value; None takes the field away."""
    made = copy.deepcopy(job)
    *above, last = path.split(".")
    inside = made
    for name in above:
        inside = inside[name]
    inside.pop(last, None)
    if value is not None:
        inside[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.shutdownAfterJobFinishes", None, "expected shutdownAfterJobFinishes with ttlSecondsAfterFinished"),
        ("spec.activeDeadlineSeconds", 0, "greater than or equal to 1"),
        ("spec.backoffLimit", -1, "greater than or equal to 0"),
        ("spec.rayClusterSpec.rayVersion", None, "expected rayVersion 2.52.0 or newer with authOptions, got None"),
        ("spec.rayClusterSpec.rayVersion", "2.51.1", "expected rayVersion 2.52.0 or newer with authOptions, got 2.51"),
        ("spec.rayClusterSpec.authOptions.mode", "tokens", "'disabled' or 'token'"),
        ("spec.rayClusterSpec.headGroupSpec.rayStartParams.labels", "a=b", "'num-cpus' or 'num-gpus'"),
        ("metadata.name", "likeness-embed-" + "x" * 33, "at most 47 characters"),
        ("metadata.name", "likeness_embed", "match pattern"),
    ],
)
def test_what_fits_and_kuberay_refuses_is_found(path: str, value: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        check(changed(ray_resource("rayjob.yaml"), path, value))


def test_a_redis_is_not_named_in_the_heads_environment() -> None:
    service = copy.deepcopy(ray_resource("rayservice.yaml"))
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    head["env"].append({"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"})
    with pytest.raises(ValidationError, match="expected gcsFaultToleranceOptions"):
        check(service)


@pytest.mark.parametrize("name", ["cronjob.yaml", "rayjob.yaml", "rayservice.yaml"])
def test_the_cluster(name: str) -> None:
    cluster = ClusterSpec.model_validate(ray_cluster(name))
    pinned = re.findall(r"(?m)^ray==(.*)$", (ROOT / "constraints.txt").read_text())
    assert [cluster.rayVersion] == pinned
    assert cluster.enableInTreeAutoscaling  # else ranges of replicas and of actors mean nothing
    assert cluster.authOptions is not None
    assert cluster.authOptions.mode == "token"
    assert cluster.headGroupSpec.rayStartParams["num-cpus"] == "0"
    for pod in (cluster.headGroupSpec.template, *(group.template for group in cluster.workerGroupSpecs)):
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
        assert (groups[group]["minReplicas"], groups[group]["maxReplicas"]) == (replicas.least, replicas.most)
        [container] = groups[group]["template"]["spec"]["containers"]
        assert float(container["resources"]["requests"]["cpu"]) >= settings.num_cpus
        mounted = container["volumeMounts"][0]["mountPath"]
        assert settings.keys_file == f"{mounted}/likeness-keys.json"
