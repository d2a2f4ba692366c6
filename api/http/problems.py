"""Turns every error into an RFC 9457 problem document, and describes them in the OpenAPI document."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import PROBLEMS, Problem, abbreviate, invalid_fields
from api.http.field_errors import field_error
from api.http.responses import Failed, ProblemOut
from api.observe.request_record import notes

logger = logging.getLogger(__name__)

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
        _document(problem.kind.slug, {"detail": problem.detail, **problem.extensions}),
        status_code=problem.kind.status,
        headers=more,
        media_type=MEDIA_TYPE,
    )


def install_problems(app: FastAPI) -> None:
    """Let `app` answer every error with a problem document."""

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
    install_catch_all(app)


def install_catch_all(app: FastAPI) -> None:
    """Let `app` answer any other exception, of the routes and the middleware that it has by now, with a problem."""
    app.add_middleware(_CatchAll)


def failed(error: Exception) -> Failed:
    """The problem document of one failed item of a batch; unexpected errors are logged."""
    if isinstance(error, Problem):
        problem = error
    else:
        logger.error("one of many failed", exc_info=error)
        problem = _unforeseen()
    notes().problems.append(problem.kind.slug)
    return Failed(problem=_document(problem.kind.slug, {"detail": problem.detail, **problem.extensions}))


def problem_docs(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that may answer with these problems, with an example of each."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for kind in (PROBLEMS[slug] for slug in slugs):
        entry = by_status.setdefault(
            kind.status, {"description": kind.title, "content": {MEDIA_TYPE: {"examples": {}}}}
        )
        entry["content"][MEDIA_TYPE]["schema"] = {"$ref": f"#/components/schemas/{ProblemOut.__name__}"}
        example = _document(kind.slug, _EXAMPLES.get(kind.slug, {"detail": kind.when}))
        entry["content"][MEDIA_TYPE]["examples"][kind.slug] = {"summary": kind.title, "value": example}
        if kind.title not in entry["description"]:
            entry["description"] += f"; {kind.title[0].lower()}{kind.title[1:]}"
    return by_status


def problem_table() -> str:
    """All problem types as a Markdown table."""
    rows = (f"| `{kind.type}` | {kind.status} | {kind.when} |" for kind in PROBLEMS.values())
    return "\n".join(["| type | status | when |", "|---|---|---|", *rows])


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
    return problem_response(_unforeseen())


def _on_invalid_parameters(_: Request, error: RequestValidationError) -> Response:
    """Answers invalid parameters of the path and the query; bodies are checked in `api.http.body`."""
    errors = [field_error(detail, str(detail["loc"][-1])) for detail in error.errors()]
    return problem_response(invalid_fields(errors))


class _CatchAll:
    """Answers uncaught exceptions with 500 and logs them, without details for the caller."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            logger.info("%s %s: the caller left", scope["method"], scope["path"])
        except Exception:
            if started:
                raise
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await problem_response(_unforeseen())(scope, receive, send)


def _unforeseen() -> Problem:
    return Problem("internal", "the server failed to answer; its log says why")
