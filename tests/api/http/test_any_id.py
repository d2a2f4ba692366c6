"""Rows and pictures of images with awkward ids, for the client, the web page and notebooks."""

from pathlib import Path
from urllib.parse import urljoin

import httpx

from api.client import LikenessClient
from api.explore import Likeness
from api.http.app import create_app
from api.local import running
from tests.support.collections.small_collection import RecordingFetcher, fake_service, make_collection, png
from tests.support.fake_embedder import FakeEmbedder

AWKWARD = (
    *("..", ".", "../..", "a/../b", "a/./b", "/", "//", "/a", "a/", "a//b", "x", "x/picture", "x/picture/picture"),
    *("picture", "two\nlines", "\n", "\r\n", "\t", " ", " x ", "\0", "\x7f", "%", "%2F", "%2e%2e", "%0A", "50%25.png"),
    *("?", "#", "a?size=9", "a&size=16", "a;b", "a+b", "a b", "a=b", "\\\\", "\u2028", "\ufeff", "日本/犬.png"),
    *("🦊", "e\u0301"),
)


def test_any_id_leads_to_its_row_and_picture(tmp_path: Path) -> None:
    pictures = {image_id: png((number * 4 % 256, number % 256, 99)) for number, image_id in enumerate(AWKWARD)}
    fetcher = RecordingFetcher({f"memory:{image_id}": data for image_id, data in pictures.items()})
    searcher = make_collection(tmp_path / "c", pictures, FakeEmbedder())
    notebook = Likeness(searcher, FakeEmbedder, fetcher=fetcher)
    app = create_app(fake_service(searcher, pictures=fetcher))
    with running(app) as url, LikenessClient(url) as client, httpx.Client() as browser:
        found = {match.image_id for match in client.search(text="a star", k=1_000).matches}
        assert found == set(AWKWARD)
        answer = browser.post(f"{url}/search", json={"text": "a star", "k": 1_000}).json()
        for match in answer["matches"]:
            # As a browser resolves the address.
            assert browser.get(urljoin(f"{url}/", match["picture"])).content == pictures[match["image_id"]]
        for image_id in AWKWARD:
            assert client.image(image_id)["image_id"] == image_id
            assert client.picture(image_id) == pictures[image_id]
            assert client.picture(image_id, size=16)[:3] == b"\xff\xd8\xff"
            assert image_id not in {match.image_id for match in client.search(id=image_id, k=1_000).matches}
            in_notebook = notebook.search(id=image_id, k=3)
            assert len(in_notebook) == 3
            assert "data:image" in in_notebook._repr_html_()
