"""Each file in deploy/ works: it is parsed by the program that reads it, and its commands are valid, or are run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.dashboard.modules.job.cli import submit
from ray.serve.schema import ServeDeploySchema

from api.deployment.ingress import APP_NAME
from api.settings import ServeSettings
from index.collection import Collection
from jobs.schedule.history import last_entries
from jobs.schedule.scheduler import parse_cron
from jobs.schedule.spec_file import read_spec
from tests.support.command_parsers import PROGRAMS, check, shell_lines
from tests.support.nights.quiet_night import make_job
from tests.support.paths import DEPLOY, ROOT

BIN = Path(sys.executable).parent
LIKENESS = BIN / "likeness"
COMPOSE_FILE = DEPLOY / "compose" / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
AWS: dict[str, Any] = yaml.safe_load((DEPLOY / "ray-cluster" / "aws.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def schedule(name: str) -> str:
    return (DEPLOY / "schedule" / name).read_text()


def shell(command: str, job: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command like cron: from another folder, with an almost empty environment."""
    environment = {"HOME": str(job.parent), "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(command, shell=True, env=environment, cwd="/", capture_output=True, text=True, check=False)


def programs(folder: Path, **scripts: str) -> Path:
    """A folder of programs with these scripts."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


# Commands and links


def in_files() -> Iterator[tuple[str, list[str]]]:
    for name, service in SERVICES.items():
        if "build" in service and service["entrypoint"][0] in PROGRAMS:
            yield f"compose.yaml {name}", [*service["entrypoint"], *service["command"]]
    for line in AWS["head_start_ray_commands"] + AWS["worker_start_ray_commands"]:
        yield "aws.yaml", shlex.split(line)
    for path in sorted([*(DEPLOY / "kubernetes").glob("*.yaml"), *(DEPLOY / "schedule").glob("*.service")]):
        for line in re.findall(r"(?m)^(?:\s+entrypoint: |ExecStart=)(.*)$", path.read_text()):
            yield path.name, shlex.split(line)


def in_pages() -> Iterator[tuple[str, list[str]]]:
    """The commands in shell blocks, without what comes before the program's name."""
    before = r"(docker compose (exec|run --rm) (?P<service>\S+) |runuser -u likeness -- |[A-Z_]+=\S* )*"
    for path in sorted(DEPLOY.rglob("*.md")):
        for line in shell_lines(path):
            found = re.match(before, line)
            assert found is not None
            assert found["service"] in {None, *SERVICES}, line
            words = shlex.split(line[found.end() :], comments=True)
            if words and Path(words[0]).name in PROGRAMS:
                yield str(path.relative_to(DEPLOY)), words


COMMANDS = [*in_files(), *in_pages()]


@pytest.mark.parametrize(("where", "argv"), COMMANDS, ids=[f"{where}: {shlex.join(argv)}" for where, argv in COMMANDS])
def test_commands_are_valid(where: str, argv: list[str]) -> None:
    check(argv)


def test_commands_of_every_kind_are_found() -> None:
    places = {where.split()[0] for where, _ in COMMANDS}
    assert {"compose.yaml", "aws.yaml", "cronjob.yaml", "rayjob.yaml", "schedule/README.md"} <= places
    assert {"likeness-reembed.service", "likeness-serve.service"} <= places


# Jobs and servers


def test_examples_of_jobs_are_valid(tmp_path: Path) -> None:
    spec = read_spec(DEPLOY / "job.yaml")
    assert (spec.source, spec.collection, spec.retention.keep) == ("/srv/pictures", "/srv/likeness", 3)
    # What is commented out is valid, too.
    names = "address|actors|num_gpus|cpus_per_actor|wait_for_nodes|max_memory|on_success|metrics_file"
    text = re.sub(rf"(?m)^( *)# (?=({names}):)", r"\1", (DEPLOY / "job.yaml").read_text())
    (tmp_path / "job.yaml").write_text(text)
    spec = read_spec(tmp_path / "job.yaml")
    assert (spec.resources.address, spec.resources.actors, spec.resources.num_gpus) == ("auto", (1, 4), 1)
    assert (spec.resources.cpus_per_actor, spec.resources.wait_for_nodes) == (4, 900)
    assert (spec.index.max_memory, spec.notify.on_success is None) == (2 * 1024**3, False)
    assert spec.metrics_file == "/var/lib/node_exporter/textfile/likeness.prom"


def test_the_job_and_the_server_of_compose() -> None:
    inside = mounts(SERVICES["ray"])
    files = COMPOSE_FILE.parent / inside["/etc/likeness"]
    spec = read_spec(files / "job.yaml")
    assert spec.source in inside
    assert spec.metrics_file is not None
    # The job writes it where node_exporter reads it.
    assert inside[str(Path(spec.metrics_file).parent)] == mounts(SERVICES["job-metrics"])["/metrics"] == "metrics"
    config = yaml.safe_load((files / "serve.yaml").read_text())
    ServeDeploySchema.model_validate(config)
    [app] = config["applications"]
    settings = ServeSettings(**app["args"])
    assert (app["name"], settings.collection, settings.allow_remote) == (APP_NAME, spec.collection, True)
    port = config["http_options"]["port"]
    assert f"127.0.0.1:{port}:{port}" in SERVICES["ray"]["ports"]


# Schedules


def test_the_crontab(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    lines = re.findall(r"(?m)^[^#\n].*$", schedule("crontab"))
    assert {line.split("=", 1)[0] for line in lines[:-1]} == {"LIKENESS", "JOB", "LOG"}
    *times, command = lines[-1].split(maxsplit=5)
    parse_cron(" ".join(times), None)
    assert not re.search(r"(?<!\\)%", command)
    log = job.parent / "reembed.log"
    done = shell(command, job, LIKENESS=str(LIKENESS), JOB=str(job), LOG=str(log))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), log.read_text()
    assert "index 000001 stays live" in log.read_text()
    [run] = last_entries(Collection.open(str(job.parent / "collection")), 10)
    assert (run.outcome, run.counts["unchanged"]) == ("succeeded", 3)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_its_units(tmp_path: Path) -> None:
    for name in ("likeness-reembed.service", "likeness-serve.service", "likeness-reembed.timer"):
        unit = schedule(name).replace("User=likeness", "User=root")
        (tmp_path / name).write_text(unit.replace("/opt/likeness/.venv/bin/likeness", str(LIKENESS)))
    command = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in verified.stderr.splitlines() if "likeness-" in line]
    assert (verified.returncode, complaints) == (0, []), verified.stderr
    [when] = re.findall(r"(?m)^OnCalendar=(.*)$", schedule("likeness-reembed.timer"))
    subprocess.run(["systemd-analyze", "calendar", when], check=True, capture_output=True)
    # By default systemd also stops Ray's processes, which the job needs for an orderly end.
    assert re.findall(r"(?m)^KillMode=(.*)$", schedule("likeness-reembed.service")) == ["mixed"]


