"""What every answer tells browsers, and which other sites may ask."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.access.keys import KeyScope, add_key
from api.http.app import create_app
from api.settings import ServeSettings
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, fake_service
from tests.support.servers.clients import on_this_machine, search_star, told


@pytest.fixture
def client(searcher: Searcher) -> TestClient:
    return on_this_machine(create_app(fake_service(searcher, pictures={"memory:red.png": PLAIN["red.png"]})))


@pytest.fixture
def keyed(searcher: Searcher, tmp_path: Path) -> TestClient:
    add_key(tmp_path / "keys.json", "alice", KeyScope.search)
    settings = ServeSettings(
        collection="c", keys_file=str(tmp_path / "keys.json"), cors_origins=frozenset({"https://ours.example"})
    )
    return on_this_machine(create_app(fake_service(searcher), access=settings.access()))


@pytest.mark.parametrize(
    ("path", "asked", "status", "policy"),
    [
        ("/index", {}, 200, "default-src 'none'; frame-ancestors 'none'"),
        ("/index", {"API-Version": " 1 "}, 200, "default-src 'none'; frame-ancestors 'none'"),
        ("/nothing", {"API-Version": "1"}, 404, "default-src 'none'; frame-ancestors 'none'"),
        ("/openapi.json", {}, 200, "default-src 'none'; frame-ancestors 'none'"),
        ("/picture?id=red.png", {"X-Request-ID": "mine"}, 200, "default-src 'none'; sandbox"),
    ],
)
def test_every_answer_says_what_browsers_must_not_do(
    client: TestClient, keyed: TestClient, path: str, asked: dict[str, str], status: int, policy: str
) -> None:
    answer, refused = client.get(path, headers=asked), keyed.get("/index", headers=asked)
    assert (answer.status_code, answer.headers["content-security-policy"]) == (status, policy)
    assert told(refused) == (401, "unauthorized")
    assert refused.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    for headers in (answer.headers, refused.headers):
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["api-version"] == "1"
        assert headers["x-request-id"] == asked.get("X-Request-ID", headers["x-request-id"])
        assert "access-control-allow-origin" not in headers


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_other_sites_may_ask_where_they_are_named(client: TestClient, keyed: TestClient) -> None:
    for origin, allowed in (("https://ours.example", "https://ours.example"), ("https://theirs.example", None)):
        answer = keyed.options("/search", headers={"Origin": origin, **PREFLIGHT})
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert answer.status_code == (200 if allowed else 400)
        refused = search_star(keyed, headers={"Origin": origin})
        assert told(refused) == (401, "unauthorized")
        assert refused.headers.get("access-control-allow-origin") == allowed
    assert "access-control-allow-credentials" not in refused.headers
    assert client.options("/search", headers={"Origin": "https://ours.example", **PREFLIGHT}).status_code == 405


@pytest.mark.parametrize("asked", ["2", "", "1.0", "latest"])
def test_another_version_is_refused(keyed: TestClient, asked: str) -> None:
    refused = keyed.get("/index", headers={"API-Version": asked})
    assert told(refused) == (400, "unknown-api-version")
    assert refused.json()["detail"] == f'expected API-Version: 1, got "{asked}"'
    assert refused.headers["api-version"] == "1"
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert refused.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert "x-request-id" in refused.headers
