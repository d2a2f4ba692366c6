"""Large JSON bodies must not keep the server from answering others."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

import api.http.body
from api.client import LikenessClient
from api.client.query import Search
from api.documents import json_bytes
from api.http.app import create_app
from api.local import running
from api.search.query import SearchResult
from api.search.service import SearchService
from api.settings import RequestLimits
from index.search import Searcher
from tests.support.collections.small_collection import fake_service
from tests.support.servers.clients import refusal


@pytest.fixture
def service(searcher: Searcher) -> SearchService:
    return fake_service(searcher)


def padded(document: dict[str, Any]) -> bytes:
    """The document, padded to 100,000 bytes."""
    return json.dumps(document).encode().ljust(100_000)


JSON = {"Content-Type": "application/json"}


class PausedFunction:
    """Replaces the function `name` with one that waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, function: Callable[..., Any]) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self._function = function
        monkeypatch.setattr(name, self)

    def __call__(self, *args: Any) -> Any:
        self.begun.set()
        assert self.may_go_on.wait(20)
        return self._function(*args)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The function is running during the block, and continues after it."""
        try:
            assert self.begun.wait(20)
            yield
        finally:
            self.may_go_on.set()


PARSED = ("api.http.body._document", api.http.body._document)
WRITTEN = ("api.http.routes.search.json_bytes", json_bytes)
STAR: dict[str, Any] = {"text": "a star", "k": 1}


@pytest.mark.parametrize(
    ("step", "path", "document"),
    [
        (PARSED, "/search", STAR),
        (PARSED, "/search/batch", {"searches": [STAR]}),
        (PARSED, "/embed", {"texts": ["a star"]}),
        (WRITTEN, "/search/batch", {"searches": [STAR, {"k": 0}]}),
    ],
)
def test_others_are_answered_while_a_body_is_parsed_or_a_batch_serialised(
    service: SearchService, monkeypatch: pytest.MonkeyPatch, step: Any, path: str, document: dict[str, Any]
) -> None:
    paused = PausedFunction(monkeypatch, *step)
    with running(create_app(service)) as url, ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.post, url + path, content=padded(document), headers=JSON, timeout=30)
        with paused.running():
            assert httpx.get(f"{url}/healthz").json() == {"status": "up"}
        assert answer.result().status_code == 200
        if step is WRITTEN:
            found, failed = answer.result().json()["results"]
            assert (len(found["ok"]["matches"]), failed["problem"]["status"]) == (1, 422)


def test_a_body_of_too_many_values_is_not_parsed(client: TestClient) -> None:
    vector = "[" + ",".join(["0.1"] * 65_536) + "]"
    body = '{"searches": [' + ",".join([f'{{"embedding": {vector}}}'] * 64) + "]}"
    refused = client.post("/search/batch", content=body, headers=JSON)
    assert refusal(refused) == (413, "too-large")
    assert refused.json()["detail"] == ("expected a JSON body of at most 262,144 values, got more: send it in parts")


def test_a_search_without_a_free_slot_is_refused_before_its_body_is_parsed(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slow bodies have lost their reserved slots when they arrive."""
    monkeypatch.setattr("api.http.middleware.admission._RESERVED_S", 0.0)
    paused, body = PausedFunction(monkeypatch, *PARSED), padded(STAR)

    def halves() -> Iterator[bytes]:
        yield body[:70_000]
        threading.Event().wait(0.2)
        yield body[70_000:]

    app = create_app(service, limits=RequestLimits(max_searches=1))
    with running(app) as url, ThreadPoolExecutor() as pool:
        first = pool.submit(httpx.post, f"{url}/search", content=halves(), headers=JSON, timeout=30)
        with paused.running():
            second = httpx.post(f"{url}/search", content=padded({"text": 7}), headers=JSON, timeout=30)
        assert refusal(second) == (429, "overloaded")
        assert first.result().status_code == 200


def test_the_client_sends_many_vectors_in_batches(service: SearchService) -> None:
    mixes: list[Search] = [{"queries": [{"embedding": np.full(16, n + 1)}] * 16, "k": 1} for n in range(64)]
    with (
        running(create_app(service, limits=RequestLimits(max_json_values=2**14))) as url,
        LikenessClient(url) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("api.client.client.MAX_JSON_VALUES", 2**14)
        results = client.search_batch(mixes)
    assert [type(result) for result in results] == [SearchResult] * 64