def test_submitting_to_ray(tmp_path: Path) -> None:
    """With a fake `ray` that prints its arguments."""
    script, job = DEPLOY / "schedule" / "ray-job-submit.sh", tmp_path / "job.yaml"
    assert os.access(script, os.X_OK)
    assert shell(str(script), job).stderr.rstrip().endswith("set it to the address of the dashboard: http://head:8265")
    fake = programs(tmp_path / "bin", ray='echo "$@"')
    done = shell(str(script), job, PATH=f"{fake}:/usr/bin:/bin", RAY_ADDRESS="http://head:8265", JOB=str(job))
    assert done.returncode == 0, done.stderr
    [arguments] = done.stdout.splitlines()
    submitted = r"job submit --address http://head:8265 --submission-id likeness-reembed-\d{4}-\d\d-\d\d "
    assert re.match(submitted, arguments), arguments
    options, _, entrypoint = arguments.partition(" -- ")
    check(entrypoint.split())
    assert entrypoint == f"likeness reembed --spec {job}"
    used = set(re.findall(r"--[a-z-]+", options))
    assert used <= {name for parameter in submit.params for name in parameter.opts}
    # With resources the entrypoint could run on any node, but JOB is a path on the head.
    assert not {option for option in used if option.startswith("--entrypoint")}


