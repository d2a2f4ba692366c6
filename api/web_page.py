"""The web page at `/`, for people to search with. Its files are in `web/`; it needs nothing but the HTTP interface."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import Response

from api.errors import Problem, shortened

FOLDER: Final = Path(__file__).with_name("web")

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
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for anew each time, and mostly answered with 304: the page and its server are of one release.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, kw_only=True)
class _File:
    data: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> "_File":
        data = path.read_bytes()
        etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        return cls(data=data, media_type=_MEDIA_TYPES[path.suffix], etag=etag)

    def response(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self.etag}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self.etag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.data, media_type=self.media_type, headers=headers)


def install_web(app: FastAPI) -> None:
    """Let `app` serve the page at `/` and its files below `/web/`. They are read once, here."""
    files = {path.name: _File.read(path) for path in FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}

    async def page(request: Request) -> Response:
        return files["index.html"].response(request)

    async def file(request: Request, name: str) -> Response:
        if name not in files:
            raise Problem("not-found", f"no file {shortened(name)} below /web")
        return files[name].response(request)

    for path, endpoint in (("/", page), ("/web/{name}", file)):
        app.add_api_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)
