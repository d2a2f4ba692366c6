"""The Python client: its requests and results with a scripted server, and with the real one."""

import email.parser
import email.policy
import io
import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from api.client import LikenessClient
from api.client.query import Example, Search
from api.errors import ClientError, ProblemAnswered, RequestRefused, ServerUnavailable, ServerUnreachable
from api.http import requests
from api.http.app import create_app
from api.local import listening, running
from api.search.query import Part, Query, SearchResult
from api.search.service import SearchService
from benchmarks.common.waiting import eventually
from embedder.identity import ModelIdentity
from index.collection import Collection
from index.matches import MATCH_COLUMNS, Match
from tests.support.collections.small_collection import PLAIN, add_pictures, followed_service, make_collection, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.pictures.sample_images import rotated
from tests.support.scripted_server import Reply, Route, ScriptedServer, raw, scripted

MODEL = {"id": "fake", "revision": None, "fingerprint": "f1", "dim": 2}
MATCH: dict[str, Any] = {"image_id": "a/b.png", "score": 0.5, "uri": "memory:a/b.png", "percentile": 99.5}
MATCH |= {"metadata": {"label": "red"}}
ANSWER: dict[str, Any] = {
    "matches": [MATCH | {"picture": "/picture?id=a/b.png", "duplicates": ["c.png"], "box": [0, 0.45, 1, 0.55]}],
    "first": 1,
    "total": 4,
    "exact": False,
    "groups": None,
    "facets": {"label": {"values": [{"value": "red", "count": 4}], "others": 0}},
    "cursor": "next",
    "index": {"version": "000003", "ntotal": 7},
    "searched": {"rows": 5, "of": 7},
    "model": MODEL,
    "timing_ms": {"fetch": 0.0, "decode": 1.0, "embed": 2.0, "search": 0.5, "total": 3.5},
}
RESULT = SearchResult(
    matches=[Match(**MATCH, duplicates=("c.png",), box=(0, 0.45, 1, 0.55))],
    total=4,
    exact=False,
    facets=ANSWER["facets"],
    cursor="next",
    version="000003",
    ntotal=7,
    searched=5,
    model=ModelIdentity(model_id="fake", revision=None, fingerprint="f1", dim=2),
    timing_ms=ANSWER["timing_ms"],
)
FOUND = Reply(document=ANSWER)


def problem(slug: str, status: int, headers: dict[str, str] | None = None, **members: Any) -> Reply:
    document = {"type": f"urn:likeness:problem:{slug}", "title": slug, "status": status, "detail": "why", **members}
    return Reply(status=status, document=document, headers=headers or {})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted(FOUND) as server:
        yield server


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[LikenessClient]:
    with LikenessClient(server.url) as client:
        yield client


def test_importing_the_client_imports_no_server_packages() -> None:
    heavy = {"fastapi", "starlette", "torch", "transformers", "faiss", "ray", "pyarrow", "PIL"}
    code = f"import sys, api.client.client; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# What is sent


def test_client_and_server_know_the_same_fields() -> None:
    for ours, theirs in ((Example, requests.Example), (Search, requests.SearchRequest)):
        assert ours.__annotations__.keys() == theirs.__annotations__.keys()


def test_a_search_returns_the_librarys_objects(client: LikenessClient, server: ScriptedServer) -> None:
    assert client.search(text="a star") == RESULT
    (request,) = server.requests
    assert (request.method, request.path, request.document) == ("POST", "/search", {"text": "a star"})
    assert request.headers["content-type"] == "application/json"
    assert request.headers["api-version"] == "1"
    assert "authorization" not in request.headers


def test_every_option_is_sent(client: LikenessClient, server: ScriptedServer) -> None:
    plain: dict[str, Any] = {"id": "a.png", "k": 3, "offset": 2, "min_score": 0.25, "distinct": True}
    plain |= {"crop": [0, 0, 0.5, 1], "min_percentile": 99, "diversity": 0.3}
    where = {"day": {"$gte": datetime(2026, 1, 2, tzinfo=UTC)}, "size": {"$in": np.arange(2)}}
    client.search(**plain, filter=where, fields=("label",))
    client.search(embedding=np.array([0.5, -1.0]), text=None, min_score=None)
    client.search(queries=[{"image": b"GIF"}, {"text": "night", "weight": -0.5}, {"embedding": [1, 0]}], k=2)
    every, vector, mix = server.requests
    sent = {"day": {"$gte": "2026-01-02T00:00:00+00:00"}, "size": {"$in": [0, 1]}}
    assert every.document == {**plain, "filter": sent, "fields": ["label"]}
    assert vector.document == {"embedding": [0.5, -1.0]}
    parts = [{"image": "R0lG"}, {"text": "night", "weight": -0.5}, {"embedding": [1.0, 0.0]}]
    assert mix.document == {"queries": parts, "k": 2}


