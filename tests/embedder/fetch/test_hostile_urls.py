"""Malicious URLs.

Every connection ends at one real server on loopback, whatever its address, so that server sees every request that
passes the checks. The system parses numeric addresses; a fake resolver knows the names.
"""

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from embedder.errors import FetchError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from tests.support.pictures.fetching import PICTURE, answer, failure, redirect
from tests.support.scripted_server import ScriptedServer, raw

pytestmark = pytest.mark.usefixtures("connected")

POLICY = replace(FetchPolicy.for_untrusted_urls(), retries=0)
PUBLIC = "93.184.216.34"
NAMES = {
    "public.example": [PUBLIC], "other.example": ["93.184.216.35"], "localhost": ["127.0.0.1"],
    "inside.example": ["10.1.2.3"], "metadata.google.internal": ["169.254.169.254"], "six.example": ["fd00:ec2::254"],
    "mapped.example": ["::ffff:169.254.169.254"], "second.example": [PUBLIC, "127.0.0.1"],
    "second-six.example": [PUBLIC, "::1"], "second-mapped.example": [PUBLIC, "::ffff:127.0.0.1"],
    "second-zero.example": ["2606:4700::1111", "0.0.0.0"], "second-zone.example": [PUBLIC, "fe80::1%2"],
    "zone.example": ["2606:4700::1111%lo"],
}  # fmt: skip


def resolve(host: str, port: int) -> Sequence[str]:
    if (known := NAMES.get(host.lower().removesuffix("."))) is not None:
        return known
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return [str(address[4][0]) for address in found]


FETCHER = Fetcher(POLICY, resolve=resolve)


@pytest.mark.parametrize(
    "host", ["public.example", "172.32.0.1", "[2606:4700::1111]", "[::ffff:8.8.8.8]", "[64:ff9b::808:808]"]
)
def test_hosts_that_are_public(server: ScriptedServer, host: str) -> None:
    assert FETCHER.fetch(f"http://{host}/picture") == PICTURE
    assert [request.path for request in server.requests] == ["/picture"]


# Forbidden hosts

