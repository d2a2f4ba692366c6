"""Malicious answers: each fetch ends soon, with a reason."""

import gzip
import socket
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedder.errors import FetchError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from tests.support.pictures.fetching import PICTURE, answer, failure, redirect
from tests.support.scripted_server import Route, ScriptedServer, raw

POLICY = replace(FetchPolicy.for_untrusted_urls(), max_bytes=16_000, retries=0)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"
GZIP = OK + b"Content-Encoding: gzip\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
PAGE = b"x" * 4096
BOMB = gzip.compress(bytes(5_000_000))
CHUNKED_BOMB = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BOMB), BOMB)


@pytest.fixture
def server(server: ScriptedServer, connected: object) -> ScriptedServer:
    return server


def failed(path: str, **limits: Any) -> FetchError:
    fetcher = Fetcher(replace(POLICY, **limits), resolve=lambda host, port: ["93.184.216.34"])
    return failure(fetcher, f"http://public.example{path}")


def ok(headers: bytes, body: bytes = b"", *, endless: bytes = b"") -> Route:
    return raw(OK, headers, b"\r\n\r\n", body, endless=endless)


def status(line: bytes, body: bytes = b"", *, endless: bytes = b"") -> Route:
    return raw(b"HTTP/1.1 ", line, b"\r\n\r\n", body, endless=endless)


