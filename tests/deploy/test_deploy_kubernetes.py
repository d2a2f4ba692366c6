"""The manifests in deploy/kubernetes fit the schemas of Kubernetes, KubeRay, Ray Serve and Likeness."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from api.deployment.ingress import APP_NAME
from api.settings import ServeSettings
from jobs.schedule.scheduler import parse_cron
from jobs.schedule.spec_file import read_spec
from tests.support.paths import DEPLOY, ROOT

FOLDER = DEPLOY / "kubernetes"
NAMES = ["cronjob.yaml", "rayjob.yaml", "rayservice.yaml"]
CLUSTER = {"rayVersion", "enableInTreeAutoscaling", "authOptions", "headGroupSpec", "workerGroupSpecs"}
POD = {"rayStartParams", "template"}
WORKERS = {*POD, "groupName", "replicas", "minReplicas", "maxReplicas"}
# The fields of KubeRay's resources that the manifests use, compared with the API references of KubeRay 1.6.2 and 1.7.0.
# A field that is missing here may be valid: look it up there.
SPECS = {
    "RayJob": {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "activeDeadlineSeconds"}
    | {"backoffLimit", "rayClusterSpec"},
    "RayService": {"serveConfigV2", "rayClusterConfig"},
}


def resources(name: str) -> dict[str, dict[str, Any]]:
    """The resources in a file by their kinds, including that in a config map."""
    found = list(yaml.safe_load_all((FOLDER / name).read_text()))
    found += [yaml.safe_load(text) for each in found if (text := each.get("data", {}).get("rayjob.yaml"))]
    return {each["kind"]: each for each in found}


def ray_resource(name: str) -> dict[str, Any]:
    [found] = [each for kind, each in resources(name).items() if kind in SPECS]
    return found


def ray_cluster(name: str) -> dict[str, Any]:
    spec = ray_resource(name)["spec"]
    cluster: dict[str, Any] = spec.get("rayClusterSpec") or spec["rayClusterConfig"]
    return cluster


def groups(name: str) -> dict[str, dict[str, Any]]:
    """The head's group and those of workers, by their names."""
    cluster = ray_cluster(name)
    return {"head": cluster["headGroupSpec"]} | {group["groupName"]: group for group in cluster["workerGroupSpecs"]}


def validate(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, "1.34", strict=True)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_manifests_fit_their_schemas(path: Path) -> None:
    for kind, resource in resources(path.name).items():
        if kind not in SPECS:
            validate(resource)
            continue
        assert resource["apiVersion"] == "ray.io/v1"
        assert resource["spec"].keys() <= SPECS[kind]
        # KubeRay and Kubernetes append to these names, and Services get the result as a name.
        [name] = (resource["metadata"][key] for key in ("name", "generateName") if key in resource["metadata"])
        assert re.fullmatch("[a-z][-a-z0-9]{,41}", name)
        assert ray_cluster(path.name).keys() <= CLUSTER
        for group_name, group in groups(path.name).items():
            assert group.keys() <= (POD if group_name == "head" else WORKERS)
            assert group["rayStartParams"].keys() <= {"num-cpus", "num-gpus"}
            validate(
                {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}} | {"template": group["template"]}
            )


@pytest.mark.parametrize("name", NAMES)
def test_the_cluster(name: str) -> None:
    cluster, [account] = ray_cluster(name), resources("service-account.yaml").values()
    assert [cluster["rayVersion"]] == re.findall(r"(?m)^ray==(.*)$", (ROOT / "constraints.txt").read_text())
    assert cluster["enableInTreeAutoscaling"]  # otherwise ranges of replicas and actors have no effect
    assert cluster["authOptions"] == {"mode": "token"}
    assert groups(name)["head"]["rayStartParams"]["num-cpus"] == "0"
    for group in groups(name).values():
        assert group.get("minReplicas", 0) <= group.get("replicas", 0) <= group.get("maxReplicas", 0)
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        assert container["image"].startswith("registry.example/likeness:0.1.0")
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod.get("volumes", ())}
        # Nodes evict pods that use more memory than they requested.
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
        assert "nvidia.com/gpu" not in container["resources"]["limits"] or container["image"].endswith("-cuda")
        # A picture that exploits a decoder must not be able to start pods.
        assert pod["serviceAccountName"] == account["metadata"]["name"]
    bound = [subject["name"] for each in resources(name).values() for subject in each.get("subjects", ())]
    assert account["metadata"]["name"] not in bound


@pytest.mark.parametrize("name", ["cronjob.yaml", "rayjob.yaml"])
def test_the_job(name: str, tmp_path: Path) -> None:
    files = resources(name)["ConfigMap"]
    (tmp_path / "job.yaml").write_text(files["data"]["job.yaml"])
    spec = read_spec(tmp_path / "job.yaml")
    assert (spec.resources.address, spec.resources.actors) == ("auto", (1, 4))
    [gpu] = ray_cluster(name)["workerGroupSpecs"]
    assert (gpu["minReplicas"], gpu["maxReplicas"]) == spec.resources.actors  # a GPU for each actor
    head = groups(name)["head"]["template"]["spec"]
    assert head["volumes"][0]["configMap"]["name"] == files["metadata"]["name"]
    mounted = head["containers"][0]["volumeMounts"][0]["mountPath"]
    assert ray_resource(name)["spec"]["entrypoint"] == f"likeness reembed --spec {mounted}/job.yaml"
    assert ray_resource(name)["spec"]["shutdownAfterJobFinishes"]  # which ttlSecondsAfterFinished needs


def test_the_cron_job_creates_the_job() -> None:
    kinds = resources("cronjob.yaml")
    assert list(kinds) == ["ServiceAccount", "Role", "RoleBinding", "ConfigMap", "CronJob", "RayJob"]
    account = kinds["ServiceAccount"]["metadata"]["name"]
    assert kinds["RoleBinding"]["subjects"][0]["name"] == account
    assert kinds["RoleBinding"]["roleRef"]["name"] == kinds["Role"]["metadata"]["name"]
    assert kinds["Role"]["rules"][0]["verbs"] == ["create"]
    cron = kinds["CronJob"]["spec"]
    parse_cron(cron["schedule"], cron["timeZone"])
    pod = cron["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account
    [container] = pod["containers"]
    mount = container["volumeMounts"][0]
    assert container["args"] == ["create", f"--filename={mount['mountPath']}/rayjob.yaml"]
    maps = {volume["name"]: volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert maps == {mount["name"]: kinds["ConfigMap"]["metadata"]["name"]}


def test_the_service() -> None:
    config = yaml.safe_load(ray_resource("rayservice.yaml")["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    [app] = config["applications"]
    assert (app["name"], app["import_path"]) == (APP_NAME, "api.deployment.application:application")
    settings = ServeSettings(**app["args"])
    # The app's own time limit must be reached first.
    assert config["http_options"]["request_timeout_s"] > settings.request_timeout_s
    assert settings.embedders is not None
    for name, replicas in (("cpu", settings.replicas), ("gpu", settings.embedders)):
        group = groups("rayservice.yaml")[name]
        assert (group["minReplicas"], group["maxReplicas"]) == (replicas.minimum, replicas.maximum)
        [container] = group["template"]["spec"]["containers"]
        assert float(container["resources"]["requests"]["cpu"]) >= settings.num_cpus
        assert settings.keys_file == f"{container['volumeMounts'][0]['mountPath']}/likeness-keys.json"
