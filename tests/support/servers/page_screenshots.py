"""Screenshots of the web page, as the README shows them: `python -m tests.support.servers.page_screenshots docs`."""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.support.servers.page_server import gallery_site

_WIDE: Any = {"width": 1280, "height": 860}
_PHONE: Any = {"width": 390, "height": 844}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write screenshots of the web page.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    with (
        tempfile.TemporaryDirectory() as work,
        gallery_site(Path(work), count=400) as site,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        shots: list[tuple[str, Any, Any, str]] = [
            ("page-light", _WIDE, "light", "/?text=a+striped+red+star"),
            ("page-dark", _WIDE, "dark", "/?id=" + site.gallery.exhibits[1].image_id),
            ("page-phone", _PHONE, "light", "/?text=a+dotted+blue+heart"),
        ]
        for name, viewport, scheme, address in shots:
            scale = 2 if viewport is _PHONE else 1.5
            context = browser.new_context(
                base_url=site.url,
                viewport=viewport,
                color_scheme=scheme,
                device_scale_factor=scale,
                is_mobile=viewport is _PHONE,
            )
            page = context.new_page()
            page.goto(address)
            settle(page)
            page.screenshot(path=folder / f"{name}.png")
            context.close()
        browser.close()


def settle(page: Page) -> None:
    """Wait until the pictures that can be seen are there, and have faded in."""
    page.locator(".grid:not([aria-hidden]) .mat.here").first.wait_for()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)


if __name__ == "__main__":
    main()
