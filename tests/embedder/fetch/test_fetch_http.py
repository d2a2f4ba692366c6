"""The http(s) client against real servers on loopback, honest and hostile."""

import datetime
import gzip
import ipaddress
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.fetch.http import HttpClient
from tests.support.pictures.fetching import PICTURE, answer, failure, redirect
from tests.support.scripted_server import Route, ScriptedServer, raw, scripted


def names(**hosts: str) -> Callable[[str, int], Sequence[str]]:
    """A resolver that only knows these hosts: `pictures_example="127.0.0.1 ::1"` is pictures.example."""

    def resolve(host: str, port: int) -> Sequence[str]:
        addresses = hosts.get(host.replace(".", "_"), "").split()
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return addresses

    return resolve


def trusting(**changes: object) -> Fetcher:
    limits = {"backoff_s": 0.01, "timeout_s": 30.0} | changes
    return Fetcher(FetchPolicy(**limits))  # type: ignore[arg-type]


# Hosts and addresses


def test_allowed_hosts_are_exempt_by_host_or_by_port(server: ScriptedServer) -> None:
    resolve = names(pictures_example="127.0.0.1", other_example="127.0.0.1")
    for allowed in ("pictures.example", f"Pictures.Example:{server.server_port}"):
        fetcher = Fetcher(FetchPolicy.for_untrusted_urls({allowed}), resolve=resolve)
        assert fetcher.fetch(f"http://pictures.example:{server.server_port}/picture") == PICTURE
        assert failure(fetcher, f"http://other.example:{server.server_port}/picture").reason == "forbidden_port"
    elsewhere = Fetcher(FetchPolicy.for_untrusted_urls({"pictures.example:1"}), resolve=resolve)
    assert failure(elsewhere, f"http://pictures.example:{server.server_port}/picture").reason == "forbidden_port"


def test_the_next_address_is_tried_when_the_first_refuses(server: ScriptedServer) -> None:
    fetcher = Fetcher(FetchPolicy(retries=0), resolve=lambda host, port: ["127.0.0.2", "127.0.0.1"])
    assert fetcher.fetch(f"http://pictures.example:{server.server_port}/picture") == PICTURE


# Redirects, connections and bodies


def test_redirects_are_followed_up_to_the_limit(server: ScriptedServer) -> None:
    server.routes["/1"] = answer(b"", status=301, Location="2")
    server.routes["/2"] = redirect("/picture", 308)
    assert trusting(max_redirects=2).fetch(server.url + "/1") == PICTURE
    assert server.requests[0].headers["accept-encoding"] == "identity"
    error = failure(trusting(max_redirects=1), server.url + "/1")
    assert (error.reason, error.retryable) == ("too_many_redirects", False)


@pytest.mark.parametrize("fragment", ["t=1", "t=12.5", "t=10,20", "xywh=0,0,9,9", "bytes=-3", "row=1", "top", ""])
def test_a_fragment_of_a_web_address_names_no_part(server: ScriptedServer, fragment: str) -> None:
    assert trusting().fetch(f"{server.url}/picture#{fragment}") == PICTURE


@pytest.mark.parametrize(("location", "path"), [(b"/caf\xc3\xa9", "/caf%C3%A9"), (b"/caf\xe9", "/caf%C3%A9")])
def test_a_redirect_may_name_its_target_in_utf_8(server: ScriptedServer, location: bytes, path: str) -> None:
    server.routes["/1"] = raw(b"HTTP/1.1 302 Found\r\nLocation: ", location, b"\r\n\r\n")
    server.routes[path] = answer()
    assert trusting().fetch(server.url + "/1") == PICTURE


