"""Searches for words on the page: why a picture was found, the words in texts and pictures, and the choice of both."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Locator, Page, expect

from index.collection.records.index_settings import IndexSettings
from tests.support.servers.page_server import PicturesOnly, columns_site
from tests.support.servers.page_tools import check_axe, heading, ids, params, search, tiles

pytestmark = pytest.mark.browser

COUNT = 240
CAFE = "quiet/cafe.png"
WRITTEN = "Open daily\nCAFÉ Straße\nno dogs"
BOXES = [[0.1, 0.1, 0.5, 0.1], [0.2, 0.4, 0.6, 0.2], [0.1, 0.8, 0.3, 0.1]]
CAPTION = "It is very early in the morning, and nobody is there yet; then a wombat walks in <b>slowly</b>"


def written_site(folder: Path, **options: Any) -> AbstractContextManager[str]:
    """Pictures of one colour each; one has a caption and lines of text."""
    names = [f"plain/{number:03}.png" for number in range(COUNT)]
    names[COUNT // 2] = CAFE  # its colour is neither first nor last
    texts = {CAFE: {"caption": CAPTION, "written": WRITTEN, "written_boxes": BOXES}}
    values = [
        {"image_id": name, "label": ("tea", "mint")[number % 2]} | texts.get(name, {})
        for number, name in enumerate(names)
    ]
    types = dict.fromkeys(("caption", "written", "label"), pa.string())
    return columns_site(folder, values, types | {"written_boxes": pa.list_(pa.list_(pa.float32()))}, **options)


@pytest.fixture(scope="module")
def with_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with written_site(tmp_path_factory.mktemp("both")) as address:
        yield address


@pytest.fixture(scope="module")
def with_words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with written_site(tmp_path_factory.mktemp("words"), embedder=PicturesOnly()) as address:
        yield address


@pytest.fixture(scope="module")
def with_meaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with written_site(tmp_path_factory.mktemp("meaning"), settings=IndexSettings(words=())) as address:
        yield address


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(getattr(request, "param", "with_both"))
    return address


def cafe(page: Page) -> Locator:
    return tiles(page).filter(has=page.locator(f".tile-link[title='{CAFE}']"))


def marks(where: Locator) -> list[str]:
    return where.locator("mark").all_inner_texts()


def test_a_card_says_that_its_words_were_found(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=WOMB*")
    card = cafe(page)
    expect(card.locator(".tile-why")).to_have_text("found by its words in caption")
    assert marks(card) == ["wombat"]
    expect(card.locator(".tile-words")).to_contain_text(re.compile(r"^….*then a wombat walks in <b>slowly</b>$"))
    expect(card.locator("b")).to_have_count(0)
    expect(tiles(page).locator(".tile-why")).to_have_count(1)
    check_axe(page)
    search(page, "cafe strasse")
    expect(cafe(page).locator(".tile-why")).to_have_text("found by its words in path, written")
    assert marks(cafe(page)) == ["cafe", "CAFÉ", "Straße"]  # its name, then the text
    search(page, "tea")
    expect(tiles(page).first.locator(".chip mark")).to_have_text("tea")
    expect(tiles(page).first.locator(".tile-words")).to_have_count(0)  # the value says so


@pytest.mark.parametrize(
    ("text", "terms", "marked"),
    [
        ("Red star, red", ["red"], ["Red", "red"]),
        ("a red star; star red", ["red star"], ["red", "star"]),
        ("stars and starfish", ["star*"], ["stars", "starfish"]),
        ("stars", ["star"], []),
        ("E\u0301cole ÉCOLE ecole", ["ecole"], ["E\u0301cole", "ÉCOLE", "ecole"]),
        ("STRASSE Straße", ["strasse"], ["STRASSE", "Straße"]),
        ("東京都に行く", ["東 京", "京 都"], ["東", "京", "都"]),
        ("t-shirt shirt t", ["t shirt"], ["t", "shirt"]),
        ("co\u00adoperate", ["cooperate"], ["co\u00adoperate"]),
        ("", ["a"], []),
        ("nothing", [], []),
    ],
    ids=str,
)
def test_words_are_marked_as_the_index_compares_them(
    open_page: Callable[..., Page], text: str, terms: list[str], marked: list[str]
) -> None:
    code = """async ([text, terms]) => (await import("/web/words.js")).marked(text, terms).map(
        (part) => typeof part === "string" ? [part, false] : [part.textContent, true])"""
    parts = open_page().evaluate(code, [text, terms])
    assert [part for part, is_mark in parts if is_mark] == marked
    assert "".join(part for part, _ in parts) == text


def test_lines_with_the_words_have_boxes_in_the_picture(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=strasse+dogs")
    expect(cafe(page).locator(".line-box")).to_have_count(2)
    expect(page.locator(".line-box")).to_have_count(2)
    cafe(page).locator(".tile-link").click()
    expect(heading(page, "More like cafe.png")).to_be_visible()
    large = page.locator(".subject")
    expect(large.get_by_text("The lines in boxes have words of the search.")).to_be_visible()
    expect(large.locator("mark")).to_have_text(["Straße", "dogs"])
    expect(large.locator("dd").filter(has_text="Straße")).to_have_css("white-space", "pre-line")
    expect(large.locator("dt", has_text="written_boxes")).to_have_count(0)
    expect(large.locator(".mat.loaded img")).to_be_visible()  # it has its size only then
    picture, box = large.locator(".crop").bounding_box(), large.locator(".line-box").first.bounding_box()
    assert picture
    assert box
    border = 5  # pixels, outside of the line
    found = [
        (box["x"] + border - picture["x"]) / picture["width"],
        (box["y"] + border - picture["y"]) / picture["height"],
    ]
    found += [(box["width"] - 2 * border) / picture["width"], (box["height"] - 2 * border) / picture["height"]]
    assert found == pytest.approx(BOXES[1], abs=0.01)
    check_axe(page)
    page.get_by_role("button", name="Search a part").click()
    expect(large.locator(".line-box")).to_have_count(0)
    page.goto("/")
    cafe(page).or_(tiles(page).first).first.click()
    expect(page.locator(".subject")).to_be_visible()
    expect(page.locator("mark, .line-box")).to_have_count(0)


def test_meaning_and_words_can_be_chosen(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=wombat&sort=label")
    expect(page.get_by_role("status")).to_contain_text("· by meaning alone")
    page.get_by_text("Filters and options").click()
    hint = page.get_by_text("Searches by words score lower")
    expect(hint).to_be_visible()
    choice = page.get_by_label("Search for")
    assert choice.locator("option").all_inner_texts() == ["meaning and words", "meaning only", "words only"]
    choice.select_option("words only")
    expect(tiles(page)).to_have_count(1)
    assert params(page)["words"] == "only"
    expect(page.get_by_role("status")).to_contain_text("1 picture ·")
    expect(cafe(page).locator(".tile-why")).to_be_visible()
    expect(page.locator(".tile-score")).to_have_count(0)  # it has none
    expect(hint).to_be_hidden()
    for label in ("Minimum score", "Diversity", "Fold duplicates"):
        expect(page.get_by_label(label, exact=True)).to_be_disabled()
    check_axe(page)
    page.reload()
    expect(tiles(page)).to_have_count(1)
    search(page, "nothing of this")
    expect(page.get_by_text("No text has these words.")).to_be_visible()
    page.get_by_text("Filters and options").click()
    choice.select_option("meaning only")
    expect(tiles(page)).to_have_count(24)
    search(page, "wombat")
    expect(heading(page, "“wombat”")).to_be_visible()
    expect(tiles(page)).to_have_count(24)
    expect(page.locator(".tile-why")).to_have_count(0)
    assert params(page) == {"text": "wombat", "sort": "label", "words": "off"}
    expect(page.get_by_label("Minimum score")).to_be_enabled()


def test_words_alone_are_sorted_grouped_and_counted(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=tea+wombat&words=only&sort=-image_id&min_score=0.9")
    plain = [f"plain/{number:03}.png" for number in range(0, COUNT, 2) if number != COUNT // 2]
    assert ids(page) == [CAFE, *reversed(plain)][:24]
    page.get_by_label("Group by").select_option("label")
    expect(tiles(page).locator(".group .count")).to_have_text([f"{COUNT // 2} pictures"])
    page.get_by_text("Filters and options").click()
    expect(page.get_by_role("list", name="label").get_by_role("link")).to_have_text(
        [re.compile(rf"^tea.*{COUNT // 2}")]
    )


@pytest.mark.parametrize("url", ["with_words"], indirect=True)
def test_words_without_a_model_that_knows_them(open_page: Callable[..., Page]) -> None:
    page = open_page()
    expect(page.locator("#welcome-text")).to_have_text(
        re.compile("^Show a picture to .*, or type words from its texts")
    )
    page.get_by_text("Filters and options").click()
    expect(page.get_by_label("Minimum score")).to_be_visible()
    for label in ("Search for", "Only what fits the words"):
        expect(page.get_by_label(label)).to_be_hidden()
    search(page, "wombat")
    assert ids(page) == [CAFE]
    expect(cafe(page).locator(".tile-why")).to_have_text("found by its words in caption")
    expect(page.get_by_label("Minimum score")).to_be_disabled()
    check_axe(page)
    page.goto("/?text=wombat&sort=label&min_score=0.2")  # such as the address of a search in another collection
    assert ids(page) == [CAFE]
    cafe(page).hover()
    cafe(page).get_by_role("button", name="More like").click()
    page.get_by_role("button", name="Search with these").click()
    expect(heading(page, "A mix of pictures")).to_be_visible()
    expect(tiles(page)).to_have_count(24)
    expect(page.get_by_label("Minimum score")).to_be_enabled()


@pytest.mark.parametrize("url", ["with_meaning"], indirect=True)
def test_no_choice_without_words_in_the_index(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=wombat")
    expect(tiles(page)).to_have_count(24)
    page.get_by_text("Filters and options").click()
    expect(page.get_by_label("Only what fits the words")).to_be_visible()
    expect(page.get_by_label("Search for")).to_be_hidden()
    expect(page.locator(".tile-why")).to_have_count(0)
