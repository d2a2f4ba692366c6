"""What the settings allow whom, and what the OpenAPI document says of it."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from api.access.keys import KeyScope, add_key
from api.errors import KeysError, ListenError
from api.settings import Access, RequestLimits, ServeSettings
from tests.support.servers.guarded_app import guarded


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


def test_without_settings_searches_and_fetches_leave_places_too() -> None:
    limits = RequestLimits()
    assert Access().max_ongoing_requests == limits.max_searches + limits.max_url_fetches + 64


def test_the_openapi_document_says_how_a_key_is_given(tmp_path: Path) -> None:
    def document(app: FastAPI) -> Any:
        return app.openapi()

    plain, with_keys = document(guarded(Access())), document(guarded(keyed(tmp_path).access()))
    assert "securitySchemes" not in plain.get("components", {})
    assert with_keys["components"]["securitySchemes"] == {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    search, health = (with_keys["paths"][path] for path in ("/search", "/healthz"))
    assert search["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert {"401", "403", "429", "503"} <= search["post"]["responses"].keys()
    assert "security" not in health["get"]
    assert "401" not in plain["paths"]["/search"]["post"]["responses"]
