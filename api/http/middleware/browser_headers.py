"""Security headers for browsers, in every answer."""

from typing import Final

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Answers are data, not pages; the web pages have a policy of their own.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


def install_browser_headers(app: FastAPI) -> None:
    """Add the headers to every answer of `app` without its own. Refusals need them too, so this goes outside those."""
    app.add_middleware(_BrowserHeaders)


class _BrowserHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sending)
