"""Parses and checks values that people write in options and job files; holds the defaults.

A ValueError says what is wrong with a value; the caller puts the name of the option or field in front.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

DEFAULT_MODEL = "openai/clip-vit-base-patch32"

MAX_MISSING = 0.2
MAX_REJECT_RATE = 0.05
MAX_CLUSTERS = 1_000
PER_HOST = 8
NO_LIMIT = 0
MIN_SIMILARITY = 0.98
MAX_DIFFERENCE = 0.065
"""On a scale from 0 to 1. Measured: re-encoded and resized copies stay below 0.05, cropped ones below 0.065; the same
drawings in another colour, pattern or shape are above 0.09."""

ColumnType: TypeAlias = Literal["text", "integer", "number", "boolean", "date", "time"]
"""Types that can be given to columns of lists."""

_MIN_AMOUNT = 0.0001  # Ray counts in multiples of this

_DURATION_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE_UNITS = {"": 1, **{f"{letter}B": 1000**n for n, letter in enumerate(" KMGT") if n}}
_SIZE_UNITS |= {f"{letter}IB": 1024**n for n, letter in enumerate(" KMGT") if n} | {"B": 1}


def checked_amount(amount: object, name: str) -> float:
    """An amount of a resource that Ray accepts: a fraction of one, or a whole number. ValueError for others."""
    if (
        isinstance(amount, bool)
        or not isinstance(amount, int | float)
        or not _MIN_AMOUNT <= amount < math.inf
        or (amount > 1 and amount != int(amount))
    ):
        raise ValueError(f"has {amount!r} for {name}: expected a fraction of 1, such as 0.5, or a whole number")
    return float(amount)


def checked_resources(amounts: Mapping[str, object]) -> dict[str, float]:
    """Amounts of a cluster's custom resources. ValueError for an amount or a name that Ray does not accept."""
    if reserved := sorted({"CPU", "GPU", "memory", "object_store_memory"} & set(amounts)):
        raise ValueError(
            f"names {', '.join(reserved)}: Likeness sets CPU, memory and object store itself; use --num-gpus "
            "(num_gpus) for GPUs"
        )
    return {name: checked_amount(amount, name) for name, amount in amounts.items()}


def checked_text(text: str) -> str:
    """ValueError for text that is not UTF-8, which arguments of a command may be: models and Arrow take no other."""
    if text != text.encode(errors="replace").decode():
        raise ValueError("expected text in UTF-8")
    return text


def parse_actors(text: str) -> tuple[int, int]:
    """Minimum and maximum of `4` or `2:8`."""
    first, _, last = text.partition(":")
    try:
        limits = int(first), int(last or first)
    except ValueError:
        limits = (0, 0)
    if not 1 <= limits[0] <= limits[1]:
        raise ValueError(f"is {text!r}: expected a number or MIN:MAX")
    return limits


def parse_clusters(text: str) -> int | str:
    """A number of clusters, or `auto`."""
    if text != "auto" and not (text.isdecimal() and 2 <= int(text) <= MAX_CLUSTERS):
        raise ValueError(f"is {text!r}: expected 2 to {MAX_CLUSTERS:,}, or auto")
    return text if text == "auto" else int(text)


def parse_limit(text: str) -> int:
    """Bytes of `600MB`, `1.5 GiB` or `500000000`; `NO_LIMIT` of `none`."""
    if text.strip() == "none":
        return NO_LIMIT
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", text.strip())
    size = float(match[1]) * _SIZE_UNITS.get(match[2].upper(), 0) if match else 0
    if not 1 <= size < math.inf:
        raise ValueError(f"is {text!r}: expected a size such as 600MB, 2GiB or a number of bytes")
    return int(size)


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def fingerprint_of(parts: Any) -> str:
    """SHA-256 (hex) of the JSON of `parts`, such as all that affects an annotation's columns."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def parse_duration(text: str) -> int:
    """Seconds of `90`, `90s`, `10m`, `1h` or `7d`."""
    match = re.fullmatch(r"([0-9]+)\s*([smhd]?)", text.strip())
    if match is None:
        raise ValueError(f"is {text!r}: expected a duration such as 90s, 10m, 1h or 7d, or a number of seconds")
    return int(match[1]) * _DURATION_UNITS[match[2]]


def parse_column_types(text: str) -> dict[str, str]:
    """Types by column of `ean=text,price=number`."""
    types = dict[str, str]()
    for part in text.split(","):
        column, _, kind = map(str.strip, part.rpartition("="))
        if not column or kind not in get_args(ColumnType):
            raise ValueError(f"is {text!r}: expected COLUMN=TYPE,… with types out of {', '.join(get_args(ColumnType))}")
        types[column] = kind
    return types


def parse_refresh(text: str) -> int | None:
    """Seconds of a duration above 0; None for `never`."""
    if text.strip() == "never":
        return None
    if (seconds := parse_duration(text)) == 0:
        raise ValueError(f"is {text!r}: expected a duration above 0, or never")
    return seconds


def sentence(error: "ErrorDetails") -> str:
    """What is wrong with a value of a model: `expected …`, or the message of the model's own validator."""
    if error["type"] in _IN_PLAIN_WORDS:
        return _IN_PLAIN_WORDS[error["type"]]
    message = error["msg"].removeprefix("Value error, ")
    message = re.sub("^Input should be greater than or equal to", "expected a number of at least", message)
    message = re.sub("^Input should be less than or equal to", "expected a number of at most", message)
    message = re.sub("^Input should be (greater|less)", r"expected a value \1", message)
    message = re.sub(r"^'.*' is not one of (.*)\.$", r"expected one of \1", message)  # typer's, for a choice
    message = re.sub("^String should match", "expected text that matches", message)
    return re.sub("^(Input|String|Value) should (be )?", "expected ", message)


_IN_PLAIN_WORDS = {
    **dict.fromkeys(("string_too_short", "too_short"), "is empty"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "expected a mapping of fields to values"),
    **dict.fromkeys(("list_type", "tuple_type"), "expected a list"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "expected a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    "string_type": "expected text",
    "string_unicode": "is not UTF-8",
    "missing": "is missing",
    "byte_size": "expected a size such as 600MB, 2GiB or a number of bytes",
}


def parse_object(text: str, example: str) -> dict[str, Any]:
    """A JSON object. The message of a ValueError contains the example."""
    from index.filters.plain import parse_strictly  # imports NumPy, which takes longer than `likeness --help`

    problem = ""
    try:
        parsed = parse_strictly(text)
    except ValueError as error:
        parsed, problem = None, f" ({error})"
    if not isinstance(parsed, dict):
        raise ValueError(f"is {text!r}: expected a JSON object such as {example}{problem}")
    return parsed


def some(names: Sequence[str]) -> str:
    """The first five names, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def noted(note: str, files: Sequence[str]) -> str:
    """A note, with the first of the files that it is about, if any."""
    return f"{note}: {some(files)}" if files else note


def counted(count: int, noun: str) -> str:
    """`1 image`, `2,000 images`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
