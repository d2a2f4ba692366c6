"""Headers of every answer: the API's version, and what browsers must not do. HEAD is answered as GET without a body."""

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Problem, abbreviate
from api.http.problems import problem_response

API_VERSION: Final = "API-Version"
VERSION: Final = "1"

# Unless an answer has its own.
_FOR_BROWSERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Answers are data, not pages; the web pages have a policy of their own.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class HeadersMiddleware:
    """Adds the headers, and refuses requests for another version of the interface.

    It goes outside the middleware that refuses requests, because refusals need the headers too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[API_VERSION] = VERSION
                for name, value in _FOR_BROWSERS.items():
                    headers.setdefault(name, value)
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        version = Headers(scope=scope).get(API_VERSION, VERSION)
        if version.strip() != VERSION:
            problem = Problem("unknown-api-version", f"expected {API_VERSION}: {VERSION}, got {abbreviate(version)}")
            await problem_response(problem)(scope, receive, sending)
        else:
            await self._app({**scope, "method": "GET"} if is_head else scope, receive, sending)
