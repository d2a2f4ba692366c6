"""Answers of a test's web server, and failing fetches from it."""

import pytest

from embedder.errors import FetchError
from embedder.fetch import Fetcher
from tests.support.scripted_server import Reply

PICTURE = bytes(range(256)) * 8


def answer(body: bytes = PICTURE, *, status: int = 200, silent_s: float = 0.0, **headers: str) -> Reply:
    """A reply with a picture, unless a header says otherwise."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(data=body, status=status, silent_s=silent_s, headers={"Content-Type": "image/png", **named})


def redirect(location: str, status: int = 302, silent_s: float = 0.0) -> Reply:
    return answer(b"moved", status=status, silent_s=silent_s, Location=location)


def failure(fetcher: Fetcher, uri: str) -> FetchError:
    """The error of a fetch, which must fail."""
    with pytest.raises(FetchError) as caught:
        fetcher.fetch(uri)
    assert caught.value.stage == "fetch"
    return caught.value