def test_proxies_and_netrc_are_ignored(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert trusting().fetch(server.url + "/picture") == PICTURE
    assert "authorization" not in server.requests[0].headers


def test_connections_are_kept_and_shared_between_threads(server: ScriptedServer) -> None:
    fetcher = trusting()
    for _ in range(5):
        assert fetcher.fetch(server.url + "/picture") == PICTURE
    assert server.connections == 1
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(fetcher.fetch, [server.url + "/picture"] * 40)) == {PICTURE}
    assert server.connections <= 5


def test_errors_pickle(server: ScriptedServer) -> None:
    server.routes["/busy"] = answer(b"", status=503)
    error = failure(trusting(retries=0), server.url + "/busy")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.stage, again.reason, again.retryable) == (type(error), "fetch", "http_503", True)
    assert str(again) == str(error) == again.message


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
def test_unrequested_compression_is_undone(server: ScriptedServer, encoding: str) -> None:
    server.routes["/z"] = answer(gzip.compress(PICTURE), Content_Encoding=encoding)
    assert trusting().fetch(server.url + "/z") == PICTURE


def test_chunked_bodies_are_read_whole(server: ScriptedServer) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (100, PICTURE[i : i + 100]) for i in range(0, 2000, 100))
    server.routes["/c"] = raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n")
    assert trusting().fetch(server.url + "/c") == PICTURE[:2000]


@pytest.mark.parametrize("kind", ["image/jpeg", "Image/PNG; x=y", "application/octet-stream"])
def test_untrusted_urls_must_have_a_pictures_content_type(server: ScriptedServer, kind: str) -> None:
    strict = Fetcher(FetchPolicy.for_untrusted_urls({"127.0.0.1"}))
    server.routes |= {"/k": answer(Content_Type=kind), "/page": answer(Content_Type="text/html; charset=utf-8")}
    assert strict.fetch(server.url + "/k") == PICTURE
    assert failure(strict, server.url + "/page").reason == "not_an_image"
    assert trusting().fetch(server.url + "/page") == PICTURE


