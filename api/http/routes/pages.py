"""The web pages: `/` to search with, `/duplicates` to look at a plan, and the API's documentation at `/docs`.

Their files are in `web/`, but for those of Swagger UI. They need nothing but the HTTP interface.
"""

from importlib.resources import files
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response

from api.errors import Problem, abbreviate
from api.http.responses import tagged

FOLDER: Final = Path(__file__).parents[2] / "web"
_SWAGGER_UI: Final = ("swagger-ui-bundle.js", "swagger-ui.css")

# Named here, because what `mimetypes` says depends on the machine.
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

# `blob:` is for pictures that a browser holds: uploads, and those that it fetched with a key.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    # Revalidated each time, mostly with a 304, since the page and its server must be of one release.
    "Cache-Control": "no-cache",
}


def install_web(app: FastAPI) -> None:
    """Let `app` serve the pages, and their files below `/web/`. They are read once, here."""
    served = _read_files()

    async def page(request: Request) -> Response:
        return tagged(request, *served["index.html"], _HEADERS)

    async def docs(request: Request) -> Response:
        return tagged(request, *served["docs.html"], _HEADERS)

    async def duplicates(request: Request) -> Response:
        return tagged(request, *served["duplicates.html"], _HEADERS)

    async def file(request: Request, name: str) -> Response:
        if name not in served:
            raise Problem("not-found", f"no file {abbreviate(name)} below /web")
        return tagged(request, *served[name], _HEADERS)

    for path, endpoint in (("/", page), ("/docs", docs), ("/duplicates", duplicates), ("/web/{name}", file)):
        app.add_api_route(path, endpoint, include_in_schema=False)


def _read_files() -> dict[str, tuple[bytes, str]]:
    data = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}
    # FastAPI's own page would load these from a CDN, which needs a network and trust in it.
    swagger_ui = files("fastapi_offline") / "static"
    data |= {name: (swagger_ui / name).read_bytes() for name in _SWAGGER_UI}
    return {name: (content, _MEDIA_TYPES[Path(name).suffix]) for name, content in data.items()}
