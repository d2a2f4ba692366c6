"""The examples in deploy/ work: each is parsed by the program that reads it, and its commands are run."""

import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.dashboard.modules.job.cli import submit

from index.collection import Collection
from jobs.schedule.history import last_entries
from jobs.schedule.scheduler import cron_times
from jobs.schedule.spec_file import read_spec
from tests.support.nights.quiet_night import make_job
from tests.support.paths import DEPLOY

LIKENESS = Path(sys.executable).parent / "likeness"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make_job(tmp_path)


def outcomes(job: Path) -> list[tuple[str, int | None]]:
    runs = last_entries(Collection.open(str(job.parent / "collection")), 10)
    return [(run.outcome, run.counts.get("unchanged")) for run in runs]


def shell(command: str, job: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command like cron: from another folder, with an almost empty environment."""
    environment = {"HOME": str(job.parent), "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(command, shell=True, env=environment, cwd="/", capture_output=True, text=True, check=False)


def test_the_example_of_a_job_is_valid() -> None:
    spec = read_spec(DEPLOY / "job.yaml")
    assert (spec.source, spec.collection, spec.retention.keep) == ("/srv/pictures", "/srv/likeness", 3)


def test_commented_out_settings_of_the_example_are_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "job.yaml").read_text()
    names = "address|actors|num_gpus|cpus_per_actor|wait_for_nodes|max_memory|on_success|metrics_file"
    optional = re.sub(rf"(?m)^( *)# (?=({names}):)", r"\1", text)
    (tmp_path / "job.yaml").write_text(optional)
    spec = read_spec(tmp_path / "job.yaml")
    assert (spec.resources.address, spec.resources.actors, spec.resources.num_gpus) == ("auto", (1, 4), 1)
    assert (spec.resources.cpus_per_actor, spec.resources.wait_for_nodes) == (4, 900)
    assert spec.index.max_memory == 2 * 1024**3
    assert spec.notify.on_success is not None
    assert spec.metrics_file == "/var/lib/node_exporter/textfile/likeness.prom"


def test_the_crontab(job: Path) -> None:
    lines = re.findall(r"(?m)^[^#\n].*$", (DEPLOY / "schedule" / "crontab").read_text())
    variables = dict(line.split("=", 1) for line in lines[:-1])
    assert set(variables) == {"LIKENESS", "JOB", "LOG"}
    *times, command = lines[-1].split(maxsplit=5)
    cron_times(" ".join(times), None, datetime.now(UTC))
    assert not re.search(r"(?<!\\)%", command)
    log = job.parent / "reembed.log"
    done = shell(command, job, LIKENESS=str(LIKENESS), JOB=str(job), LOG=str(log))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), log.read_text()
    assert "index 000001 stays live" in log.read_text()
    assert outcomes(job) == [("succeeded", 3)]


def test_the_service_of_systemd(job: Path) -> None:
    service = (DEPLOY / "schedule" / "likeness-reembed.service").read_text()
    command = re.findall(r"(?m)^ExecStart=(.*)$", service)[0]
    assert command == "/opt/likeness/.venv/bin/likeness reembed --spec /etc/likeness/job.yaml"
    assert shell(f"{LIKENESS} reembed --spec {job}", job).returncode == 0
    assert outcomes(job) == [("succeeded", 3)]
    # By default systemd also stops Ray's processes, which the job needs for an orderly end.
    assert re.findall(r"(?m)^KillMode=(.*)$", service) == ["mixed"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_its_units(tmp_path: Path) -> None:
    services = [tmp_path / "likeness-reembed.service", tmp_path / "likeness-serve.service"]
    for service in services:
        unit = (DEPLOY / "schedule" / service.name).read_text().replace("User=likeness", "User=root")
        service.write_text(unit.replace("/opt/likeness/.venv/bin/likeness", str(LIKENESS)))
    timer = shutil.copy(DEPLOY / "schedule" / "likeness-reembed.timer", tmp_path)
    command = ["systemd-analyze", "verify", "--man=no", str(timer), *map(str, services)]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in verified.stderr.splitlines() if "likeness-" in line]
    assert (verified.returncode, complaints) == (0, []), verified.stderr
    when = re.findall(r"(?m)^OnCalendar=(.*)$", Path(timer).read_text())[0]
    subprocess.run(["systemd-analyze", "calendar", when], check=True, capture_output=True)


def test_submitting_to_ray(job: Path, tmp_path: Path) -> None:
    """With a fake `ray` that runs the submitted command."""
    script = DEPLOY / "schedule" / "ray-job-submit.sh"
    assert os.access(script, os.X_OK)
    assert shell(str(script), job).stderr.rstrip().endswith("set it to the address of the dashboard: http://head:8265")
    ray = tmp_path / "bin" / "ray"
    ray.parent.mkdir()
    ray.write_text('#!/bin/sh\necho "$@"\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    ray.chmod(0o755)
    path = f"{ray.parent}:{LIKENESS.parent}:/usr/bin:/bin"
    done = shell(str(script), job, PATH=path, RAY_ADDRESS="http://head:8265", JOB=str(job))
    assert done.returncode == 0, done.stderr
    arguments = done.stdout.splitlines()[0]
    submitted = r"job submit --address http://head:8265 --submission-id likeness-reembed-\d{4}-\d\d-\d\d "
    assert re.match(submitted, arguments), arguments
    options = {name for parameter in submit.params for name in parameter.opts}
    used = set(re.findall(r"--[a-z-]+", arguments.partition(" -- ")[0]))
    assert used <= options
    # With resources the entrypoint could run on any node, but JOB is a path on the head.
    assert not {option for option in used if option.startswith("--entrypoint")}
    assert outcomes(job) == [("succeeded", 3)]


def test_the_cron_job_of_kubernetes() -> None:
    """`test_deploy_kubernetes.py` checks the RayJob that it creates."""
    by_kind: dict[str, dict[str, Any]] = {
        each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "cronjob.yaml").read_text())
    }
    assert list(by_kind) == ["ServiceAccount", "Role", "RoleBinding", "ConfigMap", "CronJob"]
    account = by_kind["ServiceAccount"]["metadata"]["name"]
    assert by_kind["RoleBinding"]["subjects"][0]["name"] == account
    assert by_kind["RoleBinding"]["roleRef"]["name"] == by_kind["Role"]["metadata"]["name"]
    cron = by_kind["CronJob"]["spec"]
    cron_times(cron["schedule"], cron["timeZone"], datetime.now(UTC))
    pod = cron["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account
    files = by_kind["ConfigMap"]["data"]
    [container] = pod["containers"]
    assert container["args"] == ["create", f"--filename={container['volumeMounts'][0]['mountPath']}/rayjob.yaml"]
    rayjob = yaml.safe_load(files["rayjob.yaml"])
    assert (rayjob["kind"], by_kind["Role"]["rules"][0]["verbs"]) == ("RayJob", ["create"])
    assert {volume["name"]: volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} == {
        container["volumeMounts"][0]["name"]: by_kind["ConfigMap"]["metadata"]["name"]
    }
