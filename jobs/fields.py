"""The types of settings: how each is parsed, checked and described."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from embedder.python_class import CLASS_NAME
from index.filters.plain import plain_value
from index.matches import MATCH_COLUMNS, SEARCHES
from index.storage.storage import require_utf8
from jobs.file_extensions import checked_extensions
from jobs.values import (
    NO_LIMIT,
    ColumnType,
    checked_amount,
    checked_resources,
    checked_text,
    parse_actors,
    parse_clusters,
    parse_column_types,
    parse_duration,
    parse_limit,
    parse_object,
    parse_refresh,
)


class Section(BaseModel):
    """A part of a job's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def parsed_by(parse: Callable[[str], Any]) -> BeforeValidator:
    """Parses text and whole numbers; values that a Python caller has already parsed stay."""
    return BeforeValidator(lambda value: parse(str(value)) if isinstance(value, str | int) else value)


@dataclass(frozen=True)
class Form:
    """Text that a pattern matches as a whole: `expected` says what that is."""

    pattern: str
    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": self.pattern}

    def _check(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(f"is {text!r}: expected {self.expected}")
        return text


ClassName = Annotated[str, Form(CLASS_NAME, "module:Class, such as palette:Histogram")]


def _not_of_matches(name: str) -> str:
    if name == SEARCHES or name.startswith(f"{SEARCHES}_"):
        raise ValueError(
            f"is {name!r}: expected a name other than {SEARCHES} and {SEARCHES}_…, the columns of saved searches"
        )
    if name in MATCH_COLUMNS:
        raise ValueError(f"is {name!r}: expected a name other than {', '.join(MATCH_COLUMNS)}, which every match has")
    return name


ColumnName = Annotated[
    str,
    Form("^[A-Za-z][A-Za-z0-9_]{0,63}$", "at most 64 letters, digits and _, beginning with a letter"),
    AfterValidator(_not_of_matches),
]
"""The name of an annotation."""
Limit = Annotated[
    int,
    parsed_by(parse_limit),
    Field(ge=NO_LIMIT),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["2GiB", "600MB", 500000000, "none"]}),
]
Actors = Annotated[
    tuple[int, int], parsed_by(parse_actors), WithJsonSchema({"type": ["integer", "string"], "examples": [4, "2:8"]})
]
Clusters = Annotated[
    int | Literal["auto"],
    parsed_by(parse_clusters),
    WithJsonSchema({"type": ["integer", "string"], "examples": [50, "auto"]}),
]
Gpus = Annotated[float, Field(ge=0), AfterValidator(lambda amount: amount and checked_amount(amount, "GPUs"))]
Cpus = Annotated[float, Field(gt=0), AfterValidator(lambda amount: checked_amount(amount, "CPUs"))]
Amounts = Annotated[
    dict[str, Any],
    parsed_by(lambda text: parse_object(text, '{"npu": 1}')),
    AfterValidator(checked_resources),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}),
]


def _plain_filter(expression: dict[str, Any]) -> Any:
    try:
        return plain_value(expression)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"expected a filter with values that JSON can hold: {error}") from error


Expression = Annotated[
    dict[str, Any],
    parsed_by(lambda text: parse_object(text, '{"width": {"$gte": 640}}')),
    AfterValidator(_plain_filter),
    WithJsonSchema({"type": "object", "examples": [{"width": {"$gte": 640}, "format": {"$ne": "gif"}}]}),
]
ColumnTypes = Annotated[
    dict[str, ColumnType],
    parsed_by(parse_column_types),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"enum": list(get_args(ColumnType))}, "examples": [{"ean": "text"}]}
    ),
]
Duration = Annotated[
    int,
    parsed_by(parse_duration),
    Field(gt=0),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["10m", "90s", 600]}),
]
Text = Annotated[str, AfterValidator(checked_text)]


def _from_folder(value: str, info: ValidationInfo) -> str:
    """The path from the folder of the job's file, wherever it is run from."""
    if info.context is None or "://" in value:
        return value
    return str(info.context / os.path.expanduser(value))  # noqa: PTH111  # keeps an unknown ~user


FROM_FOLDER = AfterValidator(_from_folder)
Location = Annotated[
    str,
    Field(min_length=1),
    BeforeValidator(lambda value: require_utf8(value) if isinstance(value, str) else value),
    FROM_FOLDER,
]


def _model_from_folder(name: str, info: ValidationInfo) -> str:
    return _from_folder(name, info) if name.startswith((".", "/", "~")) else name


ModelName = Annotated[str, AfterValidator(_model_from_folder)]
"""A hub id, or a folder that begins with `.`, `/` or `~`."""
Refresh = Annotated[
    int | None,
    parsed_by(parse_refresh),
    WithJsonSchema({"type": ["integer", "string"], "examples": ["7d", "12h", "never"]}),
]
Extensions = Annotated[tuple[str, ...], parsed_by(lambda text: text.split(",")), AfterValidator(checked_extensions)]

WordColumns = Annotated[tuple[Annotated[Text, Field(min_length=1)], ...], parsed_by(lambda text: text.split(","))]


class Target(Section):
    """Where a notification or the matches of a saved search go: exactly one of the two."""

    url: str | None = Field(
        None,
        pattern=r"^(https?://|\$\{)",
        description="they are posted there as JSON; ${NAME} stands for an environment variable",
    )
    command: str | None = Field(None, min_length=1, description="run by sh, with the same JSON on its stdin")

    @model_validator(mode="after")
    def _require_one(self) -> Target:
        if (self.url is None) == (self.command is None):
            raise ValueError("expected one of url and command")
        return self

    @property
    def address(self) -> str:
        """The url, with the values of environment variables."""
        return os.path.expandvars(self.url or "")

    @property
    def problem(self) -> str | None:
        """Why its address cannot be used, without what may be secret; None if it can."""
        if unset := re.search(r"\$\{([^}]*)\}", self.address):
            return f"the environment variable {unset[1]} is not set: set it where the job runs"
        if self.url and not self.address.startswith(("http://", "https://")):
            return "expected an http:// or https:// address in its environment variable"
        return None