LENGTHS = {
    "none": (raw(OK, b"\r\n", endless=PAGE), "too_many_bytes"),
    "too large": (raw(OK, b"Content-Length: 999999999999\r\n\r\n"), "too_many_bytes"),
    "of more than comes": (ok(b"Content-Length: 5000", bytes(4000)), "connection_failed"),
    "two": (ok(b"Content-Length: 1, 2", b"x"), "connection_failed"),
    "with letters": (ok(b"Content-Length: ten", endless=PAGE), "too_many_bytes"),
    "negative": (ok(b"Content-Length: -1", endless=PAGE), "too_many_bytes"),
    "of 5,000 digits": (ok(b"Content-Length: " + b"9" * 5000, endless=PAGE), "too_many_bytes"),
    "one over": (ok(b"Content-Length: 16001", bytes(16_001)), "too_many_bytes"),
    "unknown coding": (ok(b"Transfer-Encoding: gzip", endless=PAGE), "too_many_bytes"),
    "and chunks": (raw(OK, b"Content-Length: 5\r\n", CHUNKED[len(OK) :], endless=b"4\r\nxxxx\r\n"), "too_many_bytes"),
}
CHUNKS = {
    "endless": (raw(CHUNKED, endless=b"1000\r\n" + PAGE + b"\r\n"), "too_many_bytes"),
    "padded": (raw(CHUNKED, endless=b"1;" + b"x" * 60_000 + b"\r\ny\r\n"), "too_many_bytes"),
    "one huge": (raw(CHUNKED, b"fffffffffff\r\n", endless=PAGE), "too_many_bytes"),
    "of letters": (raw(CHUNKED, b"zz\r\n"), "connection_failed"),
    "negative": (raw(CHUNKED, b"-5\r\nhello\r\n0\r\n\r\n"), "connection_failed"),
    "minus one": (raw(CHUNKED, b"-1\r\n", endless=PAGE), "connection_failed"),
    "without a size": (raw(CHUNKED, b"\r\n\r\n"), "connection_failed"),
    "cut off": (raw(CHUNKED, b"ff\r\nshort"), "connection_failed"),
    "endless size": (raw(CHUNKED, endless=b"0" * 4096), "connection_failed"),
    "size of 5,000 digits": (raw(CHUNKED, b"f" * 5000, b"\r\n", endless=PAGE), "too_many_bytes"),
    "of one byte": (raw(CHUNKED, endless=b"1\r\nx\r\n" * 1000), "too_many_bytes"),
    "endless trailers": (raw(CHUNKED, b"0\r\n", endless=b"X-A: b\r\n" * 500), "too_many_bytes"),
}
HEADS = {
    "none": (raw(b""), "connection_failed"),
    "endless 100 Continue": (raw(endless=b"HTTP/1.1 100 Continue\r\n\r\n" * 100), "too_many_bytes"),
    "endless headers": (raw(OK, endless=b"X-A: b\r\n" * 100), "connection_failed"),
    "another protocol": (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "connection_failed"),
    "endless status": (raw(b"HTTP/1.1 200 ", endless=PAGE), "connection_failed"),
    "another version": (raw(b"HTTP/9.9 200 OK\r\n\r\n"), "connection_failed"),
    "letters": (status(b"2OO OK"), "connection_failed"),
    "below 100": (status(b"-200 OK"), "connection_failed"),
    "of no kind": (status(b"999 No"), "http_999"),
    "no HTTP": (raw(endless=b"\xff" * 4096), "connection_failed"),
    "switching protocols": (status(b"101 Switching\r\nUpgrade: x", endless=PAGE), "http_101"),
    "early hints": (status(b"103 Hints", OK + b"Content-Length: 1\r\n\r\nx"), "http_103"),
    "a part of it": (status(b"206 Partial\r\nContent-Length: 1", b"x"), "http_206"),
    "header too long": (raw(OK, b"X-A: ", endless=PAGE), "connection_failed"),
    "101 headers": (raw(OK, b"X-A: b\r\n" * 101, b"\r\n"), "connection_failed"),
    "endless 404": (status(b"404 No", endless=PAGE), "http_404"),
    "endless 500": (status(b"500 No", endless=PAGE), "http_500"),
    "endless redirect": (status(b"302 Go\r\nLocation: ftp://x/", endless=PAGE), "forbidden_scheme"),
}
COMPRESSED = {
    "gzip bomb": (raw(GZIP, BOMB), "too_many_bytes"),
    "cut off": (raw(GZIP, gzip.compress(PICTURE)[:-9]), "bad_content_encoding"),
    "not gzip": (raw(GZIP, b"not"), "bad_content_encoding"),
    "brotli": (ok(b"Content-Encoding: br", b"xx"), "bad_content_encoding"),
    "deflate bomb": (ok(b"Content-Encoding: deflate", zlib.compress(bytes(5_000_000), 9)), "too_many_bytes"),
    "bomb in a chunk": (raw(GZIP[:-2], CHUNKED[len(OK) :], CHUNKED_BOMB), "too_many_bytes"),
    "bomb in a bomb": (raw(GZIP, gzip.compress(BOMB * 20)), "too_many_bytes"),
    "endless": (raw(GZIP, endless=gzip.compress(b"x")), "too_many_bytes"),
    "twice": (ok(b"Content-Encoding: gzip, gzip", gzip.compress(gzip.compress(PICTURE))), "bad_content_encoding"),
    "zstd": (ok(b"Content-Encoding: zstd", b"(\xb5/\xfd"), "bad_content_encoding"),
    "bare": (ok(b"Content-Encoding: deflate", zlib.compress(PICTURE)[2:-4]), "bad_content_encoding"),
    "wrong checksum": (raw(GZIP, gzip.compress(PICTURE)[:-8], bytes(8)), "bad_content_encoding"),
}
TYPES = {
    name: (status(b"200 OK\r\nContent-Type:" + kind, body, endless=endless), "not_an_image")
    for name, (kind, body, endless) in {
        "endless events": (b"text/event-stream", b"", b"data: x\n\n" * 99),
        "a stream": (b"multipart/x-mixed-replace; boundary=x", b"", b"--x\r\n" * 99),
        "a page": (b"text/html", b"<html>", b""),
        "a page, on the next line": (b"\r\n text/html", b"<html>", b""),
        "JSON": (b"application/json", b"{}", b""),
        "a document": (b"application/pdf", b"%PDF", b""),
        "imaginary": (b"imaginary/png", PICTURE, b""),
    }.items()
}
TABLES = {"length": LENGTHS, "chunk": CHUNKS, "head": HEADS, "compressed": COMPRESSED, "type": TYPES}


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        pytest.param(route, reason, id=f"{table}: {name}")
        for table, rows in TABLES.items()
        for name, (route, reason) in rows.items()
    ],
)
def test_hostile_answers_end_soon_and_cost_little(server: ScriptedServer, route: Route, reason: str) -> None:
    server.routes["/hostile"] = route
    tracemalloc.start()
    error = failed("/hostile")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.reason == reason, error.message
    assert error.retryable == (reason in ("connection_failed", "http_500", "http_999"))
    assert peak < 8 * 2**20


