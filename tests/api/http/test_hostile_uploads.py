"""Pictures that are costly to decode: a server refuses each, and still answers others."""

import asyncio
import base64
import gc
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.middleware.exceptions import ExceptionMiddleware

from api.build_service import build_service
from api.http.app import create_app
from api.http.middleware.admission import ConcurrencyLimit, Slots
from api.http.problem_responses import PROBLEM_HANDLERS
from api.observe.log import is_awaited, record_request
from api.search.service import SearchService
from api.settings import ServeSettings
from benchmarks.hostile import pictures as hostile
from embedder.images.decoder_pool import DecodePool
from index.search import Searcher
from tests.support.collections.small_collection import COLOURS, fake_service, png
from tests.support.fake_embedder import FakeEmbedder

ENDLESS = hostile.progressive_jpeg(12_000, 12_000, 64)  # five seconds of work


@pytest.fixture
def service(searcher: Searcher) -> Iterator[SearchService]:
    with closing(DecodePool(1, timeout_s=1, max_wait_s=0.1, max_waiting=1)) as decoders:
        yield fake_service(
            searcher,
            queries={"http://example.com/endless.jpg": ENDLESS},
            pictures={"memory:red.png": ENDLESS},
            decoders=decoders,
        )


def upload(client: TestClient, data: bytes) -> Any:
    return client.post("/search", files={"image": ("picture", data)})


def test_a_picture_that_takes_too_long_is_refused_from_any_source(client: TestClient, service: SearchService) -> None:
    service.decoders.start()
    service.decoders._timeout_s = 0.2
    answers = [
        upload(client, ENDLESS),
        client.post("/search", json={"image": base64.b64encode(ENDLESS).decode()}),
        client.post("/search", json={"url": "http://example.com/endless.jpg"}),
    ]
    assert [(answer.status_code, answer.json()["reason"]) for answer in answers] == [(422, "decode_timeout")] * 3
    thumbnail = client.get("/picture?id=red.png&size=64")
    assert (thumbnail.status_code, thumbnail.json()["reason"]) == (502, "decode_timeout")
    service.decoders._timeout_s = 60
    assert upload(client, png(COLOURS["red.png"])).status_code == 200


def test_too_many_heavy_pictures_get_429(client: TestClient) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: upload(client, ENDLESS), range(4)))
    assert sorted(answer.status_code for answer in answers) == [422, 429, 429, 429]
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["type"] == "urn:likeness:problem:overloaded"
            assert answer.headers["retry-after"] == "2"
    assert upload(client, png(COLOURS["red.png"])).status_code == 200


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (hostile.progressive_jpeg(8_000, 6_000, 300), "too_many_scans"),
        (hostile.gif(12_200, 12_200), "too_many_pixels"),
        (hostile.webp(12_200, 12_200), "too_many_pixels"),
        (hostile.png(10_000, 6_000, bits=1, colour=0), "too_many_pixels"),
    ],
    ids=["jpeg", "gif", "webp", "png"],
)
def test_queries_have_a_lower_pixel_limit_than_the_collection(plain: Path, data: bytes, reason: str) -> None:
    service = build_service(ServeSettings(collection=str(plain)), load_model=lambda _: FakeEmbedder())
    with closing(service.decoders), TestClient(create_app(service)) as client:
        answer = upload(client, data)
        assert (answer.status_code, answer.json()["reason"]) == (422, reason)


def limited(app: Any, *limits: Any) -> ExceptionMiddleware:
    """An app behind a ConcurrencyLimit, whose problems are answered."""
    return ExceptionMiddleware(ConcurrencyLimit(app, *limits), PROBLEM_HANDLERS)


async def sent_by(app: Any, receive: Any, method: str, timeout_s: float = 60) -> list[MutableMapping[str, Any]]:
    """The messages that an app sends behind a ConcurrencyLimit of one request and this timeout."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/search", "headers": []}
    await limited(app, 1, timeout_s, Slots(1, "searches"))(scope, receive, send)
    return sent


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("leaves", [True, False])
def test_work_learns_that_nobody_waits_for_it(leaves: bool, method: str) -> None:
    """A caller who leaves, and one who got a timeout. The app does not read the body of a GET."""
    awaited: list[bool] = []
    messages = [{"type": "http.request", "body": b""}]

    async def app(_: Any, receive: Any, __: Any) -> None:
        if method == "POST":
            await receive()
        awaited.append(is_awaited())
        while is_awaited():
            await asyncio.sleep(0.01)
        awaited.append(is_awaited())

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.sleep(0.05 if leaves else 60)
        return {"type": "http.disconnect"}

    async def ask() -> list[MutableMapping[str, Any]]:
        with record_request("one"):
            sent = await sent_by(app, receive, method, 60 if leaves else 0.05)
        while len(awaited) < 2:
            await asyncio.sleep(0.01)
        return sent

    sent = asyncio.run(asyncio.wait_for(ask(), 30))
    assert awaited == [True, False]
    assert [message.get("status") for message in sent if message["type"] == "http.response.start"] == (
        [] if leaves else [503]
    )


@pytest.mark.parametrize(("waited_s", "statuses"), [(0.0, [429, None, 200]), (60.0, [None, None, 429])])
def test_bodies_that_never_arrive_do_not_shut_out_others(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, statuses: list[int | None]
) -> None:
    """Of two requests whose bodies do not come, the older one makes place for a third if it has waited long enough."""
    monkeypatch.setattr("api.http.middleware.admission._RESERVED_S", waited_s)
    answers: list[int | None] = [None] * 3

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})

    async def ask(limit: ExceptionMiddleware, number: int, *, arrives: bool) -> None:
        parts = [{"type": "http.request", "body": b"{", "more_body": not arrives}]

        async def receive() -> MutableMapping[str, Any]:
            if parts:
                return parts.pop()
            await asyncio.sleep(60)
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answers[number] = message["status"]

        await limit({"type": "http", "method": "POST", "path": "/search", "headers": []}, receive, send)

    async def ask_all() -> None:
        limit = limited(app, 2, 60, Slots(9, "searches"))
        slow = [asyncio.create_task(ask(limit, number, arrives=False)) for number in range(2)]
        await asyncio.sleep(0.01)
        await ask(limit, 2, arrives=True)
        await asyncio.wait(slow, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        for task in slow:
            task.cancel()

    asyncio.run(asyncio.wait_for(ask_all(), 30))
    assert answers == statuses


def test_an_unreadable_connection_is_not_a_disconnect() -> None:
    unretrieved: list[dict[str, Any]] = []

    async def app(_: Any, __: Any, send: Any) -> None:
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})

    async def receive() -> MutableMapping[str, Any]:
        raise RuntimeError("the proxy is gone")

    async def ask() -> list[MutableMapping[str, Any]]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
        sent = await sent_by(app, receive, "GET")
        gc.collect()  # reports an exception that nobody retrieved from its task
        return sent

    sent = asyncio.run(asyncio.wait_for(ask(), 30))
    assert [message.get("status", message.get("body")) for message in sent] == [200, b"here"]
    assert unretrieved == []
