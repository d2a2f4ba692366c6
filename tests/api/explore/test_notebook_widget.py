"""The widget in a real JupyterLab and browser: clicks change the grid."""

import contextlib
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, TimeoutError, expect

from jobs.demo.collection import make_demo_collection
from tests.support.servers.browser import chromium

pytestmark = pytest.mark.browser

_CELLS = [
    "from api.explore import Likeness\nlikeness = Likeness.open({location!r})",
    'first = likeness.searcher.row("{first}")["image_id"]\nlikeness.explore(first, k=6)',
]
_START_S, _STEP_MS = 90, 90_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a notebook with the widget, in its own JupyterLab."""
    folder = tmp_path_factory.mktemp("lab")
    collection = make_demo_collection(folder / "demo", count=60)
    [first, *_] = collection.live_rows(["image_id"])["image_id"].to_pylist()
    cells = [cell.format(location=collection.location, first=first) for cell in _CELLS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / "explore.ipynb")
    token, log_file = secrets.token_hex(16), folder / "log.txt"
    settings = {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_CONFIG_DIR": str(folder / "jupyter")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    with log_file.open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **settings})
    try:
        yield f"{_address(log_file, server, token)}/lab/tree/explore.ipynb?reset&token={token}"
    finally:
        server.terminate()
        server.wait(30)


def _address(log: Path, server: "subprocess.Popen[bytes]", token: str) -> str:
    """The server's URL, once it answers; the log shows it earlier."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until and server.poll() is None:
        urls = [word for word in log.read_text().split() if word.startswith("http://127.0.0.1:")]
        if urls:
            base = urls[0].partition("/lab")[0]
            with (
                contextlib.suppress(urllib.error.URLError),
                urllib.request.urlopen(f"{base}/api?token={token}", timeout=30),
            ):
                return base
        time.sleep(0.2)
    pytest.fail(f"JupyterLab does not start: {log.read_text()[-2000:]}")


def _open_notebook(page: Page, address: str) -> None:
    """Open the notebook and wait for its kernel; earlier, Run asks for one. Retry if the page misses a message."""
    for tries_left in (3, 2, 1, 0):
        page.goto(address)
        try:
            page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=30_000)
            break
        except TimeoutError:
            if not tries_left:
                raise


@pytest.fixture
def page() -> Iterator[Page]:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        page.set_default_timeout(_STEP_MS)
        expect.set_options(timeout=_STEP_MS)
        yield page
        expect.set_options(timeout=None)


def _scores(grid: Locator) -> list[str]:
    return grid.locator(".lk-grid figcaption b").all_inner_texts()


def test_a_click_makes_a_match_the_query(lab: str, page: Page) -> None:
    _open_notebook(page, lab)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    grid = page.locator(".jp-OutputArea .likeness")
    expect(grid.locator(".lk-grid .lk-card")).to_have_count(6)
    status = grid.get_by_role("status")
    before, scores = status.inner_text(), _scores(grid)
    assert grid.locator("img").first.evaluate("image => image.naturalWidth") > 30

    second = grid.locator(".lk-like").nth(1)
    name = (second.get_attribute("aria-label") or "").removeprefix("more like ")
    second.click()
    expect(status).to_have_text(f"6 of 59 images like {name}")
    assert _scores(grid) != scores
    assert grid.locator(".lk-query figcaption").inner_text().splitlines() == ["query", name]

    grid.get_by_role("button", name="next").click()
    expect(grid.get_by_text("page 2")).to_be_visible()
    lower = _scores(grid)
    grid.get_by_role("button", name="previous").click()
    expect(grid.get_by_text("page 1")).to_be_visible()
    assert max(lower) <= min(_scores(grid))

    grid.get_by_role("button", name="slide towards").nth(2).click(force=True)
    slider = grid.get_by_role("slider")
    expect(slider).to_have_value("0.5")
    slider.focus()
    slider.press("Home")
    expect(status).to_have_text(f"6 of 59 images like {name}")

    for _ in range(5):
        grid.get_by_role("button", name="back").click()
        page.wait_for_timeout(300)
    expect(status).to_have_text(before)
    assert _scores(grid) == scores
