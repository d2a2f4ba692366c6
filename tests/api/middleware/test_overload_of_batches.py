"""Batches of searches where there are only so many places."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.requests import Request

from api.errors import Problem
from api.http.app import create_app
from api.http.middleware.admission import Slots, admit
from api.settings import Access, RequestLimits
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import PLAIN, fake_service, make_collection
from tests.support.servers.guarded_app import on_this_machine, told


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
