"""Values as people write them, in options and in files of jobs: parsed and checked; and the defaults."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.errors import UsageError

DEFAULT_MODEL = "openai/clip-vit-base-patch32"
DEMO_MODEL = Path(__file__).parent / "demo" / "model"
IMAGE_EXTENSIONS = ("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "mpo")

_MIN_AMOUNT = 0.0001  # Ray counts in multiples of this

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
    return {name: checked_amount(amount, name, least=_MIN_AMOUNT) for name, amount in amounts.items()}


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