SLOW = {
    "status-line": (b"", b"H"), "headers": (OK + b"X-Long: ", b"x"), "body": (OK + b"\r\n", b"x"),
    "known-length": (OK + b"Content-Length: 500\r\n\r\n", b"x"), "chunks": (CHUNKED, b"1\r\nx\r\n"),
    "chunk-size": (CHUNKED, b"0"), "trailer": (CHUNKED + b"0\r\n", b"X"), "chunk-extension": (CHUNKED + b"1;", b"x"),
    "compressed": (GZIP, b"\x1f"), "100-continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "redirect": (b"HTTP/1.1 302 Go\r\nLocation: /\r\nX-A: ", b"x"), "nothing": (b"", b""),
}  # fmt: skip


def test_slow_answers_end_with_the_deadline(server: ScriptedServer) -> None:
    for name, (begin, endless) in SLOW.items():
        server.routes[f"/{name}"] = raw(begin, endless=endless, pause=0.03 if endless else 30)
    with ThreadPoolExecutor(len(SLOW)) as pool:
        errors = pool.map(lambda name: failed(f"/{name}", timeout_s=1), SLOW)
    assert {name: (error.reason, error.retryable) for name, error in zip(SLOW, errors, strict=True)} == (
        dict.fromkeys(SLOW, ("timeout", True))
    )


def test_slow_redirects_share_one_deadline(server: ScriptedServer) -> None:
    server.routes["/again"] = redirect("/again", silent_s=0.12)
    error = failed("/again", timeout_s=0.3, max_redirects=50)
    assert error.reason == "timeout"
    assert len(server.requests) <= 3


@pytest.mark.parametrize(
    "retry_after",
    [
        *("9" * 400, "-5", "\xb2", "soon", "1e400", "Mon, 01 Jan 0001 00:00:00 -0000"),
        *("Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 2024 00:00:00 +99999999999999"),
    ],
)
def test_a_nonsensical_retry_after_is_ignored(server: ScriptedServer, retry_after: str) -> None:
    server.routes["/busy"] = answer(b"", status=503, Retry_After=retry_after)
    error = failed("/busy", retries=1, backoff_s=0.01, timeout_s=1)
    assert (error.reason, error.retryable) == ("http_503", True)


# Nearly valid lines, of which answers are made.
LINES = [
    *(b"HTTP/1.1 200 OK", b"HTTP/1.0 200", b"HTTP/1.1 302 Go", b"HTTP/1.1 100 Go on\r\n", b"", b": ", b" folded"),
    *(b"Transfer-Encoding: chunked", b"Content-Length: 5", b"Content-Length: -5", b"Location: /a", b"Retry-After: 0"),
    *(b"Content-Encoding: gzip", b"Location: http://[::1", b"5\r\nhello", b"-1", b"0\r\n", b"ffffffffffffffff"),
]
PIECES = st.sampled_from([*(line + b"\r\n" for line in LINES), gzip.compress(b"x")]) | st.binary(max_size=8)


@given(sent=st.lists(PIECES, max_size=12).map(b"".join))
def test_arbitrary_bytes_give_a_body_or_a_fetch_error(sent: bytes) -> None:
    ends: list[socket.socket] = []

    def connect(address: object, timeout: float) -> socket.socket:
        theirs, ours = socket.socketpair()
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        ours.settimeout(timeout)
        ends.append(theirs)
        return ours

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embedder.fetch.public_addresses.socket.create_connection", connect)
        fetcher = Fetcher(POLICY, resolve=lambda host, port: ["93.184.216.34"])
        with suppress(FetchError):
            assert len(fetcher.fetch("http://public.example/a")) <= POLICY.max_bytes
    for end in ends:
        end.close()
