"""What is wrong with the fields of a request, in words that do not require pydantic's manual."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from api.errors import Problem, abbreviate, invalid_fields
from api.http.requests import Example

MAX_ERRORS: Final = 100

# By pydantic's types of errors; for the others, its own message.
_EXPECTED: Final = {
    "missing": "a value, as this field is required",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "too_long": "at most {max_length:,} items",
    "too_short": "a list that is not empty",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": "text of the form {pattern}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than_equal": "a number of at most {le:g}",
    "value_error": "{error}",
}


def field_error(detail: Mapping[str, Any], field: str, known: Iterable[str] = ()) -> dict[str, str]:
    """One of a ValidationError's errors, as a problem document has it. `known` are the fields that there are."""
    given = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return {"field": field, "expected": f"only {', '.join(sorted(known))}", "got": "an unknown field"}
        case "missing":
            got = "nothing"
        case "too_long":
            got = f"{detail['ctx']['actual_length']:,}"
        case "value_error" if isinstance(given, dict):  # its values may be long, and are not at fault
            got = abbreviate([name for name, value in given.items() if value is not None])[1:-1] or "nothing"
        case _:
            got = abbreviate(given)
    if (words := _EXPECTED.get(detail["type"])) is not None:
        expected = words.format(**detail.get("ctx", {}))
    else:
        expected = detail["msg"].removeprefix("Input should be ")
    return {"field": field, "expected": expected, "got": got}


def problem_of_invalid(error: ValidationError, model: type[BaseModel], *more: str) -> Problem:
    """The problem of an invalid document, field by field. `more` are known fields besides the model's."""
    if (count := error.error_count()) > MAX_ERRORS:
        return not_as_described(f"{count:,} mistakes")
    details = error.errors(include_url=False)
    return invalid_fields([_explained(detail, {*model.model_fields, *more}) for detail in details])


def _explained(detail: ErrorDetails, known: set[str]) -> dict[str, str]:
    place = detail["loc"]
    names = set(Example.model_fields) if place and place[0] == "queries" else known
    return field_error(detail, ".".join(map(str, place)) or "body", names)


def not_as_described(got: str) -> Problem:
    return invalid_fields([{"field": "body", "expected": "a document as the API describes it", "got": got}])
