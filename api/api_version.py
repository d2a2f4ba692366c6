"""The version of the HTTP interface: said in every answer, and refused when a caller asks for another."""

from typing import Final

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Problem, shortened
from api.problems import problem_response

HEADER: Final = "API-Version"
VERSION: Final = "1"


def install_api_version(app: FastAPI) -> None:
    """Let `app` say `API-Version: 1` in every answer, and refuse requests that ask for another.

    Added late, so that it goes around what others refuse.
    """
    app.add_middleware(_ApiVersion)


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
        problem = Problem("unknown-api-version", f"expected {HEADER}: {VERSION}, got {shortened(asked)}")
        await problem_response(problem)(scope, receive, sending)
