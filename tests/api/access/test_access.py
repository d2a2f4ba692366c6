"""Who may send requests, and how often; and headers for browsers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.access.keys import KeyRing, KeyScope, add_key
from api.errors import ListenError
from api.http.app import create_app
from api.http.middleware.rate_limit import RateLimit
from api.local import running
from api.search.service import SearchService
from api.settings import Access, ServeSettings
from tests.support.collections.small_collection import PLAIN, followed_service
from tests.support.servers.clients import on_this_machine, refusal, search_star


@dataclass(frozen=True)
class Keys:
    path: Path
    search: str
    admin: str

    @property
    def ring(self) -> KeyRing:
        return KeyRing(self.path)

    def headers(self, which: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {getattr(self, which)}"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    search, admin = add_key(path, "reader", KeyScope.search), add_key(path, "boss", KeyScope.admin)
    return Keys(path, search, admin)


@pytest.fixture(scope="module")
def service(plain: Path) -> SearchService:
    """A warmed-up service that has its pictures."""
    service = followed_service(plain, pictures={f"memory:{name}": data for name, data in PLAIN.items()})
    service.live.warm_up()
    return service


@pytest.fixture(scope="module")
def app(service: SearchService) -> FastAPI:
    """Without keys and limits."""
    return create_app(service)


@pytest.fixture(scope="module")
def locked(service: SearchService, keys: Keys) -> FastAPI:
    return create_app(service, access=Access(keys=keys.ring, cors_origins=frozenset({"https://ours.example"})))


@pytest.fixture(scope="module")
def keyed(locked: FastAPI) -> TestClient:
    return on_this_machine(locked)


# Keys


def test_which_routes_need_which_key(locked: FastAPI, keyed: TestClient, keys: Keys) -> None:
    """No route is left open by mistake."""
    documents = locked.openapi()["paths"]
    open_routes = {"get /", "get /healthz", "get /readyz", "get /docs", "get /openapi.json", "get /web/main.js"}
    admin_routes = {"post /index/promote", "post /index/rollback"}
    routes = {f"{method} {path}" for path, operations in documents.items() for method in operations}
    assert {"get /metrics", "get /picture", "get /index", "post /search", "post /embed"} | admin_routes < routes
    for route in routes | open_routes:
        method, path = route.split()
        documented = documents.get(path, {}).get(method, {}).get("parameters", [])
        address = f"{path}?id=red.png" if "id" in [each["name"] for each in documented] else path
        nobody = keyed.request(method, address)
        reader, boss = (keyed.request(method, address, headers=keys.headers(who)) for who in ("search", "admin"))
        assert route in open_routes or refusal(nobody) == (401, "unauthorized")
        assert route not in admin_routes or refusal(reader) == (403, "forbidden")
        admitted = [boss] + [nobody] * (route in open_routes) + [reader] * (route not in admin_routes)
        # A POST lacks its body, or there is no older version.
        assert {response.status_code for response in admitted} <= ({200} if method == "get" else {409, 415}), route


def test_unknown_paths_need_a_key_too(keyed: TestClient) -> None:
    paths = ("/nothing", "/images", "/index/none", "//index/promote", "/search/", "/webx", "/docs/x")
    for path, method in product(paths, ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD")):
        assert keyed.request(method, path, follow_redirects=False).status_code == 401, (method, path)


def test_accepted_and_refused_ways_to_send_a_key(keyed: TestClient, keys: Keys) -> None:
    by_name = {"X-API-Key": keys.search}
    good: list[dict[str, str]] = [by_name, {"Authorization": "Basic dXNlcjpwYXNz", **by_name}]
    good += [{"Authorization": f"{scheme} {keys.search}"} for scheme in ("bearer", "BEARER ")]
    bad: list[Mapping[Any, Any]] = [{"X-API-Key": ""}, {b"X-API-Key": b"\xff\xfe"}, {"Cookie": f"key={keys.search}"}]
    bad += [{"Authorization": value} for value in (keys.search, f"Basic {keys.search}", "Bearer")]
    bad += [{"Authorization": "Bearer wrong", **by_name}]
    assert [search_star(keyed, headers=headers).status_code for headers in good] == [200] * 4
    for headers in bad:
        response = search_star(keyed, headers=dict(headers))
        assert refusal(response) == (401, "unauthorized")
        assert response.headers["www-authenticate"] == 'Bearer realm="likeness"'
        assert keys.search not in response.text
    assert keyed.post(f"/search?key={keys.search}&api_key={keys.search}").status_code == 401


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
def test_without_keys_admin_is_for_this_machine(
    app: FastAPI, address: str, headers: dict[str, str], status: int
) -> None:
    client = on_this_machine(app, client=(address, 1))
    response = client.post("/index/promote", json={"version": "000001"}, headers=headers)
    assert response.status_code == status
    if status == 403:
        assert refusal(response) == (403, "forbidden")
    assert search_star(client, headers=headers).status_code == 200


LOOPBACK_HOSTS = ("localhost:8000", "127.0.0.1", "[::1]:80", "LOCALHOST:8000", "[::ffff:127.0.0.1]:8000")
OTHER_HOSTS = (
    *("rebound.example", "[bad", "", "evil.test:80@127.0.0.1", "127.0.0.1/evil.test", "127.0.0.1:80:80"),
    *("127.0.0.1#evil.test", "[::1]evil.test", "evil.test\\@127.0.0.1"),
)


def test_a_server_for_this_machine_refuses_other_host_names(service: SearchService) -> None:
    client = on_this_machine(create_app(service, access=Access(loopback_names_only=True)))
    for host in LOOPBACK_HOSTS:
        assert search_star(client, headers={"Host": host}).status_code == 200, host
    for host in OTHER_HOSTS:
        assert refusal(search_star(client, headers={"Host": host})) == (403, "forbidden"), host
    for host in (*LOOPBACK_HOSTS, *OTHER_HOSTS):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200, host


REMOTE_HOSTS = ("::", "0.0.0.0", "::ffff:10.0.0.1", "::ffff:0.0.0.0", "10.0.0.1", "evil@127.0.0.1", "example.com", "")


@pytest.mark.parametrize("host", REMOTE_HOSTS)
def test_any_address_but_loopback_needs_keys_or_allow_remote(keys: Keys, host: str) -> None:
    for local in ("127.0.0.1", "::1", "localhost", "::ffff:127.0.0.1"):
        assert ServeSettings(collection="c", host=local).listen_address() == (local, 8000)
    with pytest.raises(ListenError, match=r"expected a loopback host .*LIKENESS_KEYS_FILE.*LIKENESS_ALLOW_REMOTE=true"):
        ServeSettings(collection="c", host=host).listen_address()
    for permission in ({"allow_remote": True}, {"keys_file": str(keys.path)}):
        settings = ServeSettings.model_validate({"collection": "c", "host": host, **permission})
        assert settings.listen_address() == (host, 8000)


# Headers for browsers, and other sites

POLICY = "default-src 'none'; frame-ancestors 'none'"


@pytest.mark.parametrize(
    ("path", "headers", "status", "policy"),
    [
        ("/index", {}, 200, POLICY),
        ("/index", {"API-Version": " 1 "}, 200, POLICY),
        ("/nothing", {"API-Version": "1"}, 404, POLICY),
        ("/openapi.json", {}, 200, POLICY),
        ("/picture?id=red.png", {"X-Request-ID": "mine"}, 200, "default-src 'none'; sandbox"),
    ],
)
def test_every_answer_has_security_headers(
    app: FastAPI, keyed: TestClient, path: str, headers: dict[str, str], status: int, policy: str
) -> None:
    answer, refused = on_this_machine(app).get(path, headers=headers), keyed.get("/index", headers=headers)
    assert (answer.status_code, answer.headers["content-security-policy"]) == (status, policy)
    assert refusal(refused) == (401, "unauthorized")
    assert refused.headers["content-security-policy"] == POLICY
    for received in (answer.headers, refused.headers):
        assert received["x-content-type-options"] == "nosniff"
        assert received["referrer-policy"] == "no-referrer"
        assert received["api-version"] == "1"
        assert received["x-request-id"] == headers.get("X-Request-ID", received["x-request-id"])
        assert "access-control-allow-origin" not in received


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_only_listed_sites_may_send_requests(app: FastAPI, keyed: TestClient) -> None:
    for origin, allowed in (("https://ours.example", "https://ours.example"), ("https://theirs.example", None)):
        answer = keyed.options("/search", headers={"Origin": origin, **PREFLIGHT})
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert answer.status_code == (200 if allowed else 400)
        refused = search_star(keyed, headers={"Origin": origin})
        assert refusal(refused) == (401, "unauthorized")
        assert refused.headers.get("access-control-allow-origin") == allowed
    assert "access-control-allow-credentials" not in refused.headers
    headers = {"Origin": "https://ours.example", **PREFLIGHT}
    assert on_this_machine(app).options("/search", headers=headers).status_code == 405


@pytest.mark.parametrize("version", ["2", "", "1.0", "latest"])
def test_another_api_version_is_refused(keyed: TestClient, version: str) -> None:
    refused = keyed.get("/index", headers={"API-Version": version})
    assert refusal(refused) == (400, "unknown-api-version")
    assert refused.json()["detail"] == f'expected API-Version: 1, got "{version}"'
    assert refused.headers["api-version"] == "1"
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert refused.headers["content-security-policy"] == POLICY
    assert "x-request-id" in refused.headers


# Rates


def test_a_bucket_refills_evenly_up_to_its_size_and_a_higher_cost_leaves_a_debt() -> None:
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
    rate.charge("c", 90)
    assert rate.wait_s("c") == pytest.approx(31.0)
    now += 30.5
    assert rate.wait_s("c", 0.1) == 0.0
    assert rate.wait_s("c", 1.0) == pytest.approx(0.6)


def test_each_key_has_its_own_rate(service: SearchService, keys: Keys) -> None:
    client = on_this_machine(create_app(service, access=Access(keys=keys.ring, rate_limit_per_minute=3)))
    answers = [search_star(client, headers=keys.headers("search")) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert refusal(answers[-1]) == (429, "rate-limited")
    wait_s = answers[-1].json()["retry_after_s"]
    assert 10 < wait_s <= 20
    assert answers[-1].headers["retry-after"] == str(wait_s)
    assert search_star(client, headers=keys.headers("admin")).status_code == 200
    assert client.get("/healthz").status_code == 200
    assert search_star(client).status_code == 401


@pytest.mark.parametrize(("path", "times"), [("/picture?id=red.png", 10), ("/search?id=red.png", 1)])
def test_a_picture_costs_a_tenth_and_a_search_by_get_one(service: SearchService, path: str, times: int) -> None:
    client = on_this_machine(create_app(service, access=Access(rate_limit_per_minute=1)))
    assert [client.get(path).status_code for _ in range(times + 1)] == [200] * times + [429]


@pytest.mark.parametrize(("host", "at"), [("127.0.0.1", "127.0.0.1"), ("::", "127.0.0.1"), ("::", "[::1]")])
def test_callers_behind_a_proxy_have_separate_rates(service: SearchService, host: str, at: str) -> None:
    app = create_app(service, access=Access(rate_limit_per_minute=1))
    with running(app, host=host) as url, httpx.Client(base_url=f"http://{at}:{url.rpartition(':')[2]}") as client:
        callers = ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1")
        answers = [search_star(client, headers={"X-Forwarded-For": caller}) for caller in callers]
        assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_probes_are_not_rate_limited(service: SearchService, keys: Keys) -> None:
    for access in (Access(rate_limit_per_minute=1), Access(rate_limit_per_minute=1, keys=keys.ring)):
        client = on_this_machine(create_app(service, access=access), headers=keys.headers("search"))
        for path in ("/metrics", "/healthz", "/readyz"):
            assert [client.get(path).status_code for _ in range(12)] == [200] * 12
        assert [search_star(client).status_code for _ in range(2)] == [200, 429]
        assert client.get("/metrics").status_code == 200
    assert refusal(client.get("/metrics", headers={"Authorization": ""})) == (401, "unauthorized")


def test_without_keys_each_address_has_its_own_rate(service: SearchService) -> None:
    """And so has each IPv6 network of 64 bits; all that are no addresses are one."""
    app = create_app(service, access=Access(rate_limit_per_minute=1))
    new = ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.3", "2001:db8::1", "2001:db8:0:1::1", "fe80::1%eth0", "a:b")
    known = ("10.0.0.1", "10.0.0.3", "::ffff:10.0.0.1", "2001:db8::2", "fe80::2%eth0", "c:d")
    for addresses, status in ((new, 200), (known, 429)):
        clients = [on_this_machine(app, client=(address, 1)) for address in addresses]
        assert [search_star(client).status_code for client in clients] == [status] * len(addresses)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/search/batch", {"searches": [{"text": "star", "k": 1}] * 10}), ("/embed", {"texts": ["star"] * 10})],
)
def test_a_batch_costs_as_much_as_its_items(
    service: SearchService, path: str, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.http.middleware.permissions.RateLimit", partial(RateLimit, clock=lambda: 0.0))
    client = on_this_machine(create_app(service, access=Access(rate_limit_per_minute=15)))
    assert client.post(path, json=body).status_code == 200
    assert [search_star(client).status_code for _ in range(6)] == [200] * 5 + [429]
    refused = client.post(path, json=body)
    assert refusal(refused) == (429, "rate-limited")
    assert refused.headers["retry-after"] == "4"
    assert "more than 15 requests a minute, where each item of a batch counts as one: " in refused.json()["detail"]


def test_the_openapi_document_says_how_to_send_a_key(app: FastAPI, locked: FastAPI) -> None:
    document = locked.openapi()
    assert document["components"]["securitySchemes"].keys() == {"bearer", "header"}
    assert "securitySchemes" not in app.openapi()["components"]
    assert "security" not in document["paths"]["/healthz"]["get"]
    assert document["paths"]["/search"]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert {"401", "403", "413", "429", "503"} <= document["paths"]["/search"]["post"]["responses"].keys()
    assert "ProblemOut" in document["components"]["schemas"]


# Settings


def test_defaults_of_the_rate_limit_and_of_loopback_names(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(**settings: Any) -> tuple[int, bool]:
        access = ServeSettings(collection="c", **settings).access()
        return access.rate_limit_per_minute, access.loopback_names_only

    assert limit() == (0, True)
    assert limit(rate_limit_per_minute=30) == (30, True)
    assert limit(allow_remote=True) == limit(host="0.0.0.0", allow_remote=True) == (600, False)
    assert limit(keys_file=str(keys.path)) == (600, False)
    assert limit(keys_file=str(keys.path), rate_limit_per_minute=0) == (0, False)
    monkeypatch.setenv("LIKENESS_KEYS_FILE", str(keys.path))
    assert limit() == (600, False)
    assert ServeSettings(collection="c").access().keys is not None


@pytest.mark.parametrize(
    ("options", "searches", "requests"),
    [
        ({}, 128, 224),
        ({"replicas": 4}, 16, 112),
        ({"replicas": "1:4", "num_cpus": 2.5}, 32, 128),
        ({"embedders": 4}, 128, 224),
        ({"max_searches": 5, "max_url_fetches": 7}, 5, 76),
        ({"max_ongoing_requests": 9}, 128, 9),
    ],
)
def test_a_replicas_limits_depend_on_its_cores(
    options: dict[str, Any], searches: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several replicas may be on one machine: each has the cores that Ray reserves for it."""
    monkeypatch.setattr("api.settings.usable_cpus", lambda: 8)
    settings = ServeSettings(collection="c", **options)
    assert settings.limits().max_searches == searches
    assert settings.access().max_ongoing_requests == requests
