"""The Dockerfile: the files it copies exist, and its commands work as far as they need no network."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import DEPLOY, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each instruction, with continued lines joined and without comments."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def test_the_linter_finds_no_fault() -> None:
    subprocess.run([Path(sys.executable).parent / "hadolint", DOCKERFILE], check=True)


def test_copied_files_exist_and_are_not_ignored() -> None:
    copied = [source for name, rest in instructions() if name == "COPY" for source in rest.split()[:-1]]
    not_ignored = re.findall(r"(?m)^!(.+)$", (ROOT / ".dockerignore").read_text())
    assert sorted(copied) == sorted(not_ignored)
    assert all((ROOT / source).exists() for source in copied)
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(copied)


def test_the_requirements_are_the_projects_own_and_pinned() -> None:
    [run] = [rest for name, rest in instructions() if name == "RUN" and "requirements.txt" in rest]
    command = run.partition("> requirements.txt")[0]
    printed = subprocess.run(
        ["sh", "-c", command.replace("python", sys.executable, 1)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    extras = PROJECT["project"]["optional-dependencies"]
    assert printed == [*PROJECT["project"]["dependencies"], *extras["formats"], *extras["video"]]
    pinned = re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text())
    pins = {canonicalize_name(name): version for name, version in pinned}
    for requirement in map(Requirement, printed):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert ["-c constraints.txt" in rest for rest in installs] == [True, True, False]
    assert ["--no-deps ." in rest for rest in installs] == [False, False, True]


def test_volumes_are_mounted_on_folders_of_its_user() -> None:
    """A named volume belongs to root if the image lacks the folder."""
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"].values()
    mounts = [mount for service in services if "build" in service for mount in service.get("volumes", ())]
    mounts += re.findall(r" -v (\S+)", (DEPLOY / "docker" / "README.md").read_text())
    named = {target.rstrip("`") for volume, target in (mount.split(":")[:2] for mount in mounts) if volume.isalpha()}
    assert named >= {"/data", "/metrics", "/home/likeness/.cache/huggingface"}
    [made] = [re.findall(r"install -d -o 1000 -g 100 (.+)", rest) for _, rest in instructions() if "install -d" in rest]
    assert named <= set(made[0].split())


def test_both_devices_have_a_stage_and_none_runs_as_root() -> None:
    stages = [rest for name, rest in instructions() if name == "FROM"]
    assert stages == ["python:3.11-slim-trixie AS base", "base AS torch-cpu", "base AS torch-cuda", "torch-${DEVICE}"]
    assert [rest for name, rest in instructions() if name == "USER"] == ["1000"]
    assert ("ENTRYPOINT", '["likeness"]') in instructions()
