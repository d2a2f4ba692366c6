"""How much is worked on at once and for how long, the headers of every answer, and the settings of all this."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.access import install_access
from api.errors import KeysError, ListenError, Problem
from api.keys import KeyScope, add_key
from api.local import running
from api.overload import Places
from api.problems import install_problems
from api.settings import Access, RequestLimits, ServeSettings
from tests.guarded_app import guarded, local, on_this_machine, told


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
        started = time.monotonic()
        refused = [client.post("/search", content=b"x" * 100_000) for _ in range(20)]
        assert time.monotonic() - started < 5
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
        started = time.monotonic()
        late = begin(client, pool, work, 1)[0].result()
        assert 0.25 < time.monotonic() - started < 5
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


def test_ten_times_the_load_does_not_pile_up() -> None:
    """Of 40 who ask again and again, four are inside at any time: who is let in waits for three others at most."""
    inside: list[int] = []
    seen: list[int] = []
    one_at_a_time = threading.Lock()

    def work() -> None:
        inside.append(1)
        seen.append(len(inside))
        with one_at_a_time:
            time.sleep(0.01)
        inside.pop()

    with served(Access(max_ongoing_requests=4), work) as (client, _):

        def ask(_: int) -> list[int]:
            end = time.monotonic() + 1.0
            return [client.post("/search").status_code for _ in iter(lambda: time.monotonic() < end, False)]

        with ThreadPoolExecutor(40) as crowd:
            statuses = [status for asked in crowd.map(ask, range(40)) for status in asked]
        assert set(statuses) == {200, 429}
        assert max(seen) == 4
        assert len(seen) == statuses.count(200)
        assert client.post("/search").status_code == 200


# What searches take


def test_a_place_is_kept_for_a_body_on_its_way_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.overload._KEPT_S", 0.2)

    async def keep() -> None:
        places = Places(1, "searches are being worked on")
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
    places = Places(1, "searches are being worked on")
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


# Headers


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


# Settings


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
