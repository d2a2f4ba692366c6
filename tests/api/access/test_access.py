"""Who may ask, and how often."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.access.keys import KeyRing, KeyScope, add_key
from api.errors import ListenError
from api.http.app import create_app
from api.http.middleware.rate_limit import RateLimit
from api.local import running
from api.search.service import SearchService
from api.settings import Access, ServeSettings
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import PLAIN, followed_service, make_collection
from tests.support.servers.clients import on_this_machine, search_star, told


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
def service(tmp_path_factory: pytest.TempPathFactory) -> SearchService:
    """It is ready, and has its pictures."""
    location = tmp_path_factory.mktemp("guarded") / "collection"
    make_collection(location, PLAIN, FakeEmbedder())
    service = followed_service(location, pictures={f"memory:{name}": data for name, data in PLAIN.items()})
    service.live.warm_up()
    return service


# Keys


def test_what_takes_which_key(service: SearchService, keys: Keys) -> None:
    """No route is left open by mistake."""
    app = create_app(service, access=Access(keys=keys.ring))
    client = on_this_machine(app)
    for_all = {"get /", "get /healthz", "get /readyz", "get /docs", "get /openapi.json", "get /web/main.js"}
    for_admins = {"post /index/promote", "post /index/rollback"}
    routes = {f"{method} {path}" for path, operations in app.openapi()["paths"].items() for method in operations}
    assert {"get /metrics", "get /picture", "get /index", "post /search", "post /embed"} | for_admins < routes
    for route in routes | for_all:
        method, path = route.split()
        address = f"{path}?id=red.png"
        nobody = client.request(method, address)
        reader, boss = (client.request(method, address, headers=keys.headers(who)) for who in ("search", "admin"))
        assert route in for_all or told(nobody) == (401, "unauthorized")
        assert route not in for_admins or told(reader) == (403, "forbidden")
        let_in = [boss] + [nobody] * (route in for_all) + [reader] * (route not in for_admins)
        # A POST lacks its body, or there is no older version.
        assert {response.status_code for response in let_in} <= ({200} if method == "get" else {409, 415}), route


def test_what_is_not_there_takes_a_key_too(service: SearchService, keys: Keys) -> None:
    client = on_this_machine(create_app(service, access=Access(keys=keys.ring)))
    paths = ("/nothing", "/images", "/index/none", "//index/promote", "/search/", "/webx", "/docs/x")
    for path, method in product(paths, ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD")):
        assert client.request(method, path, follow_redirects=False).status_code == 401, (method, path)


def test_how_a_key_is_given(service: SearchService, keys: Keys) -> None:
    client = on_this_machine(create_app(service, access=Access(keys=keys.ring)))
    by_name = {"X-API-Key": keys.search}
    good: list[dict[str, str]] = [by_name, {"Authorization": "Basic dXNlcjpwYXNz", **by_name}]
    good += [{"Authorization": f"{scheme} {keys.search}"} for scheme in ("bearer", "BEARER ")]
    bad: list[Mapping[Any, Any]] = [{"X-API-Key": ""}, {b"X-API-Key": b"\xff\xfe"}, {"Cookie": f"key={keys.search}"}]
    bad += [{"Authorization": given} for given in (keys.search, f"Basic {keys.search}", "Bearer")]
    bad += [{"Authorization": "Bearer wrong", **by_name}]
    assert [search_star(client, headers=headers).status_code for headers in good] == [200] * 4
    for headers in bad:
        response = search_star(client, headers=dict(headers))
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
def test_mend_17_without_keys_admin_is_for_this_machine(
    service: SearchService, address: str, headers: dict[str, str], status: int
) -> None:
    client = on_this_machine(create_app(service), client=(address, 1))
    response = client.post("/index/promote", json={"version": "000001"}, headers=headers)
    assert response.status_code == status
    if status == 403:
        assert told(response) == (403, "forbidden")
    assert search_star(client, headers=headers).status_code == 200


OURS = ("localhost:8000", "127.0.0.1", "[::1]:80", "LOCALHOST:8000", "[::ffff:127.0.0.1]:8000")
THEIRS = (
    *("rebound.example", "[bad", "", "evil.test:80@127.0.0.1", "127.0.0.1/evil.test", "127.0.0.1:80:80"),
    *("127.0.0.1#evil.test", "[::1]evil.test", "evil.test\\@127.0.0.1"),
)


def test_mend_17_another_sites_name_does_not_lead_to_a_server_of_this_machine_alone(service: SearchService) -> None:
    client = on_this_machine(create_app(service, access=Access(loopback_names_only=True)))
    for host in OURS:
        assert search_star(client, headers={"Host": host}).status_code == 200, host
    for host in THEIRS:
        assert told(search_star(client, headers={"Host": host})) == (403, "forbidden"), host
    for host in (*OURS, *THEIRS):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200, host


BEYOND = ("::", "0.0.0.0", "::ffff:10.0.0.1", "::ffff:0.0.0.0", "10.0.0.1", "evil@127.0.0.1", "example.com", "")


@pytest.mark.parametrize("host", BEYOND)
def test_mend_17_any_address_but_loopback_needs_keys_or_leave(keys: Keys, host: str) -> None:
    for ours in ("127.0.0.1", "::1", "localhost", "::ffff:127.0.0.1"):
        assert ServeSettings(collection="c", host=ours).listen_address() == (ours, 8000)
    with pytest.raises(ListenError, match=r"expected a loopback host .*LIKENESS_KEYS_FILE.*LIKENESS_ALLOW_REMOTE=true"):
        ServeSettings(collection="c", host=host).listen_address()
    for leave in ({"allow_remote": True}, {"keys_file": str(keys.path)}):
        assert ServeSettings.model_validate({"collection": "c", "host": host, **leave}).listen_address() == (host, 8000)


# Rates


def test_a_bucket_fills_evenly_and_no_further_and_what_costs_more_leaves_a_debt() -> None:
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
    assert told(answers[-1]) == (429, "rate-limited")
    assert answers[-1].headers["retry-after"] == "20"
    assert answers[-1].json()["retry_after_s"] == 20
    assert search_star(client, headers=keys.headers("admin")).status_code == 200
    assert client.get("/healthz").status_code == 200
    assert search_star(client).status_code == 401


@pytest.mark.parametrize(("path", "times"), [("/picture?id=red.png", 10), ("/search?id=red.png", 1)])
def test_reading_costs_little_and_a_search_in_an_address_is_one(service: SearchService, path: str, times: int) -> None:
    client = on_this_machine(create_app(service, access=Access(rate_limit_per_minute=1)))
    assert [client.get(path).status_code for _ in range(times + 1)] == [200] * times + [429]


@pytest.mark.parametrize(("host", "at"), [("127.0.0.1", "127.0.0.1"), ("::", "127.0.0.1"), ("::", "[::1]")])
def test_mend_17_a_proxys_callers_have_rates_of_their_own(service: SearchService, host: str, at: str) -> None:
    app = create_app(service, access=Access(rate_limit_per_minute=1))
    with running(app, host=host) as url, httpx.Client(base_url=f"http://{at}:{url.rpartition(':')[2]}") as client:
        callers = ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1")
        answers = [search_star(client, headers={"X-Forwarded-For": caller}) for caller in callers]
        assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_mend_18_what_machines_ask_for_every_few_seconds_is_not_counted(service: SearchService, keys: Keys) -> None:
    for access in (Access(rate_limit_per_minute=1), Access(rate_limit_per_minute=1, keys=keys.ring)):
        client = on_this_machine(create_app(service, access=access), headers=keys.headers("search"))
        for path in ("/metrics", "/healthz", "/readyz"):
            assert [client.get(path).status_code for _ in range(30)] == [200] * 30
        assert [search_star(client).status_code for _ in range(2)] == [200, 429]
        assert client.get("/metrics").status_code == 200
    assert told(client.get("/metrics", headers={"Authorization": ""})) == (401, "unauthorized")


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
def test_mend_17_without_keys_an_address_has_a_rate(
    service: SearchService, first: str, second: str, shared: bool
) -> None:
    app = create_app(service, access=Access(rate_limit_per_minute=1))
    assert search_star(on_this_machine(app, client=(first, 1))).status_code == 200
    assert search_star(on_this_machine(app, client=(second, 2))).status_code == (429 if shared else 200)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/search/batch", {"searches": [{"text": "star", "k": 1}] * 10}), ("/embed", {"texts": ["star"] * 10})],
)
def test_a_batch_costs_what_is_in_it(service: SearchService, path: str, body: object) -> None:
    client = on_this_machine(create_app(service, access=Access(rate_limit_per_minute=15)))
    assert client.post(path, json=body).status_code == 200
    assert [search_star(client).status_code for _ in range(6)] == [200] * 5 + [429]
    refused = client.post(path, json=body)
    assert told(refused) == (429, "rate-limited")
    assert refused.headers["retry-after"] == "4"


def test_the_apps_document_says_how_a_key_is_given(service: SearchService, keys: Keys) -> None:
    document = create_app(service, access=Access(keys=keys.ring)).openapi()
    assert document["components"]["securitySchemes"].keys() == {"bearer", "header"}
    assert "securitySchemes" not in create_app(service).openapi()["components"]
    assert "security" not in document["paths"]["/healthz"]["get"]
    assert document["paths"]["/search"]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert {"401", "403", "413", "429", "503"} <= document["paths"]["/search"]["post"]["responses"].keys()
    assert "ProblemOut" in document["components"]["schemas"]


# Settings


def test_rates_are_limited_where_strangers_may_come_and_names_matter_where_none_do(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
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
