"""Conditional requests: what is kept of an answer, what is sent back, and how many requests a host gets at a time."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest

from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.fetch.validators import UNKNOWN, Download, Validators
from tests.support.pictures.fetching import PICTURE, answer, failure, redirect
from tests.support.scripted_server import Player, ScriptedServer, scripted

_AT = datetime(2015, 10, 21, 7, 28, tzinfo=UTC)
_DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize(
    ("headers", "etag", "modified"),
    [
        ({}, None, None), ({"ETag": '"abc"'}, '"abc"', None), ({"ETag": 'W/"abc"'}, 'W/"abc"', None),
        ({"ETag": '""'}, '""', None), ({"ETag": ' "a" '}, '"a"', None), ({"ETag": "abc"}, None, None),
        ({"ETag": '"a\r\nX-Other: 1"'}, None, None), ({"ETag": '"a b"'}, None, None), ({"ETag": '"ä"'}, None, None),
        ({"ETag": f'"{"a" * 251}"'}, None, None), ({"ETag": '"a"', "Last-Modified": _DATE}, '"a"', _AT),
        ({"Last-Modified": _DATE}, None, _AT), ({"Last-Modified": "Wednesday, 21-Oct-15 07:28:00 GMT"}, None, _AT),
        ({"Last-Modified": "Wed, 21 Oct 2015 09:28:00 +0200"}, None, _AT),
        ({"Last-Modified": "Wed, 21 Oct 2015 07:28:00 -0000"}, None, _AT),
        ({"Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}, None, datetime(1970, 1, 1, tzinfo=UTC)),
        ({"Last-Modified": "Fri, 31 Dec 9999 23:59:59 GMT"}, None, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ({"Last-Modified": "Fri, 31 Dec 9999 23:59:59 -0100"}, None, None),
        ({"Last-Modified": "yesterday"}, None, None), ({"Last-Modified": "0"}, None, None),
        ({"Last-Modified": "Wed, 99 Oct 2015 07:28:00 GMT"}, None, None), ({"Last-Modified": "\r\n"}, None, None),
    ],
)  # fmt: skip
def test_what_an_answer_says_is_kept_if_it_can_be_sent_back(
    headers: dict[str, str], etag: str | None, modified: datetime | None
) -> None:
    assert Validators.of(headers) == Validators(etag=etag, modified=modified)


def test_conditions_are_written_as_servers_compare_them() -> None:
    assert Validators().conditions == {}
    known = Validators(etag='W/"a"', modified=_AT.astimezone(timezone(timedelta(hours=2))))
    assert known.conditions == {"If-None-Match": 'W/"a"', "If-Modified-Since": _DATE}


def test_an_unchanged_picture_is_not_sent_again(server: ScriptedServer) -> None:
    def picture(player: Player) -> None:
        same = player.received.headers.get("if-none-match") == '"1"'
        answer(b"" if same else PICTURE, status=304 if same else 200, ETag='"1"', Last_Modified=_DATE)(player)

    server.routes["/a"] = picture
    server.routes["/moved"] = redirect("/a")
    fetcher = Fetcher()
    known = Validators(etag='"1"', modified=_AT)
    for path in ("/a", "/a", "/moved"):
        assert server.connections <= 1
        first = fetcher.download(server.url + path)
        assert first == Download(data=PICTURE, validators=known)
        assert fetcher.download(server.url + path, first.validators) == Download(data=None, validators=known)
    other = Validators(etag='"0"')
    assert fetcher.download(server.url + "/a", other).data == PICTURE


def test_a_304_keeps_what_it_does_not_name_and_must_be_an_answer_to_a_condition(server: ScriptedServer) -> None:
    server.routes["/a"] = answer(b"", status=304, ETag='"2"')
    known = Validators(etag='"1"', modified=_AT)
    found = Fetcher().download(server.url + "/a", known)
    assert found == Download(data=None, validators=Validators(etag='"2"', modified=_AT))
    assert failure(Fetcher(), server.url + "/a").reason == "http_304"
    assert Download(data=b"").validators == UNKNOWN


@pytest.mark.parametrize("per_host", [1, 3, None])
def test_a_host_gets_a_limited_number_of_requests_at_a_time(per_host: int | None) -> None:
    with scripted(answer(silent_s=0.03)) as one, scripted(redirect(f"{one.url}/x", silent_s=0.01)) as two:
        fetcher = Fetcher(FetchPolicy(per_host=per_host))
        uris = [f"http://localhost:{two.server_port}/{number}" for number in range(12)]
        uris += [f"{one.url}/{number}" for number in range(12)]
        with ThreadPoolExecutor(24) as pool:
            assert set(pool.map(fetcher.fetch, uris)) == {PICTURE}
        if per_host is None:
            assert one.max_ongoing > 3
        else:
            assert (one.max_ongoing, two.max_ongoing) == (per_host, per_host)


def test_waiting_for_a_turn_does_not_count_as_the_hosts_time() -> None:
    with scripted(answer(silent_s=0.2)) as server:
        fetcher = Fetcher(FetchPolicy(per_host=1, timeout_s=0.5, retries=0))
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(fetcher.fetch, [server.url] * 4)) == [PICTURE] * 4
