"""How much is worked on at once and for how long."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from numpy.typing import NDArray
from starlette.requests import Request

from api.errors import Problem
from api.http.app import create_app
from api.http.middleware.admission import Slots, admit
from api.http.middleware.auth import install_access
from api.http.problems import install_problems
from api.local import running
from api.settings import Access, RequestLimits
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import PLAIN, fake_service, make_collection
from tests.support.servers.guarded_app import guarded, local, on_this_machine, told


class Work:
    """Holds whoever does it until `finish`."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.begun.release()
        assert self.may_end.wait(30)


@contextmanager
def served(access: Access, work: Callable[[], object]) -> Iterator[tuple[httpx.Client, ThreadPoolExecutor]]:
    with (
        running(guarded(access, work)) as url,
        httpx.Client(base_url=url, timeout=30) as client,
        ThreadPoolExecutor(20) as pool,
    ):
        yield client, pool


def begin(client: httpx.Client, pool: ThreadPoolExecutor, work: Work, count: int) -> list[Future[httpx.Response]]:
    futures = [pool.submit(client.post, "/search") for _ in range(count)]
    for _ in futures:
        assert work.begun.acquire(timeout=10)
    return futures


def test_what_is_too_much_is_refused_at_once_and_the_rest_is_answered() -> None:
    work = Work()
    with served(Access(max_ongoing_requests=3), work) as (client, pool):
        accepted = begin(client, pool, work, 3)
        refused = [client.post("/search", content=b"x" * 100_000) for _ in range(20)]
        assert {told(response) for response in refused} == {(429, "overloaded")}
        assert {response.headers["retry-after"] for response in refused} == {"1"}
        # Machines that ask whether it lives are answered, whoever else is not.
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics", "/index")] == [
            *(200, 200, 200, 429)
        ]
        work.may_end.set()
        assert [future.result().status_code for future in accepted] == [200] * 3
        assert [client.post("/search").status_code for _ in range(5)] == [200] * 5


def test_no_answer_in_time_is_said_in_time_and_the_place_stays_taken_until_the_work_ends() -> None:
    work = Work()
    with served(Access(max_ongoing_requests=1, request_timeout_s=0.3), work) as (client, pool):
        late = begin(client, pool, work, 1)[0].result()
        assert told(late) == (503, "timeout")
        assert late.headers["retry-after"] == "1"
        assert late.headers["x-content-type-options"] == "nosniff"
        assert told(client.post("/search")) == (429, "overloaded")
        work.may_end.set()
        deadline = time.monotonic() + 10
        while client.get("/index").status_code == 429 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client.post("/search").status_code == 200


def test_a_defect_frees_its_place() -> None:
    def fail() -> None:
        raise RuntimeError("secret")

    client = local(Access(max_ongoing_requests=1), work=fail)
    assert [told(client.post("/search")) for _ in range(3)] == [(500, "internal")] * 3


# What searches take


def test_searches_are_refused_before_their_bodies_are_read_and_other_pages_are_not() -> None:
    places = Slots(1, "searches are being worked on")
    app = FastAPI()
    install_problems(app)
    app.add_api_route("/index", lambda: "index")
    app.add_api_route("/search", lambda: "found", methods=["POST"])
    install_access(app, Access(), places)
    client = on_this_machine(app)
    with places.taking():
        assert told(client.post("/search", content=b"x" * 100_000)) == (429, "overloaded")
        assert client.get("/index").status_code == 200
    # A route that never says that it has read its body gives the place back when it ends.
    assert [client.post("/search").status_code for _ in range(3)] == [200] * 3


def arrived(places: Slots) -> Request:
    """A request whose body has come while a place was kept for it."""
    return Request({"type": "http", "likeness.kept": places.keep_one()})


def let_in(request: Request, places: Slots, count: int) -> bool:
    try:
        admit(request, places, count)
    except Problem:
        return False
    return True


def test_places_kept_for_bodies_do_not_let_batches_pile_up() -> None:
    async def run() -> None:
        places = Slots(8, "searches are being worked on")
        requests = [arrived(places) for _ in range(8)]
        # Half of all have to be free, which they are once four have given theirs back; then 64 are on their way.
        assert [let_in(request, places, 64) for request in requests] == [False] * 3 + [True] + [False] * 4
        await asyncio.sleep(0)
        assert places.taken == 0

        singles = [arrived(places) for _ in range(8)]
        assert [let_in(request, places, 1) for request in singles] == [True] * 8

    asyncio.run(run())


@pytest.mark.parametrize(
    ("most", "taken", "count", "enough"),
    [(8, 4, 4, True), (8, 5, 4, False), (8, 4, 64, True), (8, 5, 64, False), (1, 0, 64, True), (1, 1, 2, False)],
)
def test_a_batch_needs_as_many_free_places_as_it_has_searches_or_half_of_all(
    most: int, taken: int, count: int, enough: bool
) -> None:
    async def run() -> None:
        places = Slots(most, "searches are being worked on")
        with places.taking(taken):
            assert let_in(Request({"type": "http"}), places, count) is enough

    asyncio.run(run())


class HeldEmbedder(FakeEmbedder):
    """Embeds no text while `go` is not set."""

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


def test_a_batch_that_is_refused_is_told_why_and_not_charged(embedder: HeldEmbedder, tmp_path: Path) -> None:
    searcher = make_collection(tmp_path, PLAIN, embedder)
    service = fake_service(searcher, embedder=embedder)
    app = create_app(service, limits=RequestLimits(max_searches=8), access=Access(rate_limit_per_minute=12))

    def stars(first: int, count: int) -> dict[str, object]:
        return {"searches": [{"text": f"star {number}", "k": 1} for number in range(first, first + count)]}

    with on_this_machine(app) as client, ThreadPoolExecutor(1) as pool:
        embedder.go.clear()
        embedder.has_begun.clear()
        accepted = pool.submit(client.post, "/search/batch", json=stars(0, 5))
        assert embedder.has_begun.wait(10)
        refused = client.post("/search/batch", json=stars(5, 4))
        embedder.go.set()
        assert told(refused) == (429, "overloaded")
        assert refused.json()["detail"] == (
            "5 searches are being worked on: 4 more are too many; come back soon, or with fewer"
        )
        assert refused.headers["retry-after"] == "1"
        assert len(accepted.result().json()["results"]) == 5
        # Five, and one for having asked: six of the twelve are left.
        assert [client.post("/search", json={"text": "star"}).status_code for _ in range(7)] == [200] * 6 + [429]
