"""A browser, and pages of a gallery in it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

from tests.support.servers.browser import chromium
from tests.support.servers.page_server import Site, gallery_site


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with gallery_site(tmp_path_factory.mktemp("site"), count=90) as site:
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def url(site: Site) -> str:
    """Address of the server whose pages a test opens; a file may override it."""
    return site.url


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator[Callable[..., Page]]:
    """Opens pages. Checks at the end that no script failed, nothing was blocked, and no other server was called."""
    problems: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        # The browser reports each status over 399 as an error. The page shows those itself.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            problems.append(message.text)

    def on_request(request: Request) -> None:
        if not request.url.startswith((f"{url}/", "blob:", "data:")):
            problems.append(request.url)

    contexts = []

    def open_address(address: str = "/", **options: Any) -> Page:
        context = browser.new_context(base_url=url, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", on_request)
        page.goto(address)
        return page

    yield open_address
    for context in contexts:
        context.close()
    assert problems == []
