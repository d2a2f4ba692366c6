"""The files of the web page as they are served; what they do is tested in a browser."""

import re
from pathlib import PurePath

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.http.middleware.every_request import EveryRequestMiddleware
from api.http.problem_responses import PROBLEM_HANDLERS
from api.http.routes.pages import FOLDER, install_web
from api.observe.metrics import Metrics

POLICY = {
    *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' blob: data:"),
    *("connect-src 'self'", "form-action 'none'", "base-uri 'none'", "frame-ancestors 'none'"),
}


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI(docs_url=None, exception_handlers=PROBLEM_HANDLERS)
    install_web(app)
    app.add_middleware(EveryRequestMiddleware, metrics=Metrics(), first="collection")
    return TestClient(app)


TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
TYPES |= {".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


FILES = {"/": "index.html", "/docs": "docs.html", "/duplicates": "duplicates.html"}
FILES |= {f"/web/{name}": name for name in ("main.js", "style.css", "icon.svg", "docs.js")}


@pytest.mark.parametrize(("address", "name"), FILES.items())
def test_a_file_has_its_type_and_a_strict_policy(client: TestClient, address: str, name: str) -> None:
    response = client.get(address)
    assert response.status_code == 200
    assert response.content == (FOLDER / name).read_bytes()
    assert response.headers["content-type"] == TYPES[PurePath(name).suffix]
    assert set(response.headers["content-security-policy"].split("; ")) == POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "no-cache"


def test_a_file_that_the_browser_has_cached_is_not_sent_again(client: TestClient) -> None:
    etag = client.get("/web/main.js").headers["etag"]
    again = client.get("/web/main.js", headers={"if-none-match": f'"other", W/{etag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert client.get("/", headers={"if-none-match": etag}).status_code == 200
    assert client.get("/", headers={"if-none-match": "*"}).status_code == 304


@pytest.mark.parametrize("path", ["/web/", "/web/none.js", "/web/../app.py", "/web/%2e%2e/app.py", "/web/..%2fapp.py"])
def test_nothing_else_is_below_web(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert response.json()["type"] == "urn:likeness:problem:not-found"


@pytest.mark.parametrize("address", ["/", "/docs", "/duplicates"])
def test_a_page_needs_nothing_from_elsewhere(client: TestClient, address: str) -> None:
    """No outside addresses, and no inline scripts and styles, which the policy would block."""
    page = client.get(address).text
    named = re.findall(r'(?:src|href)="([^"#]*)"', page)
    own = [name for name in named if name.startswith("web/")]
    assert own
    assert [client.get(f"/{name}").status_code for name in own] == [200] * len(own)
    assert not [name for name in named if "//" in name]
    assert not re.search(r"<style|<script(?![^>]*src=)|style=|\son\w+=", page)


def test_every_module_that_is_imported_is_served(client: TestClient) -> None:
    for path in FOLDER.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', path.read_text()):
            assert client.get(f"/web/{name}").status_code == 200, f"{path.name} imports {name}"
