"""Values as people write them, in options and in files of jobs: parsed and checked; and the defaults.

A ValueError says what is wrong with the value: who raises it further puts the option's or the field's name before it.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_MODEL = "openai/clip-vit-base-patch32"
DEMO_MODEL = Path(__file__).parent / "demo" / "model"

MAX_MISSING = 0.2
MAX_REJECT_RATE = 0.05
MIN_SIMILARITY = 0.98
MAX_DIFFERENCE = 0.065
"""Of 0 … 1. Re-encoded and resized copies were measured to stay below 0.05, cropped ones below 0.065; the same drawings
in another colour, pattern or shape were above 0.09."""

MIN_AMOUNT = 0.0001  # Ray counts in multiples of this

_DURATION_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZE_UNITS = {"": 1, **{f"{letter}B": 1000**n for n, letter in enumerate(" KMGT") if n}}
_SIZE_UNITS |= {f"{letter}IB": 1024**n for n, letter in enumerate(" KMGT") if n} | {"B": 1}


def checked_amount(amount: object, name: str, *, least: float = 0) -> float:
    """An amount of a resource as Ray takes it: a share of one, or a whole number."""
    if (
        isinstance(amount, bool)
        or not isinstance(amount, int | float)
        or not least <= amount < math.inf
        or (amount > 1 and amount != int(amount))
    ):
        raise ValueError(f"has {amount!r} for {name}: expected a share of 1, such as 0.5, or a whole number")
    return float(amount)


def checked_resources(amounts: Mapping[str, object]) -> dict[str, float]:
    """Amounts of a cluster's own resources, as Ray takes them."""
    if taken := sorted({"CPU", "GPU", "memory", "object_store_memory"} & set(amounts)):
        raise ValueError(
            f"names {', '.join(taken)}: Likeness sets CPU, memory and object store itself; use --num-gpus (num_gpus) "
            "for GPUs"
        )
    return {name: checked_amount(amount, name, least=MIN_AMOUNT) for name, amount in amounts.items()}


def model_named(name: str) -> str:
    """The hub id or folder of a model; "demo" names the one that comes with the project."""
    return str(DEMO_MODEL) if name == "demo" else name


def parse_actors(text: str) -> tuple[int, int]:
    """`4` or `2:8`."""
    least, _, most = text.partition(":")
    try:
        pair = int(least), int(most or least)
    except ValueError:
        pair = (0, 0)
    if not 1 <= pair[0] <= pair[1]:
        raise ValueError(f"is {text!r}: expected a number or MIN:MAX")
    return pair


def parse_size(text: str) -> int:
    """Bytes of `600MB`, `1.5 GiB` or `500000000`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", text.strip())
    size = int(float(match[1]) * _SIZE_UNITS.get(match[2].upper(), 0)) if match else 0
    if size <= 0:
        raise ValueError(f"is {text!r}: expected a size such as 600MB, 2GiB or a number of bytes")
    return size


def parse_duration(text: str) -> int:
    """Seconds of `90`, `90s`, `10m` or `1h`."""
    match = re.fullmatch(r"([0-9]+)\s*([smh]?)", text.strip())
    if match is None:
        raise ValueError(f"is {text!r}: expected a duration such as 90s, 10m or 1h, or a number of seconds")
    return int(match[1]) * _DURATION_UNITS[match[2]]


def parse_object(text: str, example: str) -> dict[str, Any]:
    """A JSON object such as the example."""
    problem = ""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        parsed, problem = None, f" ({error})"
    if not isinstance(parsed, dict):
        raise ValueError(f"is {text!r}: expected a JSON object such as {example}{problem}")
    return parsed
