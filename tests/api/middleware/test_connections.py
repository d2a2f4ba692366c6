"""Connections that send or read nothing are closed, and do not shut out others."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest
from fastapi import FastAPI, Response

from api.connections import BoundedProtocol
from api.http.app import create_app
from api.local import running
from benchmarks.common.waiting import eventually
from index.search import Searcher
from tests.support.collections.small_collection import fake_service

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def url(searcher: Searcher) -> Iterator[httpx.URL]:
    with running(create_app(fake_service(searcher))) as url:
        yield httpx.URL(url)


def connect(url: httpx.URL) -> socket.socket:
    connection = socket.create_connection((url.host, url.port or 80))
    connection.settimeout(20)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it; skips what it sent."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        try:
            while connection.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True
    return False


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        REQUEST[:1],
        REQUEST[:-2],
        b"POST /search HTTP/1.1\r\n",
        b"\r\n\r\n",
        pytest.param(REQUEST, marks=pytest.mark.slow),  # idle connections have five seconds
        REQUEST + REQUEST[:10],
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 50_000,
    ],
)
def test_a_connection_without_a_whole_head_is_closed(
    url: httpx.URL, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(BoundedProtocol, "head_s", 0.1)
    with connect(url) as connection:
        connection.sendall(sent)
        eventually(lambda: is_closed(connection), "closed")


def test_a_head_that_trickles_in_is_cut_off(url: httpx.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "head_s", 0.2)
    with connect(url) as connection, suppress(ConnectionError):
        for number in range(10_000):
            connection.sendall(REQUEST[number : number + 1] if number < 20 else b"x")
            if is_closed(connection):
                return
            time.sleep(0.01)
    assert number < 9_999


def test_a_slow_body_and_a_reused_connection_are_not_cut_off(url: httpx.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "head_s", 0.3)
    body = b'{"id": "red.png", "k": 1}'
    head = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with connect(url) as connection:
        for _ in range(2):
            connection.sendall(head % len(body) + body[:5])
            time.sleep(0.4)
            connection.sendall(body[5:])
            answer = b""
            while not answer.endswith(b"}}"):
                answer += connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 OK")


def test_idle_connections_do_not_shut_out_others(url: httpx.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "max_connections", 20)
    with ExitStack() as stack, httpx.Client(base_url=url, timeout=20) as client:
        idle = [stack.enter_context(connect(url)) for _ in range(200)]
        for connection in idle[::2]:
            with suppress(ConnectionError):
                connection.sendall(REQUEST[:20])
        assert [client.get("/healthz").status_code for _ in range(20)] == [200] * 20
        eventually(lambda: sum(not is_closed(each) for each in idle) <= 20, "others closed")


def test_pipelined_requests_are_dropped(url: httpx.URL) -> None:
    with connect(url) as connection:
        connection.sendall(500 * REQUEST)
        answer = b""
        with suppress(ConnectionError):
            while received := connection.recv(1 << 16):
                answer += received
    assert answer.count(b"HTTP/1.1 200 OK") == 1


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "unread_s", 0.1)
    app, size = FastAPI(), 50_000_000  # more than the system keeps for a caller that reads nothing
    app.get("/large")(lambda: Response(bytes(size)))
    with running(app) as url, connect(httpx.URL(url)) as connection:
        connection.sendall(REQUEST.replace(b"/healthz", b"/large"))
        time.sleep(0.5)
        received = 0
        with suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                received += len(part)
    assert 0 < received < size
