"""Who may send which requests, and how often. `api/access/` says who a caller is: by an API key, or else an address."""

from collections.abc import Container
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.access.caller_addresses import caller_id, host_name, is_loopback
from api.access.keys import KeyRing, KeyScope, StoredKey
from api.http.middleware.admission import PROBE_PATHS, route_path
from api.http.middleware.every_request import COLLECTION, HAS_PREFIX
from api.http.middleware.rate_limit import RateLimit
from api.observe.log import current_record
from api.problems import Forbidden, abbreviate
from api.settings import Access

# Besides the pages, paths that need no key.
_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/openapi.json"})
# Once its prefix is stripped, a path still below /collections/ is a redirect to a collection's page.
_OPEN_PREFIXES: Final = ("/web/", "/collections/")
# Their answers depend on the key's collections.
_MULTI_COLLECTION_PATHS: Final = frozenset({"/collections", "/search/collections"})

KEY: Final = "likeness.key"
"""In the scope: the StoredKey of the request, if the server requires keys."""


class PermissionMiddleware:
    """Requires a key if keys are set, except for the paths of `pages`, and limits each caller's rate."""

    def __init__(self, app: ASGIApp, access: Access, pages: Container[str]) -> None:
        self._app = app
        self._pages = pages
        self._access = access
        self._rate = RateLimit(access.rate_limit_per_minute) if access.rate_limit_per_minute else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_open(scope):
            self._check(scope)
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = route_path(scope)
        if path == "/readyz":
            return not scope[HAS_PREFIX]  # with the prefix it opens the collection
        return path in self._pages or path in _OPEN_PATHS or path.startswith(_OPEN_PREFIXES)

    def _check(self, scope: Scope) -> None:
        if self._access.loopback_names_only and not is_loopback(host := _requested_host(scope)):
            raise Forbidden(
                f"expected a Host that names this machine, such as localhost, got {abbreviate(host)}: "
                "without keys, another site's name may not lead here; start the server with --keys or --allow-remote",
            )
        caller = _check_without_key(scope) if self._access.keys is None else _check_key(scope, self._access.keys)
        if self._rate is not None and route_path(scope) not in PROBE_PATHS:
            self._rate.admit(scope, caller)


def require_collection(scope: Scope, name: str) -> None:
    """Raises Problem if the request's key is not valid for the collection, whether or not the collection exists."""
    key: StoredKey | None = scope.get(KEY)
    if key is not None:
        if key.collections is not None and route_path(scope) == "/metrics":
            raise Forbidden(f"the key {key.name!r} is for some collections only, but metrics cover all")
        if not key.allows(name):
            raise Forbidden(f"the key {key.name!r} is not for the collection {abbreviate(name)}")


def _check_without_key(scope: Scope) -> str:
    """The caller whose rate a request without a key counts against. Raises Problem for a remote admin request."""
    if _is_admin(scope) and not _is_local(scope):
        raise Forbidden(
            "without keys, index versions can be changed only from this machine, and not by other sites' pages; "
            "to allow it from elsewhere, start the server with --keys",
        )
    return caller_id(_client_address(scope))


def _check_key(scope: Scope, keys: KeyRing) -> str:
    """The caller whose rate a request counts against. Raises Problem for a missing, invalid or insufficient key."""
    key = keys.authenticate(Headers(scope=scope))
    current_record().key = key.name
    if _is_admin(scope) and key.scope is not KeyScope.admin:
        raise Forbidden(f"expected a key of scope admin, got {key.name!r} of scope {key.scope}")
    scope[KEY] = key
    if route_path(scope) not in _MULTI_COLLECTION_PATHS:
        require_collection(scope, scope[COLLECTION])
    return f"key {key.name}"


def _is_admin(scope: Scope) -> bool:
    return scope["method"] not in ("GET", "HEAD") and f"{route_path(scope)}/".startswith("/index/")


def _is_local(scope: Scope) -> bool:
    """Whether a request is from this machine itself: not through a proxy on it, and not from a page of another site in
    a browser on it, even if that site's name resolves to this machine.
    """
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    is_own_page = headers.get("origin") in (None, f"http://{host}", f"https://{host}")
    is_proxied = "forwarded" in headers or "x-forwarded-for" in headers
    from_here = is_loopback(_client_address(scope)) and is_loopback(_requested_host(scope))
    return from_here and is_own_page and not is_proxied


def _requested_host(scope: Scope) -> str:
    """The host that the request names; empty if there is none."""
    return host_name(Headers(scope=scope).get("host", ""))


def _client_address(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown",))[0])
