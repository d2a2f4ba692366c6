"""Every id has an address: of its row and of its picture, for the client, the page and the notebooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urljoin

import httpx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.client import LikenessClient
from api.explore import Likeness
from api.http.app import create_app
from api.local import running
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import RecordingFetcher, fake_service, make_collection, png

AWKWARD = (
    *("..", ".", "../..", "a/../b", "a/./b", "/", "//", "/a", "a/", "a//b", "x", "x/picture", "x/picture/picture"),
    *("picture", "two\nlines", "\n", "\r\n", "\t", " ", " x ", "\0", "\x7f", "%", "%2F", "%2e%2e", "%0A", "50%25.png"),
    *("?", "#", "a?size=9", "a&size=16", "a;b", "a+b", "a b", "a=b", "\\\\", "\u2028", "\ufeff", "日本/犬.png"),
    *("🦊", "e\u0301"),
)
ids = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=8, unique=True)


@contextmanager
def served(image_ids: list[str]) -> Iterator[tuple[str, Likeness, dict[str, bytes]]]:
    """Their server's URL, what a notebook has of them, and their pictures."""
    pictures = {image_id: png((number * 4 % 256, number % 256, 99)) for number, image_id in enumerate(image_ids)}
    fetcher = RecordingFetcher({f"memory:{image_id}": data for image_id, data in pictures.items()})
    with TemporaryDirectory() as folder:
        searcher = make_collection(Path(folder) / "c", pictures, FakeEmbedder())
        with running(create_app(fake_service(searcher, pictures=fetcher))) as url:
            yield url, Likeness(searcher, FakeEmbedder, fetcher=fetcher), pictures


@settings(max_examples=5, deadline=None)
@given(image_ids=ids)
@example(image_ids=list(AWKWARD))
def test_mend_21_any_id_leads_to_its_row_and_its_picture(image_ids: list[str]) -> None:
    with served(image_ids) as (url, notebook, pictures), LikenessClient(url) as client, httpx.Client() as browser:
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
            in_notebook = notebook.search(id=image_id, k=3)
            assert len(in_notebook) == min(3, len(image_ids) - 1)
            assert len(image_ids) == 1 or "data:image" in in_notebook._repr_html_()
