"""The app itself behind keys: each of its routes, and what a batch costs."""

from pathlib import Path

import pytest

from api.access.keys import KeyRing, KeyScope, add_key
from api.http.app import create_app
from api.search.service import SearchService
from api.settings import Access
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import PLAIN, followed_service, make_collection
from tests.support.servers.guarded_app import on_this_machine, told


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
            address = route.replace("{image_id}", "red.png")
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
