"""A small app with routes of each kind behind `install_access` and `HeadersMiddleware`."""

from collections.abc import Callable
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient

from api.http.middleware.admission import Slots
from api.http.middleware.auth import install_access
from api.http.middleware.telemetry import CatchAll, HeadersMiddleware
from api.http.openapi import install_description
from api.http.problems import install_problems
from api.settings import Access, RequestLimits


def guarded(access: Access, work: Callable[[], object] = lambda: None) -> FastAPI:
    """An app with routes of each kind; `POST /search` does `work` in a thread."""
    app = FastAPI()
    install_problems(app)
    app.add_middleware(CatchAll)

    async def answer() -> PlainTextResponse:
        return PlainTextResponse("answer")

    for path in ("/", "/healthz", "/readyz", "/metrics", "/web/main.js", "/picture", "/index"):
        app.add_api_route(path, answer)
    for path in ("/index/promote", "/index/rollback", "/embed"):
        app.add_api_route(path, answer, methods=["POST"])

    @app.post("/search")
    async def search() -> str:
        await to_thread.run_sync(work)
        return "found"

    @app.get("/framed")
    async def framed() -> PlainTextResponse:
        return PlainTextResponse("", headers={"Content-Security-Policy": "sandbox", "Referrer-Policy": "origin"})

    install_access(app, access, Slots(64, "searches are being worked on"))
    app.add_middleware(HeadersMiddleware)
    install_description(app, RequestLimits(), access)
    return app


def on_this_machine(app: FastAPI, **options: Any) -> TestClient:
    """A client that may change index versions without a key: the test client's own address is nowhere."""
    return TestClient(app, base_url="http://localhost:8000", client=("127.0.0.1", 50000), **options)


def local(access: Access, work: Callable[[], object] = lambda: None, **options: Any) -> TestClient:
    """A client on this machine of an app with this access."""
    return on_this_machine(guarded(access, work), **options)


def told(response: Any) -> tuple[int, str]:
    """Status and the problem's name."""
    return response.status_code, response.json()["type"].removeprefix("urn:likeness:problem:")