HOSTS = {
    "decimal": ["2130706433", "2852039166", "3232235777", "167772161", "1681915905"],
    "octal": ["0251.0376.0251.0376", "017700000001", "012.0.0.1", "0300.0250.1.1"],
    "hex": ["0x7f000001", "0xA9FEA9FE", "0xa9.0xfe.0xa9.0xfe", "0x7f.0x0.0x0.0x1", "0xc0a80101"],
    "short": ["169.254.43518", "10.1", "192.168.257", "0177.1", "127.0x1", "127.65530"],
    "nowhere": ["0", "0.0.0.0", "0x0", "00", "0.0", "000.000.000.000", "0.1.2.3"],
    "IPv4": [
        *("127.255.255.254", "172.31.255.255", "169.254.170.2", "169.254.0.23", "100.127.255.254", "198.19.255.255"),
        *("127.0.0.1", "10.0.0.1", "192.168.1.1", "100.64.0.1", "100.100.100.200", "169.254.169.254", "168.63.129.16"),
        *("192.0.0.192", "192.88.99.1", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
        *("192.0.2.1", "198.51.100.7", "203.0.113.5", "239.255.255.250", "240.0.0.1", "192.0.0.8"),
    ],
    "IPv4 in IPv6": [
        *("[::ffff:7f00:1]", "[0:0:0:0:0:ffff:7f00:1]", "[::FFFF:10.0.0.1]", "[::ffff:169.254.169.254]"),
        *("[::ffff:100.64.0.1]", "[::ffff:0.0.0.0]", "[::ffff:0:127.0.0.1]", "[::a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]"),
        *("[64:ff9b::127.0.0.1]", "[64:ff9b:1::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[2001:0:a9fe:a9fe::]"),
    ],
    "IPv6": [
        *("[::1]", "[::]", "[fe80::1]", "[fec0::1]", "[fd00:ec2::254]", "[ff02::1]"),
        *("[0:0:0:0:0:0:0:1]", "[::2]", "[fe80::a9fe:a9fe]", "[febf::1]", "[fd20:ce::254]", "[fc00::1]", "[ff05::2]"),
        *("[2001:db8::1]", "[100::1]", "[5f00::1]", "[3fff:fff::1]", "[4000::1]", "[fe80::1%252]", "[::1%251]"),
    ],
    "names": [
        *("localhost", "LocalHost.", "inside.example", "metadata.google.internal", "six.example", "mapped.example"),
        *("second.example", "second-six.example", "second-mapped.example", "second-zero.example"),
        *("second-zone.example", "zone.example"),
    ],
}


@pytest.mark.parametrize("host", [pytest.param(host, id=f"{kind} {host}") for kind in HOSTS for host in HOSTS[kind]])
def test_hosts_that_are_not_public(connected: list[tuple[str, int]], host: str) -> None:
    error = failure(FETCHER, f"http://{host}/picture")
    assert (error.reason, error.retryable) == ("forbidden_address", False)
    assert connected == []


URLS = {
    "forbidden_userinfo": [
        *("http://public.example@127.0.0.1/", "http://127.0.0.1@public.example/"),
        *("http://public.example:80@127.0.0.1/", "http://public.example%2f@127.0.0.1/", "http://a@b@127.0.0.1/"),
        *("http://user:secret@public.example/", "http://:@127.0.0.1/"),
    ],
    "forbidden_port": ["http://public.example:22/", "https://public.example:0/"],
    "bad_uri": [
        *("http://", "http://①②⑦.⓪.⓪.①/", "http://public.example/a.tar#bytes=0-9"),
        *("http://127.0.0.1%00.public.example/", "http://127.0.0.1\x00.public.example/", "http://127.0.0.1\t/"),
        *("http://127.0.0.1\r\nX-Header: 1/", "http://127.0.0.1:80:80/", "http://127.0.0.1:-80/"),
        *("http://127.0.0.1:0x50/", "http://127.0.0.1:65536/", "http://\uff11\uff12\uff17.0.0.1/"),
        *("http://127。0。0。1/", "http:////127.0.0.1/"),
        *("http://ⓛocalhost/", "http://[::ffff:127.0.0.1/", "http://[127.0.0.1]/", "http://[::1]a/"),
    ],
    "unknown_host": [
        *(f"http://{'a' * 70}.example/", "http://public.example%40127.0.0.1/", "http://127.0.0.1;.public.example/"),
        *("http://inside.example../", "http://.inside.example/", "http://425.510.425.510/"),
    ],
    "forbidden_address": [
        *("http://@127.0.0.1/", "http://127.0.0.1#@public.example/", "http://127.0.0.1?@public.example/"),
        *("http://127.0.0.1/@public.example/", "http://127.0.0.1\\@public.example/", "http://127.0.0.1:080/"),
        *("http://127.0.0.1:/", "http://localhost%2e/", "HTTP://127.0.0.1/", "hTtPs://127.0.0.1/"),
    ],
    "forbidden_scheme": [
        *(" http://127.0.0.1/", "http:127.0.0.1/", "http:\\\\127.0.0.1/", "http:/\\127.0.0.1/", "//127.0.0.1/"),
        *("\\\\127.0.0.1\\share\\a.png", "file://localhost/etc/passwd", "FILE:///etc/passwd", "gs://bucket/a.png"),
        *("az://account/container/a.png", "dict://127.0.0.1:11211/stats", "ldap://127.0.0.1/"),
        *("sftp://127.0.0.1/a.png", "ws://127.0.0.1/", "jar:http://127.0.0.1!/a.png", "view-source:http://127.0.0.1/"),
        *("http+unix://%2Frun%2Fdocker.sock/", "javascript:alert(1)//http://"),
    ],
}


@pytest.mark.parametrize(("url", "reason"), [(each, reason) for reason in URLS for each in URLS[reason]])
def test_deceptive_urls(connected: list[tuple[str, int]], url: str, reason: str) -> None:
    error = failure(FETCHER, url)
    assert (error.reason, error.retryable) == (reason, False)
    assert "secret" not in error.message
    assert "10.1.2.3" not in error.message
    assert connected == []


REDIRECTS = {
    "forbidden_address": [
        *("http://2130706433/", "http://0177.0.0.1/", "http://0x7f.1/", "http://0/", "http://100.64.0.1/"),
        *("//[::ffff:169.254.169.254]/latest", "https://metadata.google.internal/", "//second.example/"),
        "//127.0.0.1\\@public.example/",
    ],
    "forbidden_userinfo": ["//public.example@127.0.0.1/"],
    "forbidden_port": ["//public.example:22/"],
    "bad_uri": ["//public.example:80:80/", "http://[::1"],
    "forbidden_scheme": ["data:image/png;base64,AAAA", "s3://bucket/a.png", "HTTP+UNIX://%2Frun/"],
}


@pytest.mark.parametrize(("location", "reason"), [(each, reason) for reason in REDIRECTS for each in REDIRECTS[reason]])
def test_every_redirect_is_checked(server: ScriptedServer, location: str, reason: str) -> None:
    server.routes |= {"/1": redirect("/2", 301), "/2": redirect("//other.example/3", 307), "/3": redirect(location)}
    error = failure(FETCHER, "http://public.example/1")
    assert (error.reason, error.retryable) == (reason, False)
    hosts = {"/1": "public.example", "/2": "public.example", "/3": "other.example"}
    assert [(request.path, request.headers["host"]) for request in server.requests] == list(hosts.items())


ODD = ["\\\\127.0.0.1\\a", "http:\\\\127.0.0.1/a", "/\\127.0.0.1/a", "http:///picture", "http:127.0.0.1", "http:", ""]


@pytest.mark.parametrize("location", ODD)
def test_redirects_that_only_browsers_take_elsewhere_stay_here(server: ScriptedServer, location: str) -> None:
    server.routes["/away"] = redirect(location)
    with suppress(FetchError):
        FETCHER.fetch("http://public.example/away")
    assert {request.headers["host"] for request in server.requests} == {"public.example"}


@pytest.mark.parametrize("head", [b"503 Busy\r\n", b"302 Found\r\nLocation: /picture\r\n"])
def test_a_name_is_checked_again_for_every_connection(
    server: ScriptedServer, connected: list[tuple[str, int]], head: bytes
) -> None:
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    server.routes["/1"] = raw(b"HTTP/1.1 ", head, b"Content-Length: 0\r\nConnection: close\r\n\r\n")
    fetcher = Fetcher(replace(POLICY, retries=3, backoff_s=0.01), resolve=lambda host, port: next(answers))
    assert failure(fetcher, "http://rebinding.example/1").reason == "forbidden_address"
    assert connected == [(PUBLIC, 80)]
    assert [request.headers["host"] for request in server.requests] == ["rebinding.example"]


def test_the_next_host_gets_no_other_headers(server: ScriptedServer) -> None:
    server.routes["/1"] = answer(
        b"",
        status=302,
        Location="http://other.example/2?hop",
        Set_Cookie="id=7; Domain=example; Path=/",
        WWW_Authenticate="Basic realm=x",
        Proxy_Authenticate="Basic realm=x",
        Refresh="0; url=http://127.0.0.1/",
    )
    server.routes["/2?hop"] = answer(b"", status=302, Location="/picture", Set_Cookie="a=b")
    server.routes["/1?token=secret"] = server.routes["/1"]
    for _ in range(2):
        assert FETCHER.fetch("http://public.example/1?token=secret") == PICTURE
    for request in server.requests:
        assert set(request.headers) == {"host", "accept", "accept-encoding", "user-agent"}, request.path
        assert "secret" not in str(request.headers)


@pytest.mark.parametrize("status", [300, 304, 305, 306, 401, 407, 511])
def test_other_statuses_with_a_location_are_not_followed(server: ScriptedServer, status: int) -> None:
    server.routes["/away"] = answer(b"", status=status, Location="/picture", WWW_Authenticate="Basic realm=x")
    assert failure(FETCHER, "http://public.example/away").reason == f"http_{status}"
    assert len(server.requests) == 1
