"""Every id has an address: of its row and of its picture, for the client, the page and the notebooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urljoin

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.client import LikenessClient
from api.explore import Likeness
from api.http.app import create_app
from api.local import running
from api.search.service import SearchService
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import RecordingFetcher, fake_service, make_collection, png

AWKWARD = (
    *("..", ".", "../..", "a/../b", "a/./b", "/", "//", "/a", "a/", "a//b", "x", "x/picture", "x/picture/picture"),
    *("picture", "two\nlines", "\n", "\r\n", "\t", " ", " x ", "\0", "\x7f", "%", "%2F", "%2e%2e", "%0A", "50%25.png"),
    *("?", "#", "a?size=9", "a&size=16", "a;b", "a+b", "a b", "a=b", "\\\\", "\u2028", "\ufeff", "日本/犬.png"),
    *("🦊", "e\u0301"),
)
ids = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=8, unique=True)


def picture_of(number: int) -> bytes:
    return png((number * 4 % 256, number % 256, 99))


@contextmanager
def served(image_ids: list[str]) -> Iterator[tuple[str, SearchService, dict[str, bytes]]]:
    pictures = {image_id: picture_of(number) for number, image_id in enumerate(image_ids)}
    fetcher = RecordingFetcher({f"memory:{image_id}": data for image_id, data in pictures.items()})
    with TemporaryDirectory() as folder:
        service = fake_service(make_collection(Path(folder) / "c", pictures, FakeEmbedder()), pictures=fetcher)
        with running(create_app(service)) as url:
            yield url, service, pictures


@settings(max_examples=5, deadline=None)
@given(image_ids=ids)
@example(image_ids=list(AWKWARD))
def test_mend_21_any_id_leads_to_its_row_and_its_picture(image_ids: list[str]) -> None:
    with served(image_ids) as (url, _, pictures), LikenessClient(url) as client, httpx.Client() as browser:
        found = {match.image_id for match in client.search(text="a star", k=1_000).matches}
        assert found == set(image_ids)
        answer = browser.post(f"{url}/search", json={"text": "a star", "k": 1_000}).json()
        for match in answer["matches"]:
            # As a browser resolves an address.
            assert browser.get(urljoin(f"{url}/", match["picture"])).content == pictures[match["image_id"]]
        for image_id in image_ids:
            assert client.image(image_id)["image_id"] == image_id
            assert client.picture(image_id) == pictures[image_id]
            assert client.picture(image_id, size=16)[:3] == b"\xff\xd8\xff"
            assert image_id not in {match.image_id for match in client.search(id=image_id, k=1_000).matches}


@pytest.mark.parametrize("image_id", AWKWARD)
def test_mend_21_any_id_is_found_in_a_notebook(notebook: Likeness, image_id: str) -> None:
    assert notebook.searcher.row(image_id) is not None
    found = notebook.search(id=image_id, k=3)
    assert len(found) == 3
    assert "data:image" in found._repr_html_()


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Likeness:
    pictures = {image_id: picture_of(number) for number, image_id in enumerate(AWKWARD)}
    return Likeness(
        make_collection(tmp_path_factory.mktemp("any") / "c", pictures, FakeEmbedder()),
        FakeEmbedder,
        fetcher=RecordingFetcher({f"memory:{image_id}": data for image_id, data in pictures.items()}),
    )
