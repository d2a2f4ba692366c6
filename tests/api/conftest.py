"""The small collection that most tests of the api search, and nobody changes."""

import pytest

from embedder.fake import FakeEmbedder
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, make_collection


@pytest.fixture(scope="session")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Of the plain pictures, with the fake model."""
    return make_collection(tmp_path_factory.mktemp("plain"), PLAIN, FakeEmbedder())
