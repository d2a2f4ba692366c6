"""The version of the HTTP interface: sent with every answer; requests for another version are refused."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Problem, abbreviate
from api.http.problems import problem_docs, problem_response

HEADER: Final = "API-Version"
VERSION: Final = "1"


def install_api_version(app: FastAPI) -> None:
    """Make `app` send `API-Version: 1` with every answer, and refuse requests for another version.

    Added late, so that it goes outside the middleware that refuses requests.
    """
    app.add_middleware(_ApiVersion)
    _describe(app)


class _ApiVersion:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = VERSION
            await send(message)

        asked = Headers(scope=scope).get(HEADER, VERSION) if scope["type"] == "http" else VERSION
        if asked.strip() == VERSION:
            await self._app(scope, receive, sending)
            return
        problem = Problem("unknown-api-version", f"expected {HEADER}: {VERSION}, got {abbreviate(asked)}")
        await problem_response(problem)(scope, receive, sending)


def _describe(app: FastAPI) -> None:
    """Describe in the OpenAPI document that every route takes the header and every answer has it."""
    generate: Callable[[], dict[str, Any]] = app.openapi
    schema = {"type": "string", "enum": [VERSION]}
    asked = {"name": HEADER, "in": "header", "schema": schema, "description": "the version that you were written for"}
    answered = {HEADER: {"schema": schema, "description": "the version that answers", "required": True}}

    def openapi() -> dict[str, Any]:
        document = generate()
        for operation in (operation for path in document["paths"].values() for operation in path.values()):
            parameters = operation.setdefault("parameters", [])
            if asked not in parameters:  # FastAPI keeps its document
                parameters.append(asked)
            for status, response in problem_docs("unknown-api-version").items():
                operation["responses"].setdefault(str(status), response)
            success = operation["responses"]["200"]
            success["headers"] = success.get("headers", {}) | answered
        return document

    app.openapi = openapi  # type: ignore[method-assign]
