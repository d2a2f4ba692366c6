"""Fixtures for the tests of several rooms: pictures, a second model, a store that fails."""

from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest

from embedder.fetch.fetcher import Fetcher
from index.storage.bucket_address import Bucket
from index.storage.picture_reader import PictureReader
from jobs.demo.gallery import Gallery, make_gallery
from tests.support.pictures.tiny_checkpoints import save_siglip


@pytest.fixture(scope="session", autouse=True)
def reuse_decoders() -> Iterator[None]:
    """Jobs leave their decoding processes to the next test: starting them takes half as long as the rest of a job."""
    with patch("jobs.embedding.placement.stop_decoders", lambda _: None):
        yield


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Sixty pictures, twenty of them broken; tests must not change them."""
    return make_gallery(tmp_path_factory.mktemp("gallery"), count=60, broken=20)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model with another dim than the demo's."""
    folder = tmp_path_factory.mktemp("other").resolve()
    save_siglip(folder)
    return str(folder)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests, also those for pictures, time out after `REQUEST_S`."""
    from tests.support.nights.failing_store import REQUEST_S

    defaults: Any = Bucket.__init__
    monkeypatch.setitem(defaults.__kwdefaults__, "request_s", REQUEST_S)
    fetcher = Fetcher(buckets=PictureReader(request_s=REQUEST_S))
    monkeypatch.setattr("jobs.embedding.stages._fetcher", cache(lambda _: fetcher))
    monkeypatch.setattr("jobs.planning.content_hashes.Fetcher", lambda *_, **__: fetcher)
