"""Every command in deploy/ is valid: the program knows its name, options and arguments."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.command_parsers import PROGRAMS, check
from tests.support.paths import DEPLOY


def in_pages(text: str) -> Iterator[str]:
    """The lines of shell blocks, with continued lines joined."""
    for block in re.findall(r"(?ms)^```sh\n(.*?)^```", text):
        yield from re.sub(r"\\\n\s*", "", block).splitlines()


def in_files() -> Iterator[tuple[str, list[str]]]:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    for name, service in compose.items():
        if "build" in service and service["entrypoint"][0] in PROGRAMS:
            yield f"compose.yaml {name}", [*service["entrypoint"], *service["command"]]
    cluster = yaml.safe_load((DEPLOY / "ray-cluster" / "aws.yaml").read_text())
    for line in cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]:
        yield "aws.yaml", shlex.split(line)
    for path in sorted([*(DEPLOY / "kubernetes").glob("*.yaml"), *(DEPLOY / "schedule").glob("*.service")]):
        for line in re.findall(r"(?m)^(?:\s+entrypoint: |ExecStart=)(.*)$", path.read_text()):
            yield path.name, shlex.split(line)
    for path in sorted(DEPLOY.rglob("*.md")):
        for line in in_pages(path.read_text()):
            words = shlex.split(line, comments=True)
            for before in (["docker", "compose", "exec"], ["docker", "compose", "run", "--rm"]):
                if words[: len(before)] == before:
                    assert words[len(before)] in compose, line
                    words = words[len(before) + 1 :]
            if words[:4] == ["runuser", "-u", "likeness", "--"]:
                words = words[4:]
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words and Path(words[0]).name in PROGRAMS:
                yield f"{path.relative_to(DEPLOY)}", words


COMMANDS = list(in_files())


@pytest.mark.parametrize(("where", "argv"), COMMANDS, ids=[f"{where}: {shlex.join(argv)}" for where, argv in COMMANDS])
def test_commands_are_valid(where: str, argv: list[str]) -> None:
    check(argv)


def test_commands_of_every_kind_are_found() -> None:
    places = {where.split()[0] for where, _ in COMMANDS}
    assert {"compose.yaml", "aws.yaml", "cronjob.yaml", "rayjob.yaml", "schedule/README.md"} <= places
    assert {"likeness-reembed.service", "likeness-serve.service"} <= places


def test_links_to_files_are_valid() -> None:
    for page in sorted(DEPLOY.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(DEPLOY)}: {target}"
