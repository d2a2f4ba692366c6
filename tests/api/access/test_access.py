"""Who may ask, and how often."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from api.access.keys import KeyRing, KeyScope, add_key
from api.errors import KeysError, ListenError
from api.http.app import create_app
from api.http.middleware.auth import RateLimit
from api.local import running
from api.search.service import SearchService
from api.settings import Access, ServeSettings
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import PLAIN, followed_service, make_collection
from tests.support.servers.guarded_app import guarded, local, on_this_machine, told

SEARCH, ADMIN, NONE = "search", "admin", None


@dataclass(frozen=True)
class Keys:
    path: Path
    search: str
    admin: str

    @property
    def ring(self) -> KeyRing:
        return KeyRing(self.path)

    def headers(self, which: str | None) -> dict[str, str]:
        return {} if which is None else {"Authorization": f"Bearer {getattr(self, which)}"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    search, admin = add_key(path, "reader", KeyScope.search), add_key(path, "boss", KeyScope.admin)
    return Keys(path, search, admin)


# Keys


@pytest.mark.parametrize(
    ("method", "path", "needs"),
    [
        ("GET", "/", NONE),
        ("GET", "/healthz", NONE),
        ("GET", "/readyz", NONE),
        ("GET", "/web/main.js", NONE),
        ("GET", "/docs", NONE),
        ("GET", "/openapi.json", NONE),
        ("GET", "/metrics", SEARCH),
        ("GET", "/picture", SEARCH),
        ("GET", "/index", SEARCH),
        ("POST", "/search", SEARCH),
        ("POST", "/embed", SEARCH),
        ("POST", "/index/promote", ADMIN),
        ("POST", "/index/rollback", ADMIN),
    ],
)
def test_what_takes_which_key(keys: Keys, method: str, path: str, needs: str | None) -> None:
    client = local(Access(keys=keys.ring))
    allowed = {NONE: 1, SEARCH: 2, ADMIN: 3}[needs]
    for rank, which in ((1, None), (2, "search"), (3, "admin")):
        response = client.request(method, path, headers=keys.headers(which))
        if rank >= allowed:
            assert response.status_code == 200
        else:
            assert told(response) == ((401, "unauthorized") if which is None else (403, "forbidden"))


@pytest.mark.parametrize(
    "path", ["/nothing", "/images", "/index/none", "//index/promote", "/search/", "/webx", "/docs/x"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_what_is_not_there_takes_a_key_too(keys: Keys, method: str, path: str) -> None:
    assert local(Access(keys=keys.ring)).request(method, path, follow_redirects=False).status_code == 401


def test_how_a_key_is_given(keys: Keys) -> None:
    client = local(Access(keys=keys.ring))
    good: list[dict[str, str]] = [
        {"X-API-Key": keys.search},
        {"Authorization": f"bearer {keys.search}"},
        {"Authorization": f"BEARER  {keys.search}"},
        {"Authorization": "Basic dXNlcjpwYXNz", "X-API-Key": keys.search},
    ]
    bad: list[Mapping[Any, Any]] = [
        {"Authorization": keys.search},
        {"Authorization": f"Basic {keys.search}"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong", "X-API-Key": keys.search},
        {"X-API-Key": ""},
        {b"X-API-Key": b"\xff\xfe"},
        {"Cookie": f"key={keys.search}"},
    ]
    assert [client.post("/search", headers=headers).status_code for headers in good] == [200] * 4
    for headers in bad:
        response = client.post("/search", headers=dict(headers))
        assert told(response) == (401, "unauthorized")
        assert response.headers["www-authenticate"] == 'Bearer realm="likeness"'
        assert keys.search not in response.text
    assert client.post(f"/search?key={keys.search}&api_key={keys.search}").status_code == 401


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.8.8.8", {"Host": "127.0.0.1"}, 200),
        ("::1", {"Host": "[::1]:8000"}, 200),
        ("127.0.0.1", {"Origin": "http://localhost:8000"}, 200),
        ("192.168.1.5", {}, 403),
        ("::ffff:10.0.0.1", {}, 403),
        ("::ffff:127.0.0.1", {}, 200),
        ("::ffff:127.0.0.1", {"Host": "[::ffff:127.0.0.1]"}, 200),
        ("127.0.0.1", {"Host": "evil.test:80@127.0.0.1", "Origin": "http://evil.test:80@127.0.0.1"}, 403),
        ("2001:db8::1", {}, 403),
        ("testclient", {}, 403),
        ("127.0.0.1", {"Origin": "https://evil.example"}, 403),
        ("127.0.0.1", {"Origin": "http://localhost:9000"}, 403),
        ("127.0.0.1", {"Origin": "null"}, 403),
        ("127.0.0.1", {"Host": "rebound.example:8000", "Origin": "http://rebound.example:8000"}, 403),
        ("127.0.0.1", {"Host": "rebound.example"}, 403),
        ("127.0.0.1", {"Host": "[bad"}, 403),
        ("127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, 403),
        ("127.0.0.1", {"Forwarded": "for=127.0.0.1"}, 403),
    ],
)
def test_mend_17_without_keys_admin_is_for_this_machine(address: str, headers: dict[str, str], status: int) -> None:
    client = TestClient(guarded(Access()), base_url="http://localhost:8000", client=(address, 1))
    response = client.post("/index/promote", headers=headers)
    assert response.status_code == status
    if status == 403:
        assert told(response) == (403, "forbidden")
    assert client.post("/search", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("rebound.example", 403),
        ("[bad", 403),
        ("", 403),
        ("LOCALHOST:8000", 200),
        ("[::ffff:127.0.0.1]:8000", 200),
        pytest.param("evil.test:80@127.0.0.1", 403, id="user"),
        ("127.0.0.1/evil.test", 403),
        ("127.0.0.1:80:80", 403),
        ("127.0.0.1#evil.test", 403),
        ("[::1]evil.test", 403),
        ("evil.test\\@127.0.0.1", 403),
    ],
)
def test_mend_17_another_sites_name_does_not_lead_to_a_server_of_this_machine_alone(host: str, status: int) -> None:
    client = local(Access(loopback_names_only=True))
    response = client.post("/search", headers={"Host": host})
    assert response.status_code == status
    if status == 403:
        assert told(response) == (403, "forbidden")
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "::ffff:127.0.0.1"])
def test_mend_17_a_loopback_address_needs_no_keys(host: str) -> None:
    assert ServeSettings(collection="c", host=host).listen_address() == (host, 8000)


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "::ffff:10.0.0.1", "::ffff:0.0.0.0", "10.0.0.1", "evil@127.0.0.1"])
def test_mend_17_any_other_address_needs_keys(host: str) -> None:
    with pytest.raises(ListenError, match="expected a loopback host"):
        ServeSettings(collection="c", host=host).listen_address()


def test_only_a_server_of_this_machine_without_keys_minds_the_name(keys: Keys) -> None:
    def minds(**settings: Any) -> bool:
        return ServeSettings(collection="c", **settings).access().loopback_names_only

    assert minds()
    assert not minds(allow_remote=True)
    assert not minds(keys_file=str(keys.path))
    assert not minds(host="0.0.0.0", allow_remote=True)


# Rates


def test_a_bucket_fills_evenly_and_no_further() -> None:
    now = 0.0
    rate = RateLimit(60, clock=lambda: now)
    assert [rate.wait_s("a") for _ in range(61)] == [0.0] * 60 + [1.0]
    assert rate.wait_s("b") == 0.0
    now = 0.25
    assert rate.wait_s("a") == pytest.approx(0.75)
    now = 2.0
    assert [rate.wait_s("a") for _ in range(3)] == [0.0, 0.0, 1.0]
    now = 1e6
    assert [rate.wait_s("a") for _ in range(61)] == [0.0] * 60 + [1.0]


def test_what_costs_more_than_there_is_leaves_a_debt() -> None:
    now = 0.0
    rate = RateLimit(60, clock=lambda: now)
    rate.charge("a", 90)
    assert rate.wait_s("a") == pytest.approx(31.0)
    now = 30.5
    assert rate.wait_s("a", 0.1) == 0.0
    assert rate.wait_s("a", 1.0) == pytest.approx(0.6)


def test_each_key_has_its_own_rate(keys: Keys) -> None:
    client = local(Access(keys=keys.ring, rate_limit_per_minute=3))
    statuses = [client.post("/search", headers=keys.headers("search")).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    refused = client.post("/search", headers=keys.headers("search"))
    assert told(refused) == (429, "rate-limited")
    assert refused.headers["retry-after"] == "20"
    assert refused.json()["retry_after_s"] == 20
    assert client.post("/search", headers=keys.headers("admin")).status_code == 200
    assert client.get("/healthz").status_code == 200
    assert client.post("/search").status_code == 401


def test_reading_costs_little() -> None:
    client = local(Access(rate_limit_per_minute=1))
    assert [client.get("/picture").status_code for _ in range(11)] == [200] * 10 + [429]


@pytest.mark.parametrize(("host", "at"), [("127.0.0.1", "127.0.0.1"), ("::", "127.0.0.1"), ("::", "[::1]")])
def test_mend_17_a_proxys_callers_have_rates_of_their_own(host: str, at: str) -> None:
    with running(guarded(Access(rate_limit_per_minute=1)), host=host) as url, httpx.Client() as client:
        address = f"http://{at}:{url.rpartition(':')[2]}/search"

        def ask(caller: str) -> int:
            return client.post(address, headers={"X-Forwarded-For": caller}).status_code

        assert [ask(caller) for caller in ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1")] == [200, 200, 429]


def test_mend_18_what_machines_ask_for_every_few_seconds_is_not_counted(keys: Keys) -> None:
    for access in (Access(rate_limit_per_minute=1), Access(rate_limit_per_minute=1, keys=keys.ring)):
        client = local(access, headers=keys.headers("search"))
        for path in ("/metrics", "/healthz", "/readyz"):
            assert [client.get(path).status_code for _ in range(30)] == [200] * 30
        assert [client.post("/search").status_code for _ in range(2)] == [200, 429]
        assert client.get("/metrics").status_code == 200
    assert told(local(Access(keys=keys.ring)).get("/metrics")) == (401, "unauthorized")


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("a:b", "c:d", True),
    ],
)
def test_mend_17_without_keys_an_address_has_a_rate(first: str, second: str, shared: bool) -> None:
    app = guarded(Access(rate_limit_per_minute=1))
    assert TestClient(app, client=(first, 1)).post("/search").status_code == 200
    assert TestClient(app, client=(second, 2)).post("/search").status_code == (429 if shared else 200)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> SearchService:
    location = tmp_path_factory.mktemp("guarded") / "collection"
    make_collection(location, PLAIN, FakeEmbedder())
    return followed_service(location)


def test_no_route_is_left_open_by_mistake(service: SearchService, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    search = {"X-API-Key": add_key(path, "reader", KeyScope.search)}
    app = create_app(service, access=Access(keys=KeyRing(path)))
    client = on_this_machine(app)
    refused: dict[str, set[str]] = {"nothing": set(), "admin": set()}
    for route, operations in app.openapi()["paths"].items():
        for method in operations:
            address = f"{route}?id=red.png"
            if client.request(method, address).status_code != 401:
                refused["nothing"].add(f"{method} {route}")
            if client.request(method, address, headers=search).status_code == 403:
                refused["admin"].add(f"{method} {route}")
    assert refused["nothing"] <= {"get /", "get /healthz", "get /readyz"}
    assert refused["admin"] == {"post /index/promote", "post /index/rollback"}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/search/batch", {"searches": [{"text": "star", "k": 1}] * 10}), ("/embed", {"texts": ["star"] * 10})],
)
def test_a_batch_costs_what_is_in_it(service: SearchService, path: str, body: object) -> None:
    client = on_this_machine(create_app(service, access=Access(rate_limit_per_minute=15)))
    assert client.post(path, json=body).status_code == 200
    assert [client.post("/search", json={"text": "star"}).status_code for _ in range(6)] == [200] * 5 + [429]
    refused = client.post(path, json=body)
    assert told(refused) == (429, "rate-limited")
    assert refused.headers["retry-after"] == "4"


def test_the_apps_document_says_how_a_key_is_given(service: SearchService, tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", "reader", KeyScope.search)
    document = create_app(service, access=Access(keys=KeyRing(tmp_path / "keys.json"))).openapi()
    assert document["components"]["securitySchemes"].keys() == {"bearer", "header"}
    assert "securitySchemes" not in create_app(service).openapi()["components"]
    assert "security" not in document["paths"]["/healthz"]["get"]
    assert document["paths"]["/search"]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert {"401", "403", "413", "429", "503"} <= document["paths"]["/search"]["post"]["responses"].keys()
    assert "ProblemOut" in document["components"]["schemas"]


@pytest.mark.parametrize(("asked", "status"), [({}, 401), ({"API-Version": "2"}, 400), ({"X-Request-ID": "mine"}, 401)])
def test_refusals_have_every_header_too(
    service: SearchService, tmp_path: Path, asked: dict[str, str], status: int
) -> None:
    add_key(tmp_path / "keys.json", "reader", KeyScope.search)
    refused = on_this_machine(create_app(service, access=Access(keys=KeyRing(tmp_path / "keys.json")))).get(
        "/index", headers=asked
    )
    assert refused.status_code == status
    assert refused.headers["api-version"] == "1"
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert refused.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert refused.headers["x-request-id"] == asked.get("X-Request-ID", refused.headers["x-request-id"])


def keyed(tmp_path: Path, **more: Any) -> ServeSettings:
    add_key(tmp_path / "keys.json", "alice", KeyScope.search)
    return ServeSettings(collection="c", keys_file=str(tmp_path / "keys.json"), **more)


def test_keys_are_leave_to_listen_anywhere(tmp_path: Path) -> None:
    assert keyed(tmp_path, host="0.0.0.0").listen_address() == ("0.0.0.0", 8000)
    with pytest.raises(ListenError, match="LIKENESS_KEYS_FILE"):
        ServeSettings(collection="c", host="0.0.0.0").listen_address()
    with pytest.raises(KeysError, match="no key file"):
        ServeSettings(collection="c", keys_file=str(tmp_path / "none.json")).access()


def test_rates_are_limited_where_strangers_may_come(tmp_path: Path) -> None:
    def limit(**settings: Any) -> int:
        return ServeSettings(collection="c", **settings).access().rate_limit_per_minute

    assert limit() == 0
    assert limit(host="0.0.0.0", allow_remote=True) == 600
    assert limit(allow_remote=True) == 600
    assert limit(rate_limit_per_minute=30) == 30
    assert keyed(tmp_path).access().rate_limit_per_minute == 600
    assert limit(keys_file=str(tmp_path / "keys.json"), rate_limit_per_minute=0) == 0


def test_access_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(tmp_path / "keys.json", "alice", KeyScope.search)
    monkeypatch.setenv("LIKENESS_KEYS_FILE", str(tmp_path / "keys.json"))
    monkeypatch.setenv("LIKENESS_RATE_LIMIT_PER_MINUTE", "120")
    monkeypatch.setenv("LIKENESS_MAX_ONGOING_REQUESTS", "7")
    monkeypatch.setenv("LIKENESS_CORS_ORIGINS", "https://a.example, https://b.example")
    access = ServeSettings(collection="c").access()
    assert access.keys is not None
    assert (access.rate_limit_per_minute, access.max_ongoing_requests) == (120, 7)
    assert access.cors_origins == {"https://a.example", "https://b.example"}


@pytest.mark.parametrize(
    ("given", "searches", "requests"),
    [
        ({}, 128, 224),
        ({"replicas": 4}, 16, 112),
        ({"replicas": "1:4", "num_cpus": 2.5}, 32, 128),
        ({"embedders": 4}, 128, 224),
        ({"max_searches": 5, "max_url_fetches": 7}, 5, 76),
        ({"max_ongoing_requests": 9}, 128, 9),
    ],
)
def test_each_replica_lets_in_what_its_cores_can_do_and_other_requests_besides(
    given: dict[str, Any], searches: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several may be on one machine: each has the cores that are reserved for it."""
    monkeypatch.setattr("api.settings.os.cpu_count", lambda: 8)
    settings = ServeSettings(collection="c", **given)
    assert settings.limits().max_searches == searches
    assert settings.access().max_ongoing_requests == requests
