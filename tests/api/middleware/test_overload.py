"""How much is worked on at once and for how long."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from fastapi import FastAPI

from api.errors import Problem
from api.http.middleware.admission import Slots
from api.http.middleware.auth import install_access
from api.http.problems import install_problems
from api.local import running
from api.settings import Access
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


def test_a_place_is_kept_for_a_body_on_its_way_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.http.middleware.admission._KEPT_S", 0.2)

    async def keep() -> None:
        places = Slots(1, "searches are being worked on")
        kept = places.keep_one()
        with pytest.raises(Problem, match="1 searches are being worked on: come back soon"):
            places.keep_one()
        assert (kept.give_back(), kept.give_back()) == (True, False)
        slow = places.keep_one()
        await asyncio.sleep(0.3)
        assert not slow.give_back()
        with places.taking(3), pytest.raises(Problem):
            places.require()
        places.require()

    asyncio.run(keep())


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
