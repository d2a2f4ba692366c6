"""What the page calls things: pictures with titles, values, and searches that the model does not take."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

from index.collection.records.index_settings import IndexSettings
from tests.support.servers.page_server import PicturesOnly, coloured, columns_site
from tests.support.servers.page_tools import heading, tiles

pytestmark = pytest.mark.browser


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    columns = {
        "image_id": [f"img/{number}.png" for number in range(6)],
        "title": ["Red mug", " ", *4 * [None]],
        "in_stock": [*3 * ["yes"], *3 * ["no"]],
        "colour": 2 * ["тёплый", "cold", "cold"],
    }
    values = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    types = dict.fromkeys(("title", "in_stock", "colour"), pa.string())
    with columns_site(tmp_path, values, types, embedder=PicturesOnly(), settings=IndexSettings(words=())) as url:
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
    page = open_page("/?id=img/0.png")
    expect(heading(page, "More like Red mug")).to_be_visible()
    expect(tiles(page).locator(".tile-name")).to_have_text([f"{number}.png" for number in range(1, 6)])
    expect(tiles(page).nth(2).locator(".chip")).to_have_text(["in_stock: no", "тёплый"])


def test_a_lost_upload_can_be_chosen_again(open_page: Callable[..., Page], tmp_path: Path) -> None:
    (tmp_path / "query.png").write_bytes(coloured(2, 6))
    page = open_page()
    page.get_by_label("Choose a picture").set_input_files(tmp_path / "query.png")
    expect(heading(page, "Like your picture")).to_be_visible()
    page.reload()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose it again").click()
    chooser.value.set_files(tmp_path / "query.png")
    expect(heading(page, "Like your picture")).to_be_visible()
    expect(tiles(page).first.locator(".tile-name")).to_have_text("2.png")
    page.reload()
    page.get_by_role("link", name="Start over").click()
    expect(page.locator("#welcome-text")).to_be_visible()