def certificate(folder: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.9"))])
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternatives, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "server.pem"
    path.write_bytes(secret + signed.public_bytes(pem))
    return path


def test_certificates_are_checked_against_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = str(certificate(tmp_path, "pictures.example"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server_names: list[str] = []
    context.sni_callback = lambda connection, name, _: server_names.append(str(name))
    resolve = names(pictures_example="127.0.0.1", other_example="127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", pem)
    with scripted(answer(), tls=context) as server:
        fetcher = Fetcher(resolve=resolve)
        assert fetcher.fetch(f"https://pictures.example:{server.server_port}/picture") == PICTURE
        monkeypatch.undo()
        assert server_names == ["pictures.example"]
        assert server.requests[0].headers["host"] == f"pictures.example:{server.server_port}"
        for untrusting, host in ((fetcher, "other.example"), (Fetcher(resolve=resolve), "pictures.example")):
            error = failure(untrusting, f"https://{host}:{server.server_port}/picture")
            assert (error.reason, error.retryable) == ("tls_failed", False)


# Hostile bodies

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"


def test_a_length_that_is_too_short_truncates_the_body_and_affects_no_later_fetch(server: ScriptedServer) -> None:
    server.routes["/short"] = raw(HEAD, b"Content-Length: 3\r\n\r\n", b"abcHTTP/1.1 200 OK\r\n\r\nforged")
    fetcher = trusting()
    assert fetcher.fetch(server.url + "/short") == b"abc"
    assert fetcher.fetch(server.url + "/picture") == PICTURE


def test_a_tls_handshake_that_never_answers_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fetcher = trusting(connect_timeout_s=0.2, retries=0)
        assert failure(fetcher, f"https://127.0.0.1:{silent.getsockname()[1]}/").reason == "timeout"


def test_a_name_server_that_never_answers_ends_in_time() -> None:
    released = threading.Event()

    def resolve(host: str, port: int) -> Sequence[str]:
        released.wait(10)
        return []

    fetcher = Fetcher(FetchPolicy(connect_timeout_s=0.2, retries=0), resolve=resolve)
    assert failure(fetcher, "http://slow.example/").reason == "timeout"
    released.set()


# Retries


def failing_twice(status: int, **headers: Any) -> Route:
    left = [status, status]
    return lambda player: answer(status=left.pop() if left else 200, **headers)(player)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_temporary_failures_are_retried(server: ScriptedServer, status: int) -> None:
    server.routes["/flaky"] = failing_twice(status)
    assert trusting(retries=2).fetch(server.url + "/flaky") == PICTURE
    assert len(server.requests) == 3
    server.routes["/flaky"] = failing_twice(status)
    error = failure(trusting(retries=1), server.url + "/flaky")
    assert (error.reason, error.retryable) == (f"http_{status}", True)


@pytest.mark.parametrize("status", [204, 304, 400, 401, 403, 404, 410])
def test_permanent_failures_are_not_retried(server: ScriptedServer, status: int) -> None:
    server.routes["/gone"] = answer(b"", status=status)
    error = failure(trusting(), server.url + "/gone")
    assert (error.reason, error.retryable) == (f"http_{status}", False)
    assert error.message == f"{server.url}/gone: the server answered {status}, expected 200"
    assert len(server.requests) == 1


def test_dropped_and_refused_connections_are_retried(server: ScriptedServer) -> None:
    drops = [True, True]
    dropped = raw(b"")
    server.routes["/drop"] = lambda player: (dropped if drops and drops.pop() else answer())(player)
    assert trusting(retries=2).fetch(server.url + "/drop") == PICTURE
    server.shutdown()
    server.server_close()
    error = failure(trusting(retries=1), server.url + "/picture")
    assert (error.reason, error.retryable) == ("connection_failed", True)


def test_a_host_that_never_answers_is_refused_at_once_and_others_are_not(server: ScriptedServer) -> None:
    released, other = threading.Event(), f"http://localhost:{server.server_port}"

    def hang(player: Any) -> None:
        released.wait(30)

    server.routes["/hang"] = hang
    # Long enough for a picture on a busy machine.
    fetcher = trusting(timeout_s=1.0, retries=0, max_timeouts=2)
    with ThreadPoolExecutor(3) as pool:
        errors = [*pool.map(failure, [fetcher] * 2, [server.url + "/hang"] * 2)]
        errors.append(failure(fetcher, server.url + "/picture"))
        assert [request.path for request in server.requests] == ["/hang"] * 2
        assert fetcher.fetch(other + "/picture") == PICTURE
        errors += pool.map(failure, [fetcher] * 3, [other + "/hang"] * 3)
    assert [(error.reason, error.retryable) for error in errors] == [("timeout", True)] * 6
    assert "answered none of 2 requests in time; try again later" in str(errors[2])
    assert fetcher.fetch(other + "/picture") == PICTURE  # a host that answered is never refused
    released.set()


def test_backoff_doubles_and_retry_after_is_respected(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("embedder.fetch.http.HttpClient", partial(HttpClient, sleep=waits.append))

    server.routes["/down"] = answer(b"", status=503)
    failure(trusting(retries=4, backoff_s=0.2), server.url + "/down")
    assert all(0.1 * 2**i <= wait <= 0.2 * 2**i for i, wait in enumerate(waits))
    assert len(waits) == 4
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=4)
    for retry_after, low, high in (("3", 3.0, 3.0), (later.strftime("%a, %d %b %Y %H:%M:%S GMT"), 1.5, 4.0)):
        waits.clear()
        server.routes["/wait"] = failing_twice(429, Retry_After=retry_after)
        assert trusting().fetch(server.url + "/wait") == PICTURE
        assert len(waits) == 2
        assert all(low <= wait <= high for wait in waits)
    waits.clear()
    server.routes["/long"] = failing_twice(429, Retry_After="3600")
    error = failure(trusting(), server.url + "/long")
    assert (error.reason, error.retryable, waits) == ("http_429", True, [])
