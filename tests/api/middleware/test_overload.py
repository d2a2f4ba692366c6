"""Limits on concurrent requests, and on their time."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray

from api.http.app import create_app
from api.local import running
from api.settings import Access, RequestLimits
from benchmarks.common.waiting import eventually
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, RecordingFetcher, fake_service
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import on_this_machine, refusal, search_star

BY_URL = {"url": "https://pictures.example/red.png"}


class HeldHost(RecordingFetcher):
    """Sends its picture when `may_end` is set."""

    def __init__(self) -> None:
        super().__init__({BY_URL["url"]: PLAIN["red.png"]})
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def fetch(self, uri: str) -> bytes:
        self.begun.release()
        assert self.may_end.wait(30)
        return super().fetch(uri)


@contextmanager
def busy_with(
    searcher: Searcher, access: Access, count: int
) -> Iterator[tuple[httpx.Client, HeldHost, list[Future[httpx.Response]]]]:
    """A client of a server that is busy with `count` searches until the host may end."""
    host = HeldHost()
    app = create_app(fake_service(searcher, queries=host), access=access)
    with running(app) as url, httpx.Client(base_url=url, timeout=30) as client, ThreadPoolExecutor(20) as pool:
        searches = [pool.submit(client.post, "/search", json=BY_URL) for _ in range(count)]
        for _ in searches:
            assert host.begun.acquire(timeout=10)
        yield client, host, searches


def test_requests_over_the_limit_are_refused_at_once_and_others_answered(searcher: Searcher) -> None:
    with busy_with(searcher, Access(max_ongoing_requests=3), 3) as (client, host, searches):
        refused = [client.post("/search", content=b"x" * 100_000) for _ in range(20)]
        assert {refusal(response) for response in refused} == {(429, "overloaded")}
        assert {response.headers["retry-after"] for response in refused} == {"1"}
        # Probes are answered even so.
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics", "/index")] == [
            *(200, 200, 200, 429)
        ]
        host.may_end.set()
        assert [search.result().status_code for search in searches] == [200] * 3
        assert [search_star(client).status_code for _ in range(5)] == [200] * 5


def test_a_timeout_is_answered_in_time_and_the_slot_stays_taken_until_the_work_ends(searcher: Searcher) -> None:
    access = Access(max_ongoing_requests=1, request_timeout_s=0.5)
    with busy_with(searcher, access, 1) as (client, host, searches):
        late = searches[0].result()
        assert refusal(late) == (503, "timeout")
        assert late.headers["retry-after"] == "1"
        assert late.headers["x-content-type-options"] == "nosniff"
        assert refusal(search_star(client)) == (429, "overloaded")
        host.may_end.set()
        eventually(lambda: client.get("/index").status_code == 200, "the place is free")
        assert search_star(client).status_code == 200


def test_pictures_that_nobody_waits_for_any_more_are_not_fetched(searcher: Searcher) -> None:
    host, other = HeldHost(), {"url": "https://pictures.example/other.png"}
    host.files[other["url"]] = PLAIN["red.png"]
    limits, access = RequestLimits(max_url_fetches=1), Access(request_timeout_s=0.5)
    with running(create_app(fake_service(searcher, queries=host), limits=limits, access=access)) as url:
        late = httpx.post(f"{url}/search/batch", json={"searches": [BY_URL] * 20}, timeout=30)
        assert refusal(late) == (503, "timeout")
        host.may_end.set()
        eventually(lambda: httpx.post(f"{url}/search", json=other).status_code == 200, "the host's pictures are free")
    assert host.fetched.count(BY_URL["url"]) <= 1  # the first of the batch, if it had begun in time


def test_pictures_of_a_slow_source_do_not_delay_other_routes(searcher: Searcher) -> None:
    host = HeldHost()
    service = fake_service(searcher, pictures=host)
    with running(create_app(service)) as url, ThreadPoolExecutor(50) as pool:
        pictures = [pool.submit(httpx.get, f"{url}/picture?id=red.png", timeout=30) for _ in range(50)]
        for _ in range(40):
            assert host.begun.acquire(timeout=10)
        try:
            assert [httpx.get(f"{url}{path}").status_code for path in ("/image?id=red.png", "/facets")] == [200, 200]
        finally:
            host.may_end.set()
        assert {picture.result().status_code for picture in pictures} == {404}


def test_a_defect_frees_its_slot(searcher: Searcher) -> None:
    class Defect(RecordingFetcher):
        def fetch(self, uri: str) -> bytes:
            raise RuntimeError("secret")

    app = create_app(fake_service(searcher, queries=Defect({})), access=Access(max_ongoing_requests=1))
    with on_this_machine(app) as client:
        assert [refusal(client.post("/search", json=BY_URL)) for _ in range(3)] == [(500, "internal")] * 3


# Slots of searches


class HeldEmbedder(FakeEmbedder):
    """Embeds texts only while `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.has_begun = threading.Event()

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.has_begun.set()
        assert self.go.wait(30)
        return super().embed_texts(texts)


@pytest.fixture
def embedder() -> Iterator[HeldEmbedder]:
    held = HeldEmbedder()
    yield held
    held.go.set()


@contextmanager
def full(
    searcher: Searcher, embedder: HeldEmbedder, limits: RequestLimits, access: Access, path: str, body: object
) -> Iterator[tuple[TestClient, Future[Any]]]:
    """A client of an app whose model is busy with a request to `path`."""
    app = create_app(fake_service(searcher, embedder=embedder), limits=limits, access=access)
    with on_this_machine(app) as client, ThreadPoolExecutor(1) as pool:
        embedder.go.clear()
        embedder.has_begun.clear()
        accepted = pool.submit(client.post, path, json=body)
        assert embedder.has_begun.wait(10)
        yield client, accepted


def test_only_searches_are_refused_and_before_their_bodies_are_read(searcher: Searcher, embedder: HeldEmbedder) -> None:
    limits = RequestLimits(max_searches=1)
    with full(searcher, embedder, limits, Access(), "/search", {"text": "star"}) as (client, accepted):
        assert refusal(client.post("/search", content=b"x" * 100_000)) == (429, "overloaded")
        assert client.get("/index").status_code == 200
        embedder.go.set()
        assert accepted.result().status_code == 200
        # A request whose body is not read releases its slot when it ends.
        assert [client.post("/search", content=b"x").status_code for _ in range(3)] == [415] * 3
        assert [search_star(client).status_code for _ in range(3)] == [200] * 3


def test_a_refused_batch_says_why_and_is_not_charged(searcher: Searcher, embedder: HeldEmbedder) -> None:
    def stars(first: int, count: int) -> dict[str, object]:
        return {"searches": [{"text": f"star {number}", "k": 1} for number in range(first, first + count)]}

    limits, access = RequestLimits(max_searches=8), Access(rate_limit_per_minute=12)
    with full(searcher, embedder, limits, access, "/search/batch", stars(0, 5)) as (client, accepted):
        refused = client.post("/search/batch", json=stars(5, 4))
        embedder.go.set()
        assert refusal(refused) == (429, "overloaded")
        assert refused.json()["detail"] == (
            "5 searches are in progress: 4 more are too many; retry soon, or with fewer"
        )
        assert refused.headers["retry-after"] == "1"
        assert len(accepted.result().json()["results"]) == 5
        # The batch cost five and the refused one a single request: six of twelve are left.
        assert [search_star(client).status_code for _ in range(7)] == [200] * 6 + [429]
