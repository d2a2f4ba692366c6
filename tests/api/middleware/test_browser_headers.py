"""Headers for browsers on every answer, and which other sites may send requests."""

import pytest
from fastapi.testclient import TestClient

from api.access.keys import KeyScope, add_key
from api.http.app import create_app
from api.settings import ServeSettings
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, fake_service
from tests.support.servers.clients import on_this_machine, refusal, search_star


@pytest.fixture(scope="module")
def client(searcher: Searcher) -> TestClient:
    return on_this_machine(create_app(fake_service(searcher, pictures={"memory:red.png": PLAIN["red.png"]})))


@pytest.fixture(scope="module")
def keyed(searcher: Searcher, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    add_key(keys := tmp_path_factory.mktemp("keys") / "keys.json", "alice", KeyScope.search)
    settings = ServeSettings(collection="c", keys_file=str(keys), cors_origins=frozenset({"https://ours.example"}))
    return on_this_machine(create_app(fake_service(searcher), access=settings.access()))


@pytest.mark.parametrize(
    ("path", "headers", "status", "policy"),
    [
        ("/index", {}, 200, "default-src 'none'; frame-ancestors 'none'"),
        ("/index", {"API-Version": " 1 "}, 200, "default-src 'none'; frame-ancestors 'none'"),
        ("/nothing", {"API-Version": "1"}, 404, "default-src 'none'; frame-ancestors 'none'"),
        ("/openapi.json", {}, 200, "default-src 'none'; frame-ancestors 'none'"),
        ("/picture?id=red.png", {"X-Request-ID": "mine"}, 200, "default-src 'none'; sandbox"),
    ],
)
def test_every_answer_has_security_headers(
    client: TestClient, keyed: TestClient, path: str, headers: dict[str, str], status: int, policy: str
) -> None:
    answer, refused = client.get(path, headers=headers), keyed.get("/index", headers=headers)
    assert (answer.status_code, answer.headers["content-security-policy"]) == (status, policy)
    assert refusal(refused) == (401, "unauthorized")
    assert refused.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    for received in (answer.headers, refused.headers):
        assert received["x-content-type-options"] == "nosniff"
        assert received["referrer-policy"] == "no-referrer"
        assert received["api-version"] == "1"
        assert received["x-request-id"] == headers.get("X-Request-ID", received["x-request-id"])
        assert "access-control-allow-origin" not in received


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_only_listed_sites_may_send_requests(client: TestClient, keyed: TestClient) -> None:
    for origin, allowed in (("https://ours.example", "https://ours.example"), ("https://theirs.example", None)):
        answer = keyed.options("/search", headers={"Origin": origin, **PREFLIGHT})
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert answer.status_code == (200 if allowed else 400)
        refused = search_star(keyed, headers={"Origin": origin})
        assert refusal(refused) == (401, "unauthorized")
        assert refused.headers.get("access-control-allow-origin") == allowed
    assert "access-control-allow-credentials" not in refused.headers
    assert client.options("/search", headers={"Origin": "https://ours.example", **PREFLIGHT}).status_code == 405


@pytest.mark.parametrize("version", ["2", "", "1.0", "latest"])
def test_another_api_version_is_refused(keyed: TestClient, version: str) -> None:
    refused = keyed.get("/index", headers={"API-Version": version})
    assert refusal(refused) == (400, "unknown-api-version")
    assert refused.json()["detail"] == f'expected API-Version: 1, got "{version}"'
    assert refused.headers["api-version"] == "1"
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert refused.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert "x-request-id" in refused.headers
