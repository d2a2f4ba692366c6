"""Shared by the commands: the terminal, common options, and the parsing of their texts."""

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup, TyperOption

from jobs.errors import UsageError
from jobs.listing import IMAGE_EXTENSIONS

DEFAULT_MODEL = "openai/clip-vit-base-patch32"
DEMO_MODEL = Path(__file__).parent / "demo" / "model"

console = Console()

_LEAST_AMOUNT = 0.0001  # Ray counts in multiples of this

_SIZE_UNITS = {"": 1, **{f"{letter}B": 1000**n for n, letter in enumerate(" KMGT") if n}}
_SIZE_UNITS |= {f"{letter}IB": 1024**n for n, letter in enumerate(" KMGT") if n} | {"B": 1}


def checked_amount(amount: object, name: str, *, least: float = 0) -> float:
    """An amount of a resource as Ray takes it: a share of one, or a whole number. ValueError for others."""
    if (
        isinstance(amount, bool)
        or not isinstance(amount, int | float)
        or not least <= amount < math.inf
        or (amount > 1 and amount != int(amount))
    ):
        raise ValueError(f"has {amount!r} for {name}: expected a share of 1, such as 0.5, or a whole number")
    return float(amount)


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


def given(**options: Any) -> dict[str, Any]:
    """The options that were given: others must not override the environment."""
    return {name: value for name, value in options.items() if value is not None}


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


def parse_resources(text: str | None) -> dict[str, float]:
    """`{"npu": 1}`."""
    try:
        amounts = json.loads(text or "{}")
    except ValueError:
        amounts = None
    if not isinstance(amounts, dict):
        raise UsageError(f"--actor-resources is {text!r}: expected a JSON object of amounts such as " + '{"npu": 1}')
    try:
        return checked_resources(amounts)
    except ValueError as error:
        raise UsageError(f"--actor-resources {error}") from error


def checked_resources(amounts: Mapping[str, object]) -> dict[str, float]:
    """Amounts of a cluster's own resources, as Ray takes them. ValueError for others."""
    if taken := sorted({"CPU", "GPU", "memory", "object_store_memory"} & set(amounts)):
        raise ValueError(
            f"names {', '.join(taken)}: Likeness sets CPU, memory and object store itself; use --num-gpus (num_gpus) "
            "for GPUs"
        )
    return {name: checked_amount(amount, name, least=_LEAST_AMOUNT) for name, amount in amounts.items()}


def parse_extensions(text: str | None) -> tuple[str, ...]:
    """`jpg,.PNG`."""
    if text is None:
        return IMAGE_EXTENSIONS
    extensions = tuple(part.strip().lower().lstrip(".") for part in text.split(",") if part.strip())
    if not extensions:
        raise UsageError(f"--extensions is {text!r}: expected extensions such as jpg,png")
    return extensions


def parse_size(option: str, text: str) -> int:
    """Bytes of `600MB`, `1.5 GiB` or `500000000`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", text.strip())
    size = int(float(match[1]) * _SIZE_UNITS.get(match[2].upper(), 0)) if match else 0
    if size <= 0:
        raise UsageError(f"{option} is {text!r}: expected a size such as 600MB, 2GiB or a number of bytes")
    return size


def parse_filter(text: str | None) -> dict[str, Any] | None:
    """A filter, which is a JSON object."""
    if text is None:
        return None
    problem = ""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        parsed, problem = None, f" ({error})"
    if not isinstance(parsed, dict):
        example = '{"label": "cat", "width": {"$gte": 640}}'
        raise UsageError(f"--filter is {text!r}: expected a JSON object such as {example}{problem}")
    return parsed
