"""Whatever a request's headers contain, the answer is never a server error, and every error is a problem document."""

from typing import Any, Final

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from api.access.keys import KeyRing, KeyScope, add_key
from api.http.app import create_app
from api.http.problem_responses import MEDIA_TYPE
from api.settings import Access
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, fake_service, followed_service, make_collection
from tests.support.fake_embedder import FakeEmbedder

# Headers that this server reads, or a library for it.
READ: Final = (
    *("Host", "Origin", "Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "Authorization", "X-API-Key"),
    *("X-Request-ID", "API-Version", "Content-Type", "Content-Length", "Content-Encoding", "Accept", "If-None-Match"),
    *("Access-Control-Request-Method", "Access-Control-Request-Headers", "Cookie"),
)
OTHERS: Final = (
    *("User-Agent", "Referer", "Connection", "Transfer-Encoding", "Expect", "Upgrade", "Range", "If-Range"),
    *("Accept-Encoding", "Accept-Language", "If-Modified-Since", "X-Forwarded-Host", "X-Forwarded-Prefix"),
)
RUBBISH: Final = (
    *(b"", b" ", b"a:b", b"::", b"::1%", b"1.2.3.4:5", b"[", b"[::1", b"]", b"[::1]]:80", b"::ffff:1.2.3.4", b"%"),
    *(b"@", b"evil.test:80@127.0.0.1", b"//", b"http://[", b"a b", b",", b";", b"=", b'"', b"*", b"*/*;q=x"),
    *(b"\xff\xfe", b"\x00", b"\xc3\xa9", b"9" * 5_000, b"-1", b"1e9", b"\xb2", b"Bearer", b"Bearer \xff"),
    *(b"multipart/form-data", b"multipart/form-data; boundary=", b'multipart/form-data; boundary="', b"text/html;;"),
    *(b"multipart/form-data; boundary=\xff\xfe", b"application/json; charset=nothing", b"gzip", b"W/"),
    *(b"application/openmetrics-text; version=x.y", b"application/openmetrics-text; version=1.0.0; escaping=z"),
    *(b"text/plain; version=x", b"text/plain; version=1.0.0; escaping=z"),
)
FORM: Final = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n%b\r\n--x--\r\n'
REQUESTS: Final[tuple[dict[str, Any], ...]] = (
    {"method": "GET", "url": "/picture?id=red.png"},
    {"method": "GET", "url": "/metrics"},
    {"method": "GET", "url": "/no-such-page"},
    {"method": "POST", "url": "/search", "json": {"text": "star", "k": 1}},
    {"method": "POST", "url": "/search", "content": FORM % PLAIN["red.png"]},
    {"method": "POST", "url": "/index/rollback"},
)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> list[TestClient]:
    """The app as uvicorn runs it behind a local proxy: open to all, only for this machine, and with keys."""
    location = tmp_path_factory.mktemp("hostile")
    make_collection(location / "c", PLAIN, FakeEmbedder())
    service = followed_service(location / "c", pictures={f"memory:{name}": data for name, data in PLAIN.items()})
    add_key(location / "keys.json", "reader", KeyScope.search)
    rate = 10**9
    return [
        client_of(create_app(service, access=access))
        for access in (
            Access(rate_limit_per_minute=rate, cors_origins=frozenset({"https://pictures.example"})),
            Access(rate_limit_per_minute=rate, cors_origins=frozenset({"*"}), loopback_names_only=True),
            Access(rate_limit_per_minute=rate, keys=KeyRing(location / "keys.json")),
        )
    ]


def client_of(app: ASGIApp) -> TestClient:
    return TestClient(
        ProxyHeadersMiddleware(app),  # type: ignore[arg-type]
        base_url="http://localhost:8000",
        client=("127.0.0.1", 50_000),
        raise_server_exceptions=False,
    )


def assert_answered(client: TestClient, request: dict[str, Any], headers: dict[bytes, bytes]) -> None:
    if "content" in request:
        headers = {b"Content-Type": b"multipart/form-data; boundary=x", **headers}
    response = client.request(**request, headers=headers)
    context = (response.status_code, response.headers.get("content-type"), request["url"], headers)
    assert response.status_code < 500, context
    if response.status_code >= 400 and "access-control-request-method" not in response.request.headers:
        assert response.headers["content-type"] == MEDIA_TYPE, context
        assert response.headers["api-version"] == "1", context


@given(
    headers=st.dictionaries(
        st.sampled_from([name.encode() for name in (*READ, *OTHERS)]),
        st.sampled_from(RUBBISH) | st.binary(max_size=40),
        min_size=1,
        max_size=4,
    ),
    request=st.sampled_from(REQUESTS),
    which=st.integers(0, 2),
)
def test_any_headers_get_a_proper_answer(
    clients: list[TestClient], headers: dict[bytes, bytes], request: dict[str, Any], which: int
) -> None:
    assert_answered(clients[which], request, headers)


@pytest.mark.parametrize("broken", ["PermissionMiddleware", "ConcurrencyLimit", "EveryRequestMiddleware"])
def test_a_defect_in_any_middleware_is_a_problem_document(
    monkeypatch: pytest.MonkeyPatch, clients: list[TestClient], searcher: Searcher, broken: str
) -> None:
    async def defect(self: object, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raise RuntimeError("secret")
        await self._app(scope, receive, send)  # type: ignore[attr-defined]

    app = create_app(fake_service(searcher))
    (middleware,) = [each.cls for each in app.user_middleware if each.cls.__name__ == broken]  # type: ignore[attr-defined]
    monkeypatch.setattr(middleware, "__call__", defect)
    response = client_of(app).get("/index")
    assert (response.status_code, response.headers["content-type"]) == (500, MEDIA_TYPE)
    assert response.json()["type"] == "urn:likeness:problem:internal"
    assert "secret" not in response.text