def form(server: ScriptedServer) -> dict[str, bytes]:
    """The parts of the last multipart form, by name."""
    request = server.requests[-1]
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body)
    parts: dict[str, bytes] = {}
    for part in message.iter_parts():
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        parts[str(part.get_param("name", header="content-disposition"))] = payload
    return parts


def test_a_picture_is_sent_as_a_file(client: LikenessClient, server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "ü.jpg"
    path.write_bytes(b"\xff\xd8 picture")
    assert client.search(image=path, k=3, filter={"label": "ü"}, fields=["label"], distinct=0.9) == RESULT
    assert form(server) == {
        "k": b"3",
        "filter": b'{"label": "\\u00fc"}',
        "fields": b'["label"]',
        "distinct": b"0.9",
        "image": b"\xff\xd8 picture",
    }
    client.search(image=str(path))
    assert form(server) == {"image": b"\xff\xd8 picture"}
    client.search(image=b"bytes")
    assert form(server) == {"image": b"bytes"}


def test_a_pil_image_is_sent_upright_as_png(client: LikenessClient, server: ScriptedServer) -> None:
    """It is sent as the server would see its file."""
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    image = Image.fromarray(pixels)
    for each in (image, Image.open(io.BytesIO(rotated(image, 6, "png")))):
        client.search(image=each)
        sent = Image.open(io.BytesIO(form(server)["image"]))
        assert sent.format == "PNG"
        assert np.array_equal(np.asarray(sent), pixels)
    client.search(image=Image.new("CMYK", (2, 2), (0, 255, 255, 0)))
    assert Image.open(io.BytesIO(form(server)["image"])).convert("RGB").getpixel((0, 0)) == (255, 0, 0)


def test_invalid_arguments_are_not_sent(client: LikenessClient, server: ScriptedServer, tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"image": tmp_path / "none.png"}, FileNotFoundError, r"none\.png"),
        ({"image": np.zeros((2, 2, 3))}, TypeError, "expected a picture as a path, .* or a PIL image, got ndarray"),
        ({"text": "a", "filter": {"label": object()}}, TypeError, "expected a value that JSON can hold"),
    ]
    for search, error, message in wrong:
        with pytest.raises(error, match=message):
            client.search(**search)
    words: Any = "a red star"
    with pytest.raises(TypeError, match='by its name, as in text="a red star"'):
        client.search(words)
    assert server.requests == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.embed_texts("red"), "got one text, 'red': expected a list of texts"),
        (lambda client: client.embed_texts({"a": "red"}), "got one text, {'a': 'red'}: expected a list of texts"),
        (lambda client: client.embed_texts(5), "got one text, 5: expected a list of texts"),
        (
            lambda client: client.embed_texts(pd.DataFrame({"a": ["red"]})),
            "got a table, a DataFrame, not one of its columns: expected a list of texts",
        ),
        (lambda client: client.search_batch(pa.table({"text": []})), "got a table, a Table, not one of its columns:"),
        (lambda client: client.search_batch("a star"), "got one search, 'a star': expected a list of searches"),
        (
            lambda client: client.search_batch({"text": "red"}),
            "got one search, {'text': 'red'}: expected a list of searches; use search(…) for one",
        ),
        (lambda client: client.embed_images("x.jpg"), "got one picture, 'x.jpg': expected a list of pictures"),
        (lambda client: client.embed_images(Path("x.jpg")), "got one picture, PosixPath('x.jpg'): expected a list of"),
        (lambda client: client.embed_images(b"GIF"), "got one picture, b'GIF': expected a list of pictures"),
        (lambda client: client.embed_images(io.BytesIO(b"GIF")), "got one picture, <_io.BytesIO object at "),
        (lambda client: client.embed_images(Image.new("L", (2, 2))), "got one picture, <PIL.Image.Image image mode=L"),
        (lambda client: client.image(3), "got id 3: expected text"),
        (lambda client: client.picture(b"a.jpg", 64), "got id b'a.jpg': expected text"),
    ],
)
def test_arguments_of_another_type_are_not_sent(
    client: LikenessClient, server: ScriptedServer, call: Callable[[LikenessClient], object], message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        call(client)
    assert server.requests == []


def test_an_images_row_is_flat_as_in_the_library(client: LikenessClient, server: ScriptedServer) -> None:
    document = {"image_id": "a", "width": 3, "metadata": {"label": "x", "picture": 7}, "picture": "/picture?id=a"}
    server.replies = [Reply(document=document), Reply(data=b"\x89PNG")]
    assert client.image("a") == {"image_id": "a", "width": 3, "label": "x", "picture": 7}
    assert client.picture("a") == b"\x89PNG"


def test_a_result_is_a_data_frame() -> None:
    odd = replace(RESULT.matches[0], metadata={"label": "red", "score": 7})
    frame = replace(RESULT, matches=[*RESULT.matches, odd]).to_pandas()
    assert list(frame.columns) == [*MATCH_COLUMNS, "label", "metadata.score"]
    assert frame.iloc[1].to_list() == [
        2,
        0.5,
        99.5,
        "a/b.png",
        "memory:a/b.png",
        ("c.png",),
        (0, 0.45, 1, 0.55),
        *(None, pd.NA, None, pd.NA),
        "red",
        7,
    ]
    assert list(replace(RESULT, matches=[]).to_pandas().columns) == [*MATCH_COLUMNS]


def test_a_result_is_a_sequence_of_matches_whose_ranks_start_after_the_offset(
    client: LikenessClient, server: ScriptedServer
) -> None:
    refused = {"problem": {"type": "urn:likeness:problem:invalid-request", "status": 422, "detail": "k"}}
    page = {"ok": ANSWER | {"first": 11}}
    server.replies = [
        Reply(document=ANSWER | {"first": 21}),
        Reply(document={"results": [refused, {"ok": ANSWER}, page]}),
    ]
    found = client.search(text="a", offset=20)
    assert [*found] == [found[0]] == found.matches == RESULT.matches
    assert len(found) == 1
    assert found.to_pandas()["rank"].tolist() == [21]
    _, *pages = client.search_batch(({"text": "a", "offset": offset} for offset in (5, 0, 10)), k=5)
    assert [result.to_pandas()["rank"].tolist() for result in pages if isinstance(result, SearchResult)] == [[1], [11]]


# Batches


def test_a_batch_has_results_and_refusals_in_order(client: LikenessClient, server: ScriptedServer) -> None:
    invalid = {"type": "urn:likeness:problem:invalid-request", "status": 422, "detail": "k", "errors": [{"field": "k"}]}
    busy = {"type": "urn:likeness:problem:rate-limited", "status": 429, "detail": "later", "retry_after_s": 1.5}
    results = [{"ok": ANSWER, "problem": None}, {"problem": invalid}, {"problem": busy}]
    server.replies = [Reply(document={"results": results})]
    others: list[Search] = [{"text": "a"}, {"id": "x", "filter": {"label": "y"}}]
    first, second, third = client.search_batch([{"image": b"GIF", "k": 0}, *others])
    assert server.requests[0].path == "/search/batch"
    assert server.requests[0].document == {"searches": [{"image": "R0lG", "k": 0}, *others]}
    assert first == RESULT
    assert isinstance(second, RequestRefused)
    assert (second.status, second.errors) == (422, [{"field": "k"}])
    assert isinstance(third, ServerUnavailable)
    assert third.retry_after == 1.5


def test_searches_are_sent_64_at_a_time(client: LikenessClient, server: ScriptedServer) -> None:
    server.replies = [Reply(document={"results": [{"ok": ANSWER}] * n}) for n in (64, 64, 2)]
    assert client.search_batch({"text": str(n)} for n in range(130)) == [RESULT] * 130
    sent = [[search["text"] for search in request.document["searches"]] for request in server.requests]
    assert sent == [[str(n) for n in some] for some in (range(64), range(64, 128), range(128, 130))]


def test_options_apply_to_the_searches_of_a_batch_that_do_not_set_them(
    client: LikenessClient, server: ScriptedServer
) -> None:
    server.replies = [Reply(document={"results": [{"ok": ANSWER}] * 3})]
    searches: list[Any] = [{"text": "a"}, {"text": "b", "k": 1}, {"text": "c", "k": None}]
    client.search_batch(searches=searches, k=5, filter={"label": "x"})
    assert server.requests[0].document == {
        "searches": [{"k": k, "filter": {"label": "x"}, "text": text} for text, k in (("a", 5), ("b", 1), ("c", 5))]
    }


def embedded(*vectors: list[float], fingerprint: str = "f1") -> Reply:
    return Reply(document={"model": MODEL | {"fingerprint": fingerprint}, "results": [{"ok": v} for v in vectors]})


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has 16 kB, instead of 16 MB."""
    monkeypatch.setattr("api.client.client._BATCH_BYTES", 2**14)


@pytest.mark.usefixtures("small_batches")
def test_large_pictures_are_sent_in_smaller_batches(client: LikenessClient, server: ScriptedServer) -> None:
    """At most so much text per request, unless one picture is larger; and nothing is read too early."""
    read = []

    def pictures() -> Iterator[bytes]:
        for size in (5, 5, 13, 5, 5):  # kB; base64 makes them a third larger
            read.append(len(server.requests))
            yield bytes(size * 2**10)

    server.replies = [embedded([1.0, 0.0], [1.0, 0.0]), embedded([0.0, 1.0]), embedded([1.0, 0.0], [1.0, 0.0])]
    assert client.embed_images(pictures())[:, 1].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert [len(request.document["images"]) for request in server.requests] == [2, 1, 2]
    assert read == [0, 0, 0, 1, 2]


@pytest.mark.usefixtures("small_batches")
def test_a_picture_that_is_too_large_for_a_request_is_the_only_one_refused(
    client: LikenessClient, server: ScriptedServer
) -> None:
    pictures = [b"GIF", bytes(13 * 2**10), b"GIF"]
    one, too_large = Reply(document={"results": [{"ok": ANSWER}]}), problem("too-large", 413)
    server.replies = [one, too_large, one]
    first, second, third = client.search_batch({"image": picture} for picture in pictures)
    assert [first, third] == [RESULT] * 2
    assert isinstance(second, RequestRefused)
    assert second.status == 413
    server.replies = [embedded([1.0, 0.0]), too_large]
    with pytest.raises(RequestRefused, match=r"^images\[1\]: why"):
        client.embed_images(pictures)


OTHER_MODEL = [embedded(*[[1.0, 0.0]] * 64), embedded([1.0, 0.0], fingerprint="f2")]
NO_JSON = r"expected a JSON object from .*/search, got .* a Likeness server"


@pytest.mark.parametrize(
    ("replies", "call", "message"),
    [
        (OTHER_MODEL, lambda client: client.embed_texts(["a"] * 65), "the server has switched models"),
        ([embedded([1.0])], lambda client: client.embed_texts(["a", "b"]), "expected 2 results from /embed, got 1"),
        ([Reply(data=b"<html>hello")], lambda client: client.search(text="a"), NO_JSON),
        ([Reply(data=b"[1]")], lambda client: client.search(text="a"), NO_JSON),
        (
            [Reply(document={"matches": []})],
            lambda client: client.search(text="a"),
            r"expected \(KeyError\('index'\)\)",
        ),
    ],
)
def test_unexpected_answers_are_refused(
    client: LikenessClient, server: ScriptedServer, replies: list[Reply], call: Any, message: str
) -> None:
    server.replies = list(replies)
    with pytest.raises(ClientError, match=message):
        call(client)


# Refusals


def test_a_proxys_page_is_a_refusal_too(client: LikenessClient, server: ScriptedServer) -> None:
    server.replies = [Reply(status=403, data=b"<html>", headers={"Content-Type": "text/html"})]
    with pytest.raises(RequestRefused, match="answers 403 Forbidden without a problem document") as caught:
        client.index()
    assert (caught.value.type, caught.value.status) == ("about:blank", 403)


# Retries


@pytest.mark.parametrize(
    "failure",
    [
        problem("not-ready", 503),
        problem("picture-unavailable", 502, retryable=True),
        Reply(status=504, data=b"<html>"),
        Reply(hang_up=True),
        Reply(document=ANSWER, missing=9),
        problem("overloaded", 429),
    ],
)
def test_transient_failures_are_retried(client: LikenessClient, server: ScriptedServer, failure: Reply) -> None:
    server.replies = [failure, failure, FOUND]
    assert client.search(image=b"GIF") == RESULT
    assert len({request.body for request in server.requests}) == 1


@pytest.mark.parametrize(
    ("failure", "retries", "requests", "kind", "retry_after"),
    [
        (problem("internal", 500), 3, 1, RequestRefused, None),
        (problem("url-unreachable", 502, retryable=False), 3, 1, RequestRefused, None),
        (problem("unauthorized", 401), 3, 1, RequestRefused, None),
        (problem("not-ready", 503), 1, 2, ServerUnavailable, None),
        (problem("not-ready", 503), 0, 1, ServerUnavailable, None),
        (Reply(status=504, data=b"<html>"), 0, 1, ServerUnavailable, None),
        (problem("rate-limited", 429, {"Retry-After": "soon"}), 1, 2, ServerUnavailable, None),
        (problem("rate-limited", 429, {"Retry-After": "120"}), 3, 1, ServerUnavailable, 120.0),  # longer than its limit
    ],
)
def test_permanent_failures_are_not_retried_nor_others_more_than_the_limit(
    server: ScriptedServer,
    failure: Reply,
    retries: int,
    requests: int,
    kind: type[ProblemAnswered],
    retry_after: float | None,
) -> None:
    """What may pass is of another class than what a retry would meet again."""
    server.replies = [failure]
    with LikenessClient(server.url, retries=retries) as client, pytest.raises(kind) as caught:
        client.search(text="a")
    assert (caught.value.status, len(server.requests)) == (failure.status, requests)
    assert isinstance(caught.value, ServerUnreachable) is (kind is ServerUnavailable)
    assert caught.value.retry_after == retry_after


@pytest.mark.parametrize("failure", [problem("not-ready", 503), problem("overloaded", 429), Reply(hang_up=True)])
def test_changes_of_the_live_version_are_not_retried(
    client: LikenessClient, server: ScriptedServer, failure: Reply
) -> None:
    server.replies = [failure]
    with pytest.raises(ClientError):
        client.promote("000001")
    with pytest.raises(ClientError):
        client.rollback()
    assert len(server.requests) == 2


def test_retries_wait_as_long_as_the_server_asks(
    client: LikenessClient, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waits.append)
    monkeypatch.setattr("api.client.transport.time", clock)
    at = format_datetime(datetime.fromtimestamp(time.time() + 20, UTC), usegmt=True)  # whole seconds
    server.replies = [problem("overloaded", 429, {"Retry-After": "7"}), problem("x", 503, {"Retry-After": at}), FOUND]
    assert client.search(text="a") == RESULT
    assert waits == [7, pytest.approx(20, abs=2)]


# Time


def test_an_unreachable_server(server: ScriptedServer) -> None:
    url = server.url
    server.server_close()
    with LikenessClient(url, retries=1) as client, pytest.raises(ServerUnreachable, match=r"/index: .*refused"):
        client.index()
    with (
        LikenessClient("http://likeness.invalid", retries=0) as client,
        pytest.raises(ServerUnreachable, match=r"likeness\.invalid"),
    ):
        client.index()


@pytest.mark.parametrize(
    ("reply", "timeout", "message"),
    [
        (Reply(silent_s=1.0), 0.2, r"no answer within 0\.2 s"),
        (Reply(data=b"12", headers={"Content-Length": "3"}), 0.2, r"no answer within 0\.2 s"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n", endless=b"x", pause=0.02), 0.5, r"took longer than 0\.5 s"),
    ],
    ids=["silent", "silent half way", "dripping"],
)
def test_a_call_ends_in_time_and_a_silent_server_gets_no_retry(
    server: ScriptedServer, reply: Route, timeout: float, message: str
) -> None:
    server.routes["*"] = reply
    with LikenessClient(server.url, timeout=timeout) as client, pytest.raises(ServerUnreachable, match=message):
        client.picture("a")
    assert len(server.requests) == 1


# Connections


def slow_reader(listener: socket.socket) -> None:
    """Reads a request, slowly for its first half second, and answers it."""
    connection, _ = listener.accept()
    with suppress(OSError), connection, connection.makefile("rb") as request:
        head = email.parser.BytesHeaderParser().parsebytes(
            b"".join(iter(request.readline, b"\r\n")).partition(b"\n")[2]
        )
        left, started = int(head["Content-Length"]), time.monotonic()
        while left and (block := request.read(min(left, 2**16))):
            left -= len(block)
            if time.monotonic() < started + 0.5:
                time.sleep(0.02)
        body = json.dumps(ANSWER).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.parametrize("total", [20.0, 0.3])
def test_a_slow_upload_has_the_time_of_the_call_not_the_time_to_connect(
    total: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.client.transport._CONNECT_S", 0.2)
    with listening("127.0.0.1", 0) as listener:
        threading.Thread(target=slow_reader, args=(listener,), daemon=True).start()
        host, port = listener.getsockname()
        client = LikenessClient(f"http://{host}:{port}", timeout=total, retries=0)
        with client, nullcontext() if total > 1 else pytest.raises(ServerUnreachable, match="not sent in time"):
            assert client.search(image=bytes(2**24)) == RESULT


def test_connections_are_reused_and_closed(server: ScriptedServer) -> None:
    with LikenessClient(server.url) as client:
        for _ in range(5):
            client.search(text="a")
            client.picture("a")
        assert (server.connections, server.open_connections) == (1, 1)
    eventually(lambda: server.open_connections == 0, "it is closed")


def test_threads_share_a_client(server: ScriptedServer, client: LikenessClient) -> None:
    server.replies = [Reply(document=ANSWER, headers={"Set-Cookie": "a=b"})]

    def ask(number: int) -> bool:
        return client.search(text=str(number)) == RESULT

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(96)))
    assert {request.document["text"] for request in server.requests} == {str(number) for number in range(96)}
    assert not any("cookie" in request.headers for request in server.requests)
    assert server.connections <= 8


# Keys


def test_the_key_is_sent_and_netrc_does_not_replace_it(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with LikenessClient(f"{server.url}/likeness/", api_key="lk_secret") as client:
        client.search(text="a")
        assert "lk_secret" not in repr(client)
    assert server.requests[0].headers["authorization"] == "Bearer lk_secret"
    assert server.requests[0].path == "/likeness/search"  # a server below a path


def test_a_key_is_not_sent_to_another_server(server: ScriptedServer) -> None:
    with scripted(FOUND) as other:
        server.replies = [Reply(status=307, headers={"Location": f"{other.url}/search"})]
        with (
            LikenessClient(server.url, api_key="lk_secret") as client,
            pytest.raises(RequestRefused, match=f"redirects to {other.url}/search: use that as the base_url"),
        ):
            client.search(text="a")
        assert other.requests == []


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("timeout", [None, 0, -1, math.nan, (5, 30), "20"], "expected a timeout in seconds for a whole call, such as"),
        ("api_key", [""], "api_key: expected printable ASCII without spaces; it is empty: is its variable set"),
        ("api_key", ["lk_secret\n", "lk secret", "lk_sécret"], "api_key: expected printable ASCII without spaces"),
        ("base_url", ["", "a:80", "ftp://a", "http://", "http://a/?q=1"], "expected a base_url such as http://127"),
    ],
)
def test_a_client_is_not_made_of_invalid_arguments(name: str, values: list[Any], message: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=message) as caught:
            LikenessClient(**{"base_url": "http://127.0.0.1:1", name: value})
        assert "secret" not in str(caught.value)


# With the real server


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    location = tmp_path_factory.mktemp("collection")
    make_collection(location, PLAIN, FakeEmbedder())
    return Collection.open(str(location))


@pytest.fixture(scope="module")
def service(collection: Collection) -> SearchService:
    queries = {"http://pictures.example/red.png": PLAIN["red.png"]}
    return followed_service(Path(collection.location), queries=queries)


@pytest.fixture(scope="module")
def served(service: SearchService) -> Iterator[LikenessClient]:
    with running(create_app(service)) as url, LikenessClient(url) as served:
        yield served


def test_matches_are_those_of_the_library(served: LikenessClient, service: SearchService, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(PLAIN["red.png"])
    vector = FakeEmbedder().embed_texts(["a star"])[0]
    expected = service.search(Query(parts=(Part(data=PLAIN["red.png"]),), options={"k": 3}))
    searches: list[dict[str, Any]] = [{"image": tmp_path / "red.png"}, {"image": PLAIN["red.png"]}]
    searches += [{"image": Image.open(io.BytesIO(PLAIN["red.png"]))}, {"image": io.BytesIO(PLAIN["red.png"])}]
    searches += [{"image": SimpleNamespace(read=lambda: PLAIN["red.png"])}]  # as uploads are, which are no io.IOBase
    searches += [{"url": "http://pictures.example/red.png"}]
    for each in searches:
        found = served.search(**each, k=3)
        assert [(m.image_id, m.score, m.percentile) for m in found.matches] == [
            (m.image_id, m.score, m.percentile) for m in expected.matches
        ]
        assert (found.matches[0].image_id, found.matches[0].metadata) == ("red.png", {"label": "red", "weight": None})
        assert (found.version, found.ntotal, found.model) == ("000001", len(PLAIN), service.engine.embedder.identity)
        assert found.timing_ms["total"] > 0
    by_text = served.search(text="a star", k=4, words="off").matches
    for scale in (5.0, 2.0**1000, 2.0**-1000):
        assert served.search(embedding=scale * vector.astype(np.float64), k=4).matches == by_text


def test_vectors_are_those_of_the_model(served: LikenessClient, service: SearchService) -> None:
    texts = [f"text {number}" for number in range(70)]
    assert np.allclose(served.embed_texts(texts), FakeEmbedder().embed_texts(texts), atol=1e-6)
    vectors = served.embed_images([PLAIN["red.png"], PLAIN["blue.png"]])
    searcher = service.engine.searcher
    assert np.allclose(vectors, [searcher.vector("red.png"), searcher.vector("blue.png")], atol=1e-6)
    assert served.embed_images([]).shape == (0, FakeEmbedder().identity.dim)
    with pytest.raises(RequestRefused, match=r"^images\[1\]: expected a picture") as caught:
        served.embed_images([PLAIN["red.png"], b"<html>"])
    assert caught.value.type == "urn:likeness:problem:unusable-image"
    with pytest.raises(RequestRefused, match=r"^texts\[65\]: expected words") as caught:
        served.embed_texts([*texts[:65], " "])
    assert [error["field"] for error in caught.value.errors] == ["texts[65]"]


def test_refusals_name_the_problem_and_field(served: LikenessClient) -> None:
    def refusal(**search: Any) -> RequestRefused:
        with pytest.raises(RequestRefused) as caught:
            served.search(**search)
        return caught.value

    with pytest.raises(RequestRefused) as caught:
        served.image("none.png")
    assert (caught.value.status, caught.value.type) == (404, "urn:likeness:problem:image-not-found")
    part = refusal(queries=[{"text": "a"}, {"image": b"not a picture"}])
    assert str(part).startswith("queries.1.image: expected a picture")
    assert (part.field, part.problem["reason"]) == ("queries.1.image", "not_an_image")
    both = refusal(text="a", url="http://pictures.example/red.png")
    assert both.errors[0]["expected"].startswith("at most one of url, image, text")
    assert "colour" in refusal(text="a", filter={"colour": "red"}).detail


def test_versions_are_switched(served: LikenessClient, collection: Collection) -> None:
    """Must be last, because it adds a version to the collection."""
    add_pictures(collection, {"new.png": png((7, 7, 7))}, FakeEmbedder())
    assert [version["version"] for version in served.versions()] == ["000001", "000002"]
    assert served.promote("000002")["serving"] == "000002"
    details = served.index()
    assert (details["version"], details["ntotal"], details["model"]["dim"]) == ("000002", len(PLAIN) + 1, 16)
    assert details["columns"]["label"] == "string"
    assert details["recall"]["10"] == 1.0
    assert served.rollback()["serving"] == "000001"
    first, second = served.versions()
    assert (first["live"], first["serving"], second["live"], second["serving"]) == (True, True, False, False)
    with pytest.raises(RequestRefused, match="one of 000001, 000002"):
        served.promote("000009")
