"""The small collection that most tests of the api search, and the server's log."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from fastapi.testclient import TestClient

from api.http.app import create_app
from api.observe.log import JsonLines, TextLines
from api.search.service import SearchService
from index.collection import Collection
from index.search import Searcher
from tests.support.collections.small_collection import shared_decoders


@pytest.fixture(scope="session", autouse=True)
def reuse_decoders() -> Iterator[None]:
    """Servers share their decoding processes: starting some takes longer than most tests."""
    with patch("api.build_service.DecodePool", lambda *_, **__: shared_decoders()):
        yield


@pytest.fixture(scope="session")
def searcher(plain: Path) -> Searcher:
    return Searcher.open(Collection.open(str(plain)))


@pytest.fixture(scope="module")
def template(plain: Path) -> Path:
    return plain


@pytest.fixture
def client(service: SearchService) -> Iterator[TestClient]:
    """A client of an app with the `service` that the test's file defines."""
    with TestClient(create_app(service)) as client:
        yield client


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    yield from logging_to(JsonLines())


@pytest.fixture
def text_log() -> Iterator[io.StringIO]:
    yield from logging_to(TextLines())


def logging_to(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger("api")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(before)