# Docker compose


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Path in the container → path on the host or name of a volume; variables have their defaults."""
    found = {}
    for volume in service.get("volumes", ()):
        source, target = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).removesuffix(":ro").rsplit(":", 1)
        found[target] = source
    return found


def test_the_compose_file_fits_its_specification_and_names_what_exists() -> None:
    jsonschema.validate(COMPOSE, get_builtin_schema("vendor.compose-spec"))
    for name, service in SERVICES.items():
        for source in mounts(service).values():
            # The user provides the folder of pictures.
            exists = source == "./pictures" or (COMPOSE_FILE.parent / source).exists()
            assert exists if source.startswith(".") else source in COMPOSE["volumes"], f"{name}: {source}"
        assert not [port for port in service.get("ports", ()) if not port.startswith("127.0.0.1:")], name
        if "build" in service:
            assert (COMPOSE_FILE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        else:
            assert ":" in service["image"], f"{name} has no fixed version"
    for secret in ("AWS_SECRET_ACCESS_KEY", "GF_SECURITY_ADMIN_PASSWORD"):
        values = {service.get("environment", {}).get(secret) for service in SERVICES.values()} - {None}
        assert all(re.fullmatch(r"\$\{\w+:\?.+\}", value) for value in values), f"{secret} has a default"
        assert values


def test_the_server_of_compose_comes_back_by_itself(tmp_path: Path) -> None:
    """Runs the keeper's script, with stand-ins for the programs."""
    keeper, server = SERVICES["server-keeper"], SERVICES["server"]
    assert (keeper["restart"], keeper.get("profiles")) == ("unless-stopped", None)
    assert (keeper["entrypoint"], keeper["volumes"]) == (["sh", "-c"], server["volumes"])
    deploy = shlex.join([*server["entrypoint"], *server["command"]])
    for state, deployed in (("down", [deploy]), ("up", [])):
        slept, log = tmp_path / f"{state} slept", tmp_path / f"{state} log"
        log.touch()
        scripts = {"sleep": f"test ! -e '{slept}' && touch '{slept}'", "wget": f"test {state} = up"}
        there = programs(tmp_path / state, **scripts, serve=f"echo serve \"$@\" >> '{log}'")
        subprocess.run(["sh", "-c", *keeper["command"]], env={"PATH": f"{there}:/usr/bin:/bin"}, check=True)
        assert log.read_text().splitlines() == deployed


# A cluster on AWS


def test_the_cluster_file_fits_rays_schema() -> None:
    prepared = prepare_config(AWS)
    validate_config(prepared)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    provider = schema["properties"]["provider"]["properties"]
    assert set(prepared["provider"]) <= set(provider)  # unknown ones pass validation
    types = prepared["available_node_types"]
    # The head runs the driver and builds the index, so no tasks or actors may run there.
    assert types[prepared["head_node_type"]]["resources"] == {"CPU": 0}
    assert sum(types[name]["max_workers"] for name in ("decode", "embed")) <= prepared["max_workers"]
    assert (DEPLOY / "ray-cluster" / prepared["file_mounts"]["/etc/likeness"]).is_dir()
    resources = read_spec(DEPLOY / "ray-cluster" / "files" / "job.yaml").resources
    assert (resources.address, resources.actors) == ("auto", (1, types["embed"]["max_workers"]))
    assert types["embed"]["min_workers"] or resources.wait_for_nodes  # otherwise a starting job finds no GPU


# The image


def instructions(name: str) -> list[str]:
    """The arguments of each such instruction of the Dockerfile, with continued lines joined and without comments."""
    lines = re.findall(r"(?m)^(?!\s*#).+$", (DEPLOY / "docker" / "Dockerfile").read_text())
    return re.findall(rf"(?m)^{name} (.*)$", re.sub(r"\\\n\s*", "", "\n".join(lines)))


def test_the_linter_finds_no_fault_in_the_dockerfile_which_copies_what_exists() -> None:
    subprocess.run([BIN / "hadolint", DEPLOY / "docker" / "Dockerfile"], check=True)
    copied = [source for rest in instructions("COPY") for source in rest.split()[:-1]]
    assert sorted(copied) == sorted(re.findall(r"(?m)^!(.+)$", (ROOT / ".dockerignore").read_text()))
    assert all((ROOT / source).exists() for source in copied)
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(copied)
    bases = ["python:3.11-slim-trixie AS base", "base AS torch-cpu", "base AS torch-cuda", "torch-${DEVICE}"]
    assert (instructions("FROM"), instructions("USER"), instructions("ENTRYPOINT")) == (
        bases,
        ["1000"],
        ['["likeness"]'],
    )


def test_the_requirements_of_the_image_are_the_projects_own_and_pinned() -> None:
    [run] = [rest for rest in instructions("RUN") if "requirements.txt" in rest]
    command = run.partition("> requirements.txt")[0].replace("python", sys.executable, 1)
    printed = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    extras = PROJECT["project"]["optional-dependencies"]
    used = [*extras["formats"], *extras["video"], *extras["ocr"]]
    assert printed.splitlines() == [*PROJECT["project"]["dependencies"], *used]
    pinned = re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text())
    pins = {canonicalize_name(name): version for name, version in pinned}
    for requirement in map(Requirement, printed.splitlines()):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    installs = [rest for rest in instructions("RUN") if "pip install" in rest]
    assert ["-c constraints.txt" in rest for rest in installs] == [True, True, False]
    assert ["--no-deps ." in rest for rest in installs] == [False, False, True]
