"""HEAD for every route that answers GET, as HTTP requires: the same headers without the body."""

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def install_head(app: FastAPI) -> None:
    """Let `app` answer HEAD. Added first, next to the routes: middleware outside it still sees the original method."""
    app.add_middleware(_Head)


class _Head:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, sending)
