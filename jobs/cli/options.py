"""Shared by the commands: the terminal, common options, and what they print."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup, TyperOption

from jobs.values import DEFAULT_MODEL, checked_amount

console = Console()


def _num_gpus(value: float | None) -> float | None:
    try:
        return None if value is None else checked_amount(value, "GPUs")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _typeless_flags(params: list[Any]) -> list[Any]:
    """Flags are shown without a type: typer shows `<bool>`, as if they took a value."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
    return params


class HelpCommand(TyperCommand):
    """A command with plain help; for `app.command(cls=…)`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _typeless_flags(super().get_params(ctx))


class HelpGroup(TyperGroup):
    """A group of commands with plain help; for `Typer(cls=…)`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _typeless_flags(super().get_params(ctx))


class OutputFormat(StrEnum):
    table = "table"
    json = "json"


CollectionArgument = Annotated[str, typer.Argument(help="The collection: a folder or bucket prefix.")]
FormatOption = Annotated[OutputFormat, typer.Option("--format", help="A table for people, or JSON for programs.")]
AddressOption = Annotated[
    str | None,
    typer.Option(help="A Ray cluster: HOST:PORT or auto; by default one is started here if it pays."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        help="A CLIP-family model: hub id or folder. `demo` is the small one that comes with Likeness. By default the "
        f"collection's own; for a new one {DEFAULT_MODEL}."
    ),
]
RevisionOption = Annotated[str | None, typer.Option(help="The model's branch, tag or commit on the hub.")]
DeviceOption = Annotated[str | None, typer.Option(help="cuda, cpu, …; by default a GPU where there is one.")]
NumGpusOption = Annotated[
    float | None,
    typer.Option(min=0, callback=_num_gpus, help="GPUs for each actor: a whole number, or a share of one."),
]
ActorsOption = Annotated[str | None, typer.Option(help="Embedding actors: a number, or LEAST:MOST.")]
ActorResourcesOption = Annotated[
    str | None, typer.Option(help='Resources of the cluster\'s own for each actor, as JSON: {"npu": 1}.')
]
AcceleratorOption = Annotated[str | None, typer.Option(help="Kind of GPU, as Ray names it: A100, H200, …")]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Images in a forward pass.")]
BlockSizeOption = Annotated[int, typer.Option(min=1, help="Images written together: the most a crash can cost.")]
ExtensionsOption = Annotated[str | None, typer.Option(help="File extensions to take, with commas: jpg,png.")]
DraftOption = Annotated[bool, typer.Option(help="Decode large JPEGs at reduced scale, many times faster.")]
RejectRateOption = Annotated[
    float, typer.Option(min=0, max=1, help="Share of the images that may be rejected before the run fails.")
]
MovedModelOption = Annotated[str | None, typer.Option(help="The model's new place, if it has moved.")]


def print_json(value: Any) -> None:
    """For programs. Letters beyond ASCII stay as they are."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def without_none(**options: Any) -> dict[str, Any]:
    """The options that were given: others must not override the environment."""
    return {name: value for name, value in options.items() if value is not None}
