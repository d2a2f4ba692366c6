"""The web pages: search at `/`, a plan of duplicates at `/duplicates`, and the API's documentation at `/docs`.

Their files are in `web/`, except for Swagger UI's. They use only the HTTP interface.
"""

from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response

from api.http.responses import etag_response
from api.problems import NotFound, abbreviate

PAGES: Final = {"/": "index.html", "/docs": "docs.html", "/duplicates": "duplicates.html"}
"""The files of the pages, by path."""
FOLDER: Final = Path(__file__).parents[2] / "web"
_SWAGGER_UI: Final = ("swagger-ui-bundle.js", "swagger-ui.css")

# Not from `mimetypes`, whose answers depend on the machine.
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

# `blob:` is for pictures in the browser's memory: uploads, and those that it fetched with a key.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    # Revalidated each time, mostly with a 304, because the page must match the server's release.
    "Cache-Control": "no-cache",
}


def install_web(app: FastAPI) -> None:
    """Serve the pages, and their files below `/web/`. The files are read once, here."""
    contents = _read_files()

    def page(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return etag_response(request, *contents[name], _HEADERS)

        return endpoint

    async def file(request: Request, name: str) -> Response:
        if name not in contents:
            raise NotFound(f"no file {abbreviate(name)} below /web")
        return etag_response(request, *contents[name], _HEADERS)

    for path, name in PAGES.items():
        app.add_api_route(path, page(name), include_in_schema=False)
    app.add_api_route("/web/{name}", file, include_in_schema=False)


def _read_files() -> dict[str, tuple[bytes, str]]:
    data = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}
    # FastAPI's own page loads these from a CDN, which needs a network, and trust in the CDN.
    swagger_ui = files("fastapi_offline") / "static"
    data |= {name: (swagger_ui / name).read_bytes() for name in _SWAGGER_UI}
    return {name: (content, _MEDIA_TYPES[Path(name).suffix]) for name, content in data.items()}
