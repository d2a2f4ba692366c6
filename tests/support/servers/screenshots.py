"""README's screenshots of the web page and of a notebook's grid and map.

Run `python -m tests.support.servers.screenshots docs`.
"""

import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

from api.build_service import build_service
from api.explore import Likeness
from api.http.app import create_app
from api.local import running
from api.settings import ServeSettings
from index.analysis.duplicate_plan import write_plan
from index.analysis.neighbourhoods import neighbourhoods
from index.analysis.plane import neighbour_plane
from jobs.demo.collection import embed_here, make_demo_collection
from jobs.duplicates.find import Finder
from jobs.duplicates.picture_loader import PictureLoader
from tests.support.pictures.copies import make_pictures
from tests.support.servers.page_server import gallery_site

_WIDE: Any = {"viewport": {"width": 1280, "height": 860}, "device_scale_factor": 1.5}
_PHONE: Any = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True}
_FILTERS = "/?text=red&filter=" + quote('{"label": {"$in": ["star", "heart"]}}')
_SHOTS: list[tuple[str, Any, str]] = [
    ("page-light", _WIDE, "/?text=a+striped+red+star"),
    ("page-dark", _WIDE | {"color_scheme": "dark"}, "/?id={id}"),
    ("page-filters", _WIDE, _FILTERS),
    ("page-groups", _WIDE, "/?text=red&group_by=label"),
    ("page-phone", _PHONE, "/?text=a+dotted+blue+heart"),
]


def web_page(browser: Browser, work: Path, folder: Path) -> None:
    with gallery_site(work, count=400, name="shapes") as site:
        for name, options, address in _SHOTS:
            page = browser.new_page(base_url=site.url, **options)
            page.goto(address.replace("{id}", site.gallery.exhibits[1].image_id))
            page.locator(".grid:not([aria-hidden]) .mat.loaded").first.wait_for()
            if name == "page-filters":
                page.get_by_text("Filters and options").click()
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(500)  # the pictures fade in
            page.screenshot(path=folder / f"{name}.png")
            page.close()


def duplicates(browser: Browser, work: Path, folder: Path) -> None:
    make_pictures(work)
    collection = embed_here(work, work.parent / "copies-collection")
    with closing(PictureLoader()) as reader:
        write_plan(collection, Finder(collection=collection, loader=reader).plan(work.parent))
    settings = ServeSettings(collection=collection.location)
    with running(create_app(build_service(settings))) as url:
        page = browser.new_page(base_url=url, **_WIDE)
        page.goto("/duplicates")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(500)
        page.screenshot(path=folder / "duplicates.png")


def notebook(browser: Browser, work: Path, folder: Path) -> None:
    likeness = Likeness.open(make_demo_collection(work).location)
    found = neighbourhoods(likeness.searcher)
    labels = [image_id.partition("/")[0] for image_id in found.ids]
    shown: dict[str, Any] = {
        "grid": likeness.search("a striped red star", k=12),
        "map": likeness.map(neighbour_plane(likeness.searcher.segments, found), list(found.ids), labels),
    }
    for name, each in shown.items():
        page = browser.new_page(viewport={"width": 1008, "height": 300})
        page.set_content(f'<body style="margin: 12px; width: 984px">{each._repr_html_()}</body>')
        page.locator("body").screenshot(path=folder / f"notebook-{name}.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        web_page(browser, Path(work) / "site", Path(sys.argv[1]))
        duplicates(browser, Path(work) / "copies", Path(sys.argv[1]))
        notebook(browser, Path(work) / "demo", Path(sys.argv[1]))
