"""Pictures of the web page, and of a notebook's grid and map, as README shows them.

Made by `python -m tests.support.servers.screenshots docs`.
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from api.explore import Likeness
from index.analysis.neighbourhoods import neighbourhoods, principal_plane
from jobs.demo.collection import make_demo_collection
from tests.support.servers.page_server import gallery_site

_WIDE: Any = {"width": 1280, "height": 860}
_PHONE: Any = {"width": 390, "height": 844}
_NOTEBOOK = '<body style="margin: 12px; width: 984px">{}</body>'


def main() -> None:
    parser = argparse.ArgumentParser(description="Write pictures of the web page, of the grid and of the map.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        web_page(browser, Path(work) / "site", folder)
        notebook(browser, Path(work) / "demo", folder)
        browser.close()


def web_page(browser: Browser, work: Path, folder: Path) -> None:
    with gallery_site(work, count=400) as site:
        shots: list[tuple[str, Any, Any, str]] = [
            ("page-light", _WIDE, "light", "/?text=a+striped+red+star"),
            ("page-dark", _WIDE, "dark", "/?id=" + site.gallery.exhibits[1].image_id),
            ("page-phone", _PHONE, "light", "/?text=a+dotted+blue+heart"),
        ]
        for name, viewport, scheme, address in shots:
            phone = viewport is _PHONE
            context = browser.new_context(
                base_url=site.url,
                viewport=viewport,
                color_scheme=scheme,
                device_scale_factor=2 if phone else 1.5,
                is_mobile=phone,
            )
            page = context.new_page()
            page.goto(address)
            page.locator(".grid:not([aria-hidden]) .mat.here").first.wait_for()
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(500)  # the pictures fade in
            page.screenshot(path=folder / f"{name}.png")
            context.close()


def notebook(browser: Browser, work: Path, folder: Path) -> None:
    likeness = Likeness.open(make_demo_collection(work).location)
    found = neighbourhoods(likeness.searcher)
    points, _ = principal_plane(found.vectors)
    labels = [image_id.partition("/")[0] for image_id in found.ids]
    for name, shown in (
        ("notebook-grid", likeness.search("a striped red star", k=12)),
        ("notebook-map", likeness.map(points, list(found.ids), labels)),
    ):
        page = browser.new_page(viewport={"width": 1008, "height": 300})
        page.set_content(_NOTEBOOK.format(shown._repr_html_()))
        page.locator("body").screenshot(path=folder / f"{name}.png")


if __name__ == "__main__":
    main()
