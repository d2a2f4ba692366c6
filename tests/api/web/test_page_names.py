"""Columns with names that every JavaScript object has or that the page gives to facts of its own, and long words."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

from tests.support.servers.page_server import columns_site
from tests.support.servers.page_tools import heading, ids, params, search, tiles

pytestmark = pytest.mark.browser

INHERITED = ("constructor", "toString", "valueOf", "__proto__")
OF_THE_PAGE = ("id", "pixels", "file", "source")
LONG = "W" * 300
LONG_NAME = "a_long_name_" * 9
SHORTENED = "W" * 120 + "…"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of six pictures, two of which share each value."""
    names = (*INHERITED, *OF_THE_PAGE)
    values = [
        {"caption": [LONG, "short"][number % 2], LONG_NAME: number}
        | {name: f"{name} of {'abc'[number % 3]}" for name in names}
        for number in range(6)
    ]
    types = dict.fromkeys(["caption", *names], pa.string()) | {LONG_NAME: pa.int64()}
    with columns_site(tmp_path_factory.mktemp("names"), values, types) as address:
        yield address


def facts(page: Page) -> list[tuple[str, str]]:
    rows = page.locator(".facts > div")
    terms, texts = rows.locator("dt").all_inner_texts(), rows.locator("dd").all_inner_texts()
    return list(zip(terms, texts, strict=True))


def test_all_columns_are_shown_beside_the_facts_of_a_picture(open_page: Callable[..., Page]) -> None:
    page = open_page("/?id=1.png")
    expect(heading(page, "More like 1.png")).to_be_visible()
    assert len(ids(page)) == 5
    shown = facts(page)
    assert {(name, f"{name} of b") for name in (*INHERITED, *OF_THE_PAGE)} <= set(shown)
    assert {("id", "1.png"), ("source", "memory:1.png")} <= set(shown)
    search(page, "of")
    tiles(page).first.locator(".tile-link").click()
    expect(heading(page, "More like")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_empty()


@pytest.mark.parametrize("name", INHERITED)
def test_values_of_any_column_are_filtered_counted_and_grouped(open_page: Callable[..., Page], name: str) -> None:
    page = open_page("/?filter=" + json.dumps({"caption": LONG}))
    assert ids(page) == ["0.png", "2.png", "4.png"]
    page.get_by_text("Filters and options").click()
    values = page.get_by_role("list", name=name, exact=True).get_by_role("link")
    expect(values).to_have_text([f"{name} of {letter}1" for letter in "abc"])
    values.first.click()
    expect(page.get_by_label(f"{name}, value")).to_have_value(f"{name} of a")
    assert ids(page) == ["0.png"]
    assert json.loads(params(page)["filter"]) == {"caption": LONG, name: f"{name} of a"}
    search(page, "of")
    expect(page.locator(".facet [aria-current]", has_text=f"{name} of a")).to_be_visible()
    page.get_by_role("button", name=f"Remove the filter on {name}").click()
    page.get_by_label("Group by").select_option(name)
    stacks = tiles(page).locator(".group")
    expect(stacks).to_have_count(3)
    stacks.filter(has_text=f"{name} of b").click()
    assert json.loads(params(page)["filter"]) == {"caption": LONG, name: f"{name} of b"}


LONG_FILTER = "/?filter=" + json.dumps({"caption": LONG})


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("address", ["/", "/?group_by=caption", "/?id=0.png", LONG_FILTER])
def test_a_long_word_is_no_wider_than_the_window(open_page: Callable[..., Page], address: str, width: int) -> None:
    size: Any = {"width": width, "height": 800}
    page = open_page(address, viewport=size)
    ids(page)
    if page.locator("#unfold").is_visible():
        page.locator("#unfold").click()
    page.get_by_text("Filters and options").click()
    expect(page.locator(".facet").get_by_role("link", name=SHORTENED)).to_be_visible()
    if address == LONG_FILTER:
        expect(heading(page, SHORTENED)).to_have_text(SHORTENED)
        expect(page.get_by_role("list", name="Filters in use")).to_have_text(f"caption: {SHORTENED} ×")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    edges = page.locator(".word, .chip, .group").evaluate_all("all => all.map((it) => it.getBoundingClientRect().left)")
    assert edges
    assert min(edges) >= 0
