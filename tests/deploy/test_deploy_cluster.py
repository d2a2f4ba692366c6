"""The files for Docker compose and `ray up` fit their schemas, and agree with the files they refer to."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.aws.config import bootstrap_aws
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.tags import STATUS_UNINITIALIZED, TAG_RAY_LAUNCH_CONFIG, TAG_RAY_NODE_KIND, TAG_RAY_NODE_STATUS
from ray.serve.schema import ServeDeploySchema

from api.deployment.ingress import APP_NAME
from api.settings import ServeSettings
from jobs.schedule.spec_file import read_spec
from tests.support.collections.s3_server import CREDENTIALS
from tests.support.paths import DEPLOY

COMPOSE = DEPLOY / "compose" / "compose.yaml"
AWS = DEPLOY / "ray-cluster" / "aws.yaml"


@pytest.fixture
def aws(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock of AWS, set up in the environment."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{s3}", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load(COMPOSE.read_text())


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Path in the container → path on the host or name of a volume; variables have their defaults."""
    found = {}
    for volume in service.get("volumes", ()):
        source, target = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).removesuffix(":ro").rsplit(":", 1)
        found[target] = source
    return found


def test_the_compose_file_fits_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_services_and_files_named_in_compose_exist(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for source in mounts(service).values():
            # The user provides the folder of pictures.
            if source.startswith("."):
                assert source == "./pictures" or (COMPOSE.parent / source).exists(), f"{name}: {source}"
            else:
                assert source in compose["volumes"], f"{name}: {source}"
        assert not [port for port in service.get("ports", ()) if not port.startswith("127.0.0.1:")], name
        if "build" in service:
            context = COMPOSE.parent / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()
    # Other images have a fixed version.
    assert all(":" in service["image"] for service in services.values() if "build" not in service)


def test_secrets_of_compose_have_no_default(compose: dict[str, Any]) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "GF_SECURITY_ADMIN_PASSWORD"):
        environments = [service.get("environment", {}) for service in compose["services"].values()]
        values = [environment[name] for environment in environments if name in environment]
        assert values
        assert all(re.fullmatch(r"\$\{\w+:\?.+\}", value) for value in values)


def test_the_job_and_the_server_of_compose(compose: dict[str, Any]) -> None:
    ray = compose["services"]["ray"]
    inside = mounts(ray)
    files = COMPOSE.parent / inside["/etc/likeness"]
    spec = read_spec(files / "job.yaml")
    assert spec.source in inside
    assert spec.metrics_file is not None
    # The job writes it where node_exporter reads it.
    exporter = compose["services"]["job-metrics"]
    assert inside[str(Path(spec.metrics_file).parent)] == mounts(exporter)["/metrics"] == "metrics"
    config = yaml.safe_load((files / "serve.yaml").read_text())
    ServeDeploySchema.model_validate(config)
    [app] = config["applications"]
    settings = ServeSettings(**app["args"])
    assert (app["name"], settings.collection, settings.allow_remote) == (APP_NAME, spec.collection, True)
    assert f"127.0.0.1:{config['http_options']['port']}:{config['http_options']['port']}" in ray["ports"]


def test_the_server_of_compose_comes_back_by_itself(compose: dict[str, Any], tmp_path: Path) -> None:
    """Runs the keeper's script, with stand-ins for the programs."""
    keeper, server = compose["services"]["server-keeper"], compose["services"]["server"]
    assert keeper["restart"] == "unless-stopped"
    assert "profiles" not in keeper
    assert (keeper["entrypoint"], keeper["volumes"]) == (["sh", "-c"], server["volumes"])
    deploy = shlex.join([*server["entrypoint"], *server["command"]])
    for state, deployed in (("down", [deploy]), ("up", [])):
        programs = tmp_path / state
        programs.mkdir()
        answers = {"sleep": f"test ! -e {programs}/slept && touch {programs}/slept", "wget": f"test {state} = up"}
        answers["serve"] = f'echo serve "$@" >> {programs}/log'
        for name, script in answers.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        subprocess.run(["sh", "-c", *keeper["command"]], env={"PATH": f"{programs}:/usr/bin:/bin"}, check=True)
        log = programs / "log"
        assert (log.read_text().splitlines() if log.exists() else []) == deployed


def test_the_bucket_of_compose_is_created(compose: dict[str, Any], aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another S3 server than SeaweedFS. At the second start, the bucket exists."""
    service = compose["services"]["make-bucket"]
    monkeypatch.setenv("AWS_REGION", service["environment"]["AWS_REGION"])
    assert service["entrypoint"] == ["python", "-c"]
    for _ in range(2):
        exec(service["command"][0], {})
    buckets = [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]]
    assert buckets.count("likeness") == 1  # other tests' buckets are in the same server


def test_the_cluster_file_fits_rays_schema() -> None:
    prepared = prepare_config(yaml.safe_load(AWS.read_text()))
    validate_config(prepared)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    assert set(prepared["provider"]) <= set(
        schema["properties"]["provider"]["properties"]
    )  # unknown ones pass validation
    types = prepared["available_node_types"]
    # The head runs the driver and builds the index, so no tasks or actors may run there.
    assert types[prepared["head_node_type"]]["resources"] == {"CPU": 0}
    assert sum(types[name]["max_workers"] for name in ("decode", "embed")) <= prepared["max_workers"]
    assert (AWS.parent / prepared["file_mounts"]["/etc/likeness"]).is_dir()
    spec = read_spec(AWS.parent / "files" / "job.yaml")
    assert spec.resources.address == "auto"
    assert spec.resources.actors == (1, types["embed"]["max_workers"])
    assert types["embed"]["min_workers"] or spec.resources.wait_for_nodes  # otherwise a starting job finds no GPU


@pytest.mark.slow
def test_ray_launches_the_machines_of_the_cluster_file(
    aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the code of `ray up` on a mock of AWS. It fails if `node_config`, which Ray's schema ignores, is wrong."""
    monkeypatch.setenv("HOME", str(tmp_path))  # for the key pair
    (tmp_path / ".ssh").mkdir()
    config = yaml.safe_load(AWS.read_text())
    machine = config["available_node_types"]["head"]["node_config"]
    boto3.client("iam").create_instance_profile(InstanceProfileName=machine["IamInstanceProfile"]["Arn"].split("/")[1])
    [ami, *_] = boto3.client("ec2", config["provider"]["region"]).describe_images()["Images"]
    for each in config["available_node_types"].values():
        each["node_config"]["ImageId"] = ami["ImageId"]
    config = bootstrap_aws(prepare_config(config))  # type: ignore[no-untyped-call]
    config = AWSNodeProvider.fillout_available_node_types_resources(config)
    provider = AWSNodeProvider(config["provider"], config["cluster_name"])  # type: ignore[no-untyped-call]
    launched = {}
    for name, each in config["available_node_types"].items():
        tags = {TAG_RAY_NODE_KIND: name, TAG_RAY_LAUNCH_CONFIG: name, TAG_RAY_NODE_STATUS: STATUS_UNINITIALIZED}
        [node] = provider.create_node(each["node_config"], tags, 1).values()
        resources = {what: amount for what, amount in each["resources"].items() if what != "memory"}
        launched[name] = (node.instance_type, node.instance_lifecycle, resources)
    # As in the file's comments. Jobs request GPUs and their type.
    assert launched == {
        "head": ("m7i.2xlarge", None, {"CPU": 0}),
        "decode": ("c7i.4xlarge", "spot", {"CPU": 16}),
        "embed": ("g6.4xlarge", "spot", {"CPU": 16, "GPU": 1, "accelerator_type:L4": 1}),
    }
