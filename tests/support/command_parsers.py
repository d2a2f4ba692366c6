"""Commands in deploy/, README and docs/, and the parsers of their programs, which check them without running them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from ray.scripts.scripts import cli as ray_cli
from ray.serve.scripts import cli as serve_cli

from likeness.cli.app import app

PROGRAMS: dict[str, Any] = {"likeness": typer.main.get_command(app), "ray": ray_cli, "serve": serve_cli}


def shell_lines(page: Path) -> Iterator[str]:
    """The lines of a page's shell blocks, with continued lines joined."""
    for block in re.findall(r"(?ms)^ *```sh\n(.*?)^ *```", page.read_text()):
        yield from re.sub(r"\\\n\s*", "", block).splitlines()


def check(argv: list[str]) -> None:
    """Parse a command line with its program's parser, and the command after `--` likewise. Raises if it is invalid."""
    split = argv.index("--") if "--" in argv else len(argv)
    own, inner = argv[:split], argv[split + 1 :]
    name, command, context = Path(own[0]).name, PROGRAMS[Path(own[0]).name], None
    rest = argv[1:]
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, rest, parent=context)
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
    command.make_context(name, rest, parent=context)
    if inner:
        check(inner)
