"""Turns errors into RFC 9457 problem documents, and describes them in the OpenAPI document."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.documents import Failed
from api.errors import PROBLEMS, Problem, abbreviate, invalid_fields
from api.http.field_errors import field_error
from api.observe.request_record import notes

logger = logging.getLogger(__name__)


class FieldError(BaseModel):
    field: str
    expected: str
    got: str


class ProblemOut(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="stable; tell errors apart by it")
    title: str
    status: int
    detail: str
    field: str | None = Field(default=None, description='where the rejected picture stood: "image", "queries.2.url"')
    reason: str | None = Field(default=None, description="why a picture was rejected")
    stage: str | None = Field(default=None, description='"fetch" or "decode"')
    retryable: bool | None = Field(default=None, description="whether the same request may work later")
    errors: list[FieldError] | None = None
    retry_after_s: float | None = Field(default=None, description="as the header Retry-After")


MEDIA_TYPE: Final = "application/problem+json"

_EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "forbidden-address": {
        "detail": "http://intranet/cat.jpg: the host is not on the public internet, nor one of the allowed hosts",
        "field": "url",
        "reason": "forbidden_address",
        "stage": "fetch",
        "retryable": False,
    },
    "unusable-image": {
        "detail": "expected a picture, but this looks like plain text",
        "field": "image",
        "reason": "not_an_image",
        "stage": "decode",
        "retryable": False,
    },
    "invalid-request": {
        "detail": "k: expected a whole number from 1 to 1000, got 0",
        "errors": [{"field": "k", "expected": "a whole number from 1 to 1000", "got": "0"}],
    },
}


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The document of `problem`, with its status and the headers that go with it."""
    notes().problems.append(problem.kind.slug)
    more = dict(headers or {})
    if problem.kind.status == 401:
        more["WWW-Authenticate"] = 'Bearer realm="likeness"'
    if "retry_after_s" in problem.extensions:
        more["Retry-After"] = str(math.ceil(problem.extensions["retry_after_s"]))
    return JSONResponse(
        _document_of(problem),
        status_code=problem.kind.status,
        headers=more,
        media_type=MEDIA_TYPE,
    )


def install_problems(app: FastAPI) -> None:

    def on_problem(_: Request, error: Problem) -> Response:
        return problem_response(error)

    handlers: dict[Any, Callable[[Request, Any], Response]] = {
        Problem: on_problem,
        HTTPException: _on_http_exception,
        RequestValidationError: _on_invalid_parameters,
        Exception: _on_defect,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def failed(error: BaseException) -> Failed:
    """The problem document of one failed item of a batch; unexpected errors are logged."""
    if isinstance(error, Problem):
        problem = error
    else:
        logger.error("one of many failed", exc_info=error)
        problem = unforeseen()
    notes().problems.append(problem.kind.slug)
    return Failed(problem=_document_of(problem))


def problem_docs(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that may answer with these problems, with an example of each."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for kind in (PROBLEMS[slug] for slug in slugs):
        entry = by_status.setdefault(
            kind.status, {"description": kind.title, "content": {MEDIA_TYPE: {"examples": {}}}}
        )
        entry["content"][MEDIA_TYPE]["schema"] = {"$ref": f"#/components/schemas/{ProblemOut.__name__}"}
        entry["content"][MEDIA_TYPE]["examples"][kind.slug] = {"summary": kind.title, "value": example_of(kind.slug)}
        if kind.title not in entry["description"]:
            entry["description"] += f"; {kind.title[0].lower()}{kind.title[1:]}"
    return by_status


def example_of(slug: str) -> dict[str, Any]:
    return _document(slug, _EXAMPLES.get(slug, {"detail": PROBLEMS[slug].when}))


def problem_table() -> str:
    """All problem types as a Markdown table."""
    rows = (f"| `{kind.type}` | {kind.status} | {kind.when} |" for kind in PROBLEMS.values())
    return "\n".join(["| type | status | when |", "|---|---|---|", *rows])


def _document_of(problem: Problem) -> dict[str, Any]:
    return _document(problem.kind.slug, {"detail": problem.detail, **problem.extensions})


def _document(slug: str, members: dict[str, Any]) -> dict[str, Any]:
    kind = PROBLEMS[slug]
    return {"type": kind.type, "title": kind.title, "status": kind.status, **members}


def _on_http_exception(request: Request, error: HTTPException) -> Response:
    """Answers requests that the framework itself refuses: unknown paths, methods, broken multipart."""
    headers = Headers(error.headers)
    match error.status_code:
        case 404:
            problem = Problem(
                "not-found", f"no page {abbreviate(request.scope['path'])}; see /docs for those there are"
            )
        case 405:
            problem = Problem("method-not-allowed", f"expected {headers.get('allow')}, got {request.method}")
        case 413:
            problem = Problem("too-large", str(error.detail))
        case _:
            problem = Problem("malformed-body", str(error.detail))
    return problem_response(problem, headers)


def _on_defect(_: Request, __: Exception) -> Response:
    """Answers where even the outermost middleware has failed. Starlette raises the exception again: that logs it."""
    return problem_response(unforeseen())


def _on_invalid_parameters(_: Request, error: RequestValidationError) -> Response:
    """Answers invalid parameters of the path and the query; bodies are checked in `api.http.body`."""
    errors = [field_error(detail, str(detail["loc"][-1])) for detail in error.errors()]
    return problem_response(invalid_fields(errors))


def unforeseen() -> Problem:
    """The problem of any other exception: callers get no details."""
    return Problem("internal", "the server failed to answer; its log says why")
