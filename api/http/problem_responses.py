"""Answers errors with RFC 9457 problem documents, and describes these answers in the OpenAPI document.

The problems themselves are declared in `api/problems.py`.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from api import problems
from api.documents import Failed, ProblemOut
from api.observe.log import current_record
from api.problems import PROBLEMS, Problem, abbreviate, invalid_fields

logger = logging.getLogger(__name__)


MEDIA_TYPE: Final = "application/problem+json"
MAX_ERRORS: Final = 100

# By pydantic's error type; other types get pydantic's own message.
_EXPECTED: Final = {
    "missing": "a value, as this field is required",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "an object"),
    "list_type": "a list",
    "string_type": "text",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "too_long": "at most {max_length:,} items",
    "too_short": "a list that is not empty",
    "string_too_short": "text that is not empty",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text of the form {pattern}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than_equal": "a number of at most {le:g}",
    "value_error": "{error}",
}


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response for `problem`, with its status and headers."""
    current_record().problems.append(problem.slug)
    headers = dict(headers or {})
    if isinstance(problem, problems.Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="likeness"'
    if "retry_after_s" in problem.extensions:
        headers["Retry-After"] = str(math.ceil(problem.extensions["retry_after_s"]))
    return JSONResponse(problem.document(), problem.status, headers, MEDIA_TYPE)


def failed_item(error: BaseException) -> Failed:
    """The problem document of one failed item of a batch; unexpected errors are logged."""
    if isinstance(error, Problem):
        problem = error
    else:
        logger.error("an item of a batch failed", exc_info=error)
        problem = _internal()
    current_record().problems.append(problem.slug)
    return Failed(problem=cast(ProblemOut, problem.document()))


def problem_docs(*kinds: type[Problem]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these problems, with an example of each."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        new: dict[str, Any] = {"description": kind.title, "content": {MEDIA_TYPE: {"examples": {}}}}
        entry = by_status.setdefault(kind.status, new)
        entry["content"][MEDIA_TYPE]["schema"] = {"$ref": f"#/components/schemas/{ProblemOut.__name__}"}
        entry["content"][MEDIA_TYPE]["examples"][kind.slug] = {
            "summary": kind.title,
            "value": kind(**{"detail": kind.__doc__, **kind.example}).document(),
        }
        if kind.title not in entry["description"]:
            entry["description"] += f"; {kind.title[0].lower()}{kind.title[1:]}"
    return by_status


def problem_table() -> str:
    rows = (f"| `{kind.type}` | {kind.status} | {kind.__doc__} |" for kind in PROBLEMS.values())
    return "\n".join(["| type | status | when |", "|---|---|---|", *rows])


async def _on_problem(_: Request, problem: Problem) -> Response:
    return problem_response(problem)


async def _on_defect(request: Request, error: Exception) -> Response:
    """Logs the exception, and answers without details for the caller."""
    logger.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    return problem_response(_internal())


async def _on_disconnect(request: Request, _: ClientDisconnect) -> None:
    logger.info("%s %s: the caller left", request.method, request.scope["path"])


def _internal() -> Problem:
    return problems.Internal("the server failed to answer; its log says why")


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    """Answers requests that the framework refuses: unknown paths and methods."""
    headers = dict(error.headers or {})
    problem: Problem
    match error.status_code:
        case 404:
            page = abbreviate(request.scope["path"])
            problem = problems.NotFound(f"no page {page}; /docs lists the API")
        case 405:
            headers["Allow"] = _methods_of(request)
            problem = problems.MethodNotAllowed(f"expected {headers['Allow']}, got {request.method}")
        case _:
            problem = problems.MalformedBody(str(error.detail))
    return problem_response(problem, headers)


def _methods_of(request: Request) -> str:
    """The methods of all routes of the path; Starlette names only those of the first."""
    routes = [context.original_route for context in iter_route_contexts(request.app.routes)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in matching for method in getattr(route, "methods", None) or ()}))


async def _on_invalid_parameters(_: Request, error: RequestValidationError) -> Response:
    """Answers requests with invalid parameters in the path or the URL; `api.http.body` checks bodies."""
    return problem_response(invalid_fields([field_error(each, str(each["loc"][-1])) for each in error.errors()]))


PROBLEM_HANDLERS: Final[dict[Any, Any]] = {
    Problem: _on_problem,
    HTTPException: _on_http_exception,
    RequestValidationError: _on_invalid_parameters,
    ClientDisconnect: _on_disconnect,
    Exception: _on_defect,
}
"""How an app answers exceptions, by their types."""


def field_error(detail: Mapping[str, Any], field: str, known: Iterable[str] = ()) -> dict[str, str]:
    """One of a ValidationError's errors, as in a problem document. `known` are the valid fields."""
    value = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return {"field": field, "expected": f"only {', '.join(sorted(known))}", "got": "an unknown field"}
        case "missing":
            got = "nothing"
        case "too_long":
            got = f"{detail['ctx']['actual_length']:,}"
        case "string_too_long":
            got = str(len(value))
        case "value_error" if isinstance(value, dict):  # only the names: values may be long, and are not at fault
            got = abbreviate([name for name, member in value.items() if member is not None])[1:-1] or "nothing"
        case _:
            got = abbreviate(value)
    if (template := _EXPECTED.get(detail["type"])) is not None:
        expected = template.format(**detail.get("ctx", {}))
    else:
        expected = detail["msg"].removeprefix("Input should be ")
    return {"field": field, "expected": expected, "got": got}


def wrong_document(got: str) -> Problem:
    return invalid_fields([{"field": "body", "expected": "a document as the API describes it", "got": got}])
