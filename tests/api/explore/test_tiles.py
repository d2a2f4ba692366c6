"""The part of a picture that matched, as a notebook, the HTTP client, the terminal and the page show it."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from api.build_service import build_service
from api.client import LikenessClient
from api.explore import Likeness
from api.http.app import create_app
from api.local import running
from api.settings import ServeSettings
from index.collection import Collection
from jobs.demo.collection import embed_here
from likeness.cli.options import console
from tests.support.command_line import command_line
from tests.support.pictures.sample_images import encode
from tests.support.pictures.scenes import write_scenes
from tests.support.servers.browser import chromium

BOX = (0.45, 0.45, 0.55, 0.55)
FOUND = "003.png"


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder / "pictures", 12)
    return embed_here(folder / "pictures", folder / "collection", tiles="2x2")


@pytest.fixture(scope="module")
def url(collection: Collection) -> Iterator[str]:
    with running(create_app(build_service(ServeSettings(collection=collection.location)))) as url:
        yield url


@pytest.fixture(scope="module")
def query(collection: Collection) -> bytes:
    """The lower right part of a scene."""
    image = Image.open(Path(collection.location).parent / "pictures" / FOUND)
    return encode(image.crop((115, 115, 256, 256)), "png")


def test_every_interface_returns_the_box(
    collection: Collection,
    url: str,
    query: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Likeness.open(collection.location) as likeness:
        found = likeness.search(image=query, k=3)
        assert (found[0].image_id, found[0].box, len(likeness)) == (FOUND, BOX, 12)
        assert (found[0].score or 0.0) > 0.99
        assert found.to_pandas()["box"][0].tolist() == list(BOX)
        jpeg, plain = found.match_cards()[0].jpeg, likeness.thumbnail(FOUND)
        assert jpeg
        framed, whole = (np.asarray(Image.open(io.BytesIO(data)).convert("L")).astype(int) for data in (jpeg, plain))
        changed = np.argwhere(np.abs(framed - whole) > 60)
        assert changed.min() >= 64  # of 160 pixels: where the box is
        assert changed.max() >= 155
    with LikenessClient(url, timeout=30) as client:
        matches = client.search(image=query, k=3).matches
        assert [(match.image_id, match.box) for match in matches] == [(match.image_id, match.box) for match in found]
    (tmp_path / "query.png").write_bytes(query)
    run = command_line(monkeypatch, capsys)
    command = ("search", collection.location, tmp_path / "query.png", "-k", "1")
    assert json.loads(run(*command, "--format", "json").out)["matches"][0]["box"] == list(BOX)
    console.width = 120
    header, row = run(*command).out.splitlines()
    assert (header.split("\t")[5], row.split("\t")[5]) == ("box", "0.45,0.45,0.55,0.55")


@pytest.mark.browser
def test_the_page_draws_the_box_on_the_card_and_in_the_detail_view(url: str, query: bytes) -> None:
    with chromium() as browser:
        page = browser.new_page(base_url=url)
        page.goto("/")
        page.locator("input[type=file]").set_input_files({"name": "part.png", "mimeType": "image/png", "buffer": query})
        tile = page.locator(".grid:not([aria-hidden]) .tile").first
        for picture in (tile, page.locator("#subject")):
            expect(picture.locator(".crop-box")).to_be_visible()
            expect(picture.locator(".mat.loaded img")).to_be_visible()  # it has its size only then
            image = picture.locator("img").bounding_box()
            box = picture.locator(".crop-box").bounding_box()
            assert image
            assert box
            ratio = box["width"] / image["width"]
            assert ratio == pytest.approx(0.55, abs=0.05)
            assert (box["x"] - image["x"]) / image["width"] == pytest.approx(0.45, abs=0.05)
            assert (box["y"] - image["y"]) / image["height"] == pytest.approx(0.45, abs=0.05)
            if picture is tile:
                tile.locator(".tile-link").click()
                expect(page.locator("#subject").get_by_text("The part in the box matched")).to_be_visible()
