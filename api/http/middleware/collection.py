"""Which collection a request is for: the one of the prefix `/collections/NAME/`, else the first."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.middleware.admission import route_path

COLLECTION: Final = "likeness.collection"
NAMED: Final = "likeness.collection_named"
"""In the scope: the collection, and whether the path names it."""
_PREFIX: Final = "/collections/"


class CollectionMiddleware:
    """Puts the name into the scope, and the prefix into `root_path`, as if the app were mounted there. It goes outside
    everything else, so that nothing but the name tells such a request from one without a prefix.
    """

    def __init__(self, app: ASGIApp, first: str) -> None:
        self._app = app
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[COLLECTION], scope[NAMED] = self._first, False
            path = route_path(scope)
            if path.startswith(_PREFIX):
                name, slash, _ = path.removeprefix(_PREFIX).partition("/")
                if name and slash:
                    scope[COLLECTION], scope[NAMED] = name, True
                    scope["root_path"] = f"{scope.get('root_path', '')}{_PREFIX}{name}"
        await self._app(scope, receive, send)
