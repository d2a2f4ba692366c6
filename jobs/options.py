"""What the commands have in common: the terminal, options that several take, and how their texts are read."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jobs.errors import UsageError
from jobs.listing import IMAGE_EXTENSIONS

DEFAULT_MODEL = "openai/clip-vit-base-patch32"
DEMO_MODEL = Path(__file__).parent / "demo" / "model"

console = Console()


class OutputFormat(StrEnum):
    table = "table"
    json = "json"


CollectionArgument = Annotated[str, typer.Argument(help="The collection: a folder or bucket prefix.")]
FormatOption = Annotated[OutputFormat, typer.Option("--format", help="For people or for programs.")]
ModelOption = Annotated[
    str,
    typer.Option(help="A CLIP-family model: hub id or folder. `demo` is the small one that comes with Likeness."),
]
MovedModelOption = Annotated[str | None, typer.Option(help="Where the model is, if it has moved.")]


def model_named(name: str) -> str:
    """The hub id or folder of a model; "demo" names the one that comes with the project."""
    return str(DEMO_MODEL) if name == "demo" else name


def parse_actors(text: str | None) -> tuple[int, int] | None:
    """`4` or `2:8`."""
    if text is None:
        return None
    least, _, most = text.partition(":")
    try:
        pair = int(least), int(most or least)
    except ValueError:
        pair = (0, 0)
    if not 1 <= pair[0] <= pair[1]:
        raise UsageError(f"--actors is {text!r}: expected a number or LEAST:MOST")
    return pair


def parse_extensions(text: str | None) -> tuple[str, ...]:
    """`jpg,.PNG`."""
    if text is None:
        return IMAGE_EXTENSIONS
    extensions = tuple(part.strip().lower().lstrip(".") for part in text.split(",") if part.strip())
    if not extensions:
        raise UsageError(f"--extensions is {text!r}: expected extensions such as jpg,png")
    return extensions
