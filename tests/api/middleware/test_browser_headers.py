"""What every answer tells browsers, and which other sites may ask."""

from pathlib import Path

import pytest

from api.access.keys import KeyScope, add_key
from api.settings import Access, ServeSettings
from tests.support.servers.guarded_app import local, told


@pytest.mark.parametrize(
    ("path", "policy"),
    [
        ("/", "default-src 'none'; frame-ancestors 'none'"),
        ("/index", "default-src 'none'; frame-ancestors 'none'"),
        ("/nothing", "default-src 'none'; frame-ancestors 'none'"),
        ("/openapi.json", "default-src 'none'; frame-ancestors 'none'"),
        ("/framed", "sandbox"),
    ],
)
def test_every_answer_says_what_browsers_must_not_do(path: str, policy: str) -> None:
    headers = local(Access()).get(path).headers
    assert headers["content-security-policy"] == policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == ("origin" if path == "/framed" else "no-referrer")
    assert "access-control-allow-origin" not in headers


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_other_sites_may_ask_where_they_are_named(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", "alice", KeyScope.search)
    settings = ServeSettings(
        collection="c", keys_file=str(tmp_path / "keys.json"), cors_origins=frozenset({"https://ours.example"})
    )
    client = local(settings.access())
    for origin, allowed in (("https://ours.example", "https://ours.example"), ("https://theirs.example", None)):
        answer = client.options("/search", headers={"Origin": origin, **PREFLIGHT})
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert answer.status_code == (200 if allowed else 400)
        refused = client.post("/search", headers={"Origin": origin})
        assert told(refused) == (401, "unauthorized")
        assert refused.headers.get("access-control-allow-origin") == allowed
    assert "access-control-allow-credentials" not in refused.headers
    assert (
        local(Access()).options("/search", headers={"Origin": "https://ours.example", **PREFLIGHT}).status_code == 405
    )


@pytest.mark.parametrize("asked", ["1", " 1 "])
def test_every_answer_says_its_version(asked: str) -> None:
    for path in ("/index", "/nowhere"):
        assert local(Access()).get(path, headers={"API-Version": asked}).headers["api-version"] == "1"


@pytest.mark.parametrize("asked", ["2", "", "1.0", "latest"])
def test_another_version_is_refused(asked: str) -> None:
    refused = local(Access()).get("/index", headers={"API-Version": asked})
    assert told(refused) == (400, "unknown-api-version")
    assert refused.json()["detail"] == f'expected API-Version: 1, got "{asked}"'
    assert refused.headers["api-version"] == "1"
