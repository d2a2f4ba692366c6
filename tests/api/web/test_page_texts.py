"""What the page calls things: pictures with titles, values, and searches that the model does not take."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Page, expect

from api.http.app import create_app
from api.local import running
from embedder.errors import UnsupportedInputError
from index.collection import Collection
from index.collection.records import IndexSettings
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, add_rows, embedded_row, fake_service
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.page_tools import heading, tiles

pytestmark = pytest.mark.browser


class PicturesOnly(FakeEmbedder):
    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise UnsupportedInputError("the model knows pictures only")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    embedder, collection = PicturesOnly(), Collection.create_or_open(str(tmp_path / "shop"))
    files = PLAIN | {f"{number}.png": data for number, data in enumerate(PLAIN.values())}
    rows = [embedded_row(f"img/{name}", f"memory:{name}", data, embedder) for name, data in files.items()]
    columns = {
        "title": ["Red mug", " ", *4 * [None]],
        "in_stock": [*3 * ["yes"], *3 * ["no"]],
        "colour": 2 * ["warm", "cold", "cold"],
    }
    metadata = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    rows = [row | more for row, more in zip(rows, metadata, strict=True)]
    add_rows(collection, rows, embedder, dict.fromkeys(columns, pa.string()), IndexSettings(words=()))
    with running(create_app(fake_service(Searcher.open(collection), embedder=embedder))) as url:
        yield url


def test_words_are_not_offered_if_neither_the_model_nor_the_index_takes_any(open_page: Callable[..., Page]) -> None:
    page = open_page()
    expect(page.get_by_role("textbox", name=re.compile("^A picture.s web address$"))).to_be_visible()
    expect(page.locator("#query-input")).to_have_attribute("placeholder", re.compile("^A picture.s web address$"))
    expect(page.locator("#welcome-text")).to_have_text(re.compile("^Show a picture to find"))
    page.get_by_text("Filters and options").click()
    expect(page.get_by_label("Minimum score")).to_be_visible()
    expect(page.get_by_label("Only what fits the words")).to_be_hidden()
    expect(page.get_by_label("Search for")).to_be_hidden()
    assert not re.search("words|describe", page.locator("body").inner_text(), re.IGNORECASE)


def test_titles_and_values_say_what_they_are(open_page: Callable[..., Page]) -> None:
    page = open_page("/?id=img/red.png")
    expect(heading(page, "More like Red mug")).to_be_visible()
    expect(tiles(page).locator(".tile-name")).to_have_text(["0.png", "2.png", "blue.png", "1.png", "green.png"])
    expect(tiles(page).first.locator(".chip")).to_have_text(["in_stock: no", "warm"])


def test_a_lost_upload_can_be_chosen_again(open_page: Callable[..., Page], tmp_path: Path) -> None:
    (tmp_path / "query.png").write_bytes(PLAIN["blue.png"])
    page = open_page()
    page.get_by_label("Choose a picture").set_input_files(tmp_path / "query.png")
    expect(heading(page, "Like your picture")).to_be_visible()
    page.reload()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose it again").click()
    chooser.value.set_files(tmp_path / "query.png")
    expect(heading(page, "Like your picture")).to_be_visible()
    expect(tiles(page).first.locator(".tile-name")).to_have_text(re.compile("^(blue|2).png$"))
    page.reload()
    page.get_by_role("link", name="Start over").click()
    expect(page.locator("#welcome-text")).to_be_visible()
