"""Locators, actions and checks for tests of the web page in a browser."""

import re
from collections.abc import Callable
from urllib.parse import parse_qs, quote, urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from jobs.demo.gallery import Exhibit
from tests.support.servers.page_server import Site


def exhibit(site: Site, fits: Callable[[Exhibit], bool] = lambda _: True) -> Exhibit:
    """A picture that the gallery has once."""
    return next(each for each in site.gallery.exhibits[1:] if fits(each))


def tiles(page: Page) -> Locator:
    return page.locator(".grid:not([aria-hidden]) .tile")


def ids(page: Page) -> list[str]:
    """The ids of the matches, once they are shown."""
    expect(tiles(page).first).to_be_visible()
    return tiles(page).locator(".tile-link").evaluate_all("links => links.map((link) => link.title)")  # type: ignore[no-any-return]


def labels(page: Page) -> set[str]:
    expect(tiles(page).first).to_be_visible()
    return set(tiles(page).locator(".chip[title^='label: ']").all_inner_texts())


def params(page: Page) -> dict[str, str]:
    """The query in the page's address."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def search(page: Page, words: str) -> None:
    page.get_by_role("textbox", name="Words, or the web address").fill(words)
    page.get_by_role("button", name="Search", exact=True).click()


def check_axe(page: Page) -> None:
    """Fails if axe finds violations of accessibility rules."""
    found = Axe().run(page).response["violations"]
    assert {violation["id"]: [node["html"] for node in violation["nodes"]] for violation in found} == {}


def heading(page: Page, name: str | re.Pattern[str]) -> Locator:
    return page.get_by_role("heading", name=name)


def address_of(picture: Exhibit) -> str:
    return f"/picture?id={quote(picture.image_id)}"
