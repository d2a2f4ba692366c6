"""Pictures of the grid and of the map, as the README shows them.

Made by `python -m tests.support.servers.notebook_screenshots docs`.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from api.explore import Likeness
from index.analysis.neighbourhoods import neighbourhoods, principal_plane
from jobs.demo.collection import make_demo_collection

_PAGE = '<body style="margin: 12px; width: 984px">{}</body>'


def main() -> None:
    parser = argparse.ArgumentParser(description="Write pictures of the grid and of the map.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        likeness = Likeness.open(make_demo_collection(Path(work)).location)
        found = neighbourhoods(likeness.searcher)
        points, _ = principal_plane(found.vectors)
        labels = [image_id.partition("/")[0] for image_id in found.ids]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name, shown in (
            ("notebook-grid", likeness.search("a striped red star", k=12)),
            ("notebook-map", likeness.map(points, list(found.ids), labels)),
        ):
            page = browser.new_page(viewport={"width": 1008, "height": 300})
            page.set_content(_PAGE.format(shown._repr_html_()))
            page.locator("body").screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
