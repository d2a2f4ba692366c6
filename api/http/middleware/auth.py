"""Who may send requests, and how often."""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.access.caller_addresses import caller_at, is_loopback, named_host
from api.access.keys import KeyRing, KeyScope, StoredKey
from api.errors import Problem, abbreviate
from api.http.middleware.admission import PROBES, route_path
from api.http.middleware.every_request import COLLECTION, NAMED
from api.http.middleware.rate_limit import RateLimit
from api.http.problems import problem_response
from api.observe.log import notes
from api.settings import Access

OPEN: Final = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/docs", "/duplicates"})
"""Paths that need no key."""
# What is still below /collections/ without the prefix: redirects to pages.
_OPEN_FOLDERS: Final = ("/web/", "/collections/")
# What these answer depends on the key's collections.
_OF_SEVERAL: Final = frozenset({"/collections", "/search/collections"})

KEY: Final = "likeness.key"
"""In the scope: the StoredKey of the request, if the server requires keys."""


class AuthMiddleware:
    """Requires a key if keys are set, and limits each caller's rate."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._keys = access.keys
        self._loopback_names_only = access.loopback_names_only
        self._rate = RateLimit(access.rate_limit_per_minute) if access.rate_limit_per_minute else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope):
            try:
                self._check(scope)
            except Problem as problem:
                await problem_response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        if self._loopback_names_only and not is_loopback(_named_host(scope)):
            raise Problem(
                "forbidden",
                f"expected a Host that names this machine, such as localhost, got {abbreviate(_named_host(scope))}: "
                "without keys, another site's name may not lead here; start the server with --keys or --allow-remote",
            )
        caller = _stranger(scope) if self._keys is None else _holder(scope, self._keys)
        if self._rate is not None and route_path(scope) not in PROBES:
            self._rate.admit(scope, caller)


def require_collection(scope: Scope, name: str) -> None:
    """Raises Problem if the request has a key that is not good for the collection, whether that exists or not."""
    key: StoredKey | None = scope.get(KEY)
    if key is not None and key.collections is not None:
        if name not in key.collections:
            raise Problem("forbidden", f"the key {key.name!r} is for other collections than {abbreviate(name)}")
        if route_path(scope) == "/metrics":
            raise Problem("forbidden", f"the key {key.name!r} is for some collections, and metrics are of all")


def _stranger(scope: Scope) -> str:
    """The caller to whose rate a request without a key counts. Raises Problem for anything but searching."""
    if _is_admin(scope) and not _is_local(scope):
        raise Problem(
            "forbidden",
            "without keys, index versions are changed from this machine only, and not by other sites' pages; "
            "to allow it from elsewhere, start the server with a file of keys",
        )
    return caller_at(_host(scope))


def _holder(scope: Scope, keys: KeyRing) -> str:
    """The caller to whose rate a request with a key counts. Raises Problem for a missing, wrong or too narrow key."""
    given = _given_key(Headers(scope=scope))
    if given is None:
        raise Problem("unauthorized", "expected a key as `Authorization: Bearer KEY` or `X-API-Key: KEY`, got none")
    # Header values are bytes, which Starlette reads as latin-1.
    key = keys.find(given.encode("latin-1"))
    if key is None:
        raise Problem("unauthorized", "the key is not valid: mistyped, removed, or another server's")
    notes().key = key.name
    if _is_admin(scope) and key.scope is not KeyScope.admin:
        raise Problem("forbidden", f"expected a key of scope admin, got {key.name!r} of scope {key.scope}")
    scope[KEY] = key
    if route_path(scope) not in _OF_SEVERAL:
        require_collection(scope, scope[COLLECTION])
    return f"key {key.name}"


def _is_open(scope: Scope) -> bool:
    path = route_path(scope)
    if path == "/readyz":
        return not scope[NAMED]  # of a collection that is named, which this opens
    return path in OPEN or path.startswith(_OPEN_FOLDERS)


def _is_admin(scope: Scope) -> bool:
    return scope["method"] not in ("GET", "HEAD") and f"{route_path(scope)}/".startswith("/index/")


def _given_key(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def _is_local(scope: Scope) -> bool:
    """Whether a request is from this machine itself: not through a proxy on it, and not from another site's page in a
    browser on it, even under a name that resolves to this machine.
    """
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    own = headers.get("origin") in (None, f"http://{host}", f"https://{host}")
    proxied = "forwarded" in headers or "x-forwarded-for" in headers
    return is_loopback(_host(scope)) and is_loopback(_named_host(scope)) and own and not proxied


def _named_host(scope: Scope) -> str:
    """The name by which the caller addresses this server; empty when there is none."""
    return named_host(Headers(scope=scope).get("host", ""))


def _host(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown",))[0])
