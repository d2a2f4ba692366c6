"""Routes that show the server's state and its index versions, and switch the live version."""

from collections.abc import Callable
from functools import partial
from typing import Final

from anyio import to_thread
from fastapi import APIRouter, Request

from api.documents import IndexDetailsOut, SwitchedOut, VersionsOut
from api.http.middleware.every_request import COLLECTION, HAS_PREFIX
from api.http.openapi import PROMOTE_BODY
from api.http.problem_responses import problem_docs
from api.http.query_runner import QueryRunner
from api.http.requests import PROMOTE
from api.http.responses import index_details, version_out
from api.problems import BODY_PROBLEMS, Forbidden, NotReady, VersionNotUsable, invalid
from api.search.engine import LiveEngine
from index.collection import Collection
from index.errors import CollectionError
from index.versions.promotion import list_versions, promote, rollback

_Redact = Callable[[str], str]
_PROBLEMS: Final = (Forbidden, VersionNotUsable)


def probe_routes(runner: QueryRunner) -> APIRouter:
    """`/healthz` and `/readyz`."""
    router = APIRouter(tags=["state"])

    @router.get("/healthz", summary="The process is up")
    async def healthz() -> dict[str, str]:
        return {"status": "up"}

    @router.get("/readyz", summary="A query can be answered", responses=problem_docs(NotReady))
    async def readyz(request: Request) -> dict[str, str]:
        if not (runner.collections.is_single or request.scope[HAS_PREFIX]):
            return {"status": "ready"}  # collections are opened by their first request
        service = await runner.service(request)
        if not service.live.has_answered:
            raise NotReady("the server cannot answer queries now; its log says why")
        return {"status": "ready", "index": service.engine.searcher.version}

    return router


def index_routes(runner: QueryRunner) -> APIRouter:
    """`GET /index` and `/index/versions`, `POST /index/promote` and `/index/rollback`."""
    router, limits, bodies = APIRouter(prefix="/index", tags=["index versions"]), runner.limits, runner.bodies

    async def resolve(request: Request) -> tuple[LiveEngine, Collection, _Redact]:
        """The request's collection, the engine that follows it, and how to redact messages about it."""
        service, collection = await runner.with_collection(request)
        return service.live, collection, partial(runner.redacted, name=request.scope[COLLECTION])

    @router.get("", summary="The index version that this server answers from, with its recall")
    async def index(request: Request) -> IndexDetailsOut:
        live = (await runner.service(request)).live
        return index_details(request.scope[COLLECTION], live.engine.searcher, limits, embeds_texts=live.embeds_texts)

    @router.get("/versions", summary="All complete index versions")
    async def versions(request: Request) -> VersionsOut:
        live, collection, redacted = await resolve(request)
        listed = await to_thread.run_sync(list_versions, collection)
        serving = live.engine.searcher.version
        shown = [version_out(version, serving, limits.show_locations, redacted) for version in listed]
        return VersionsOut(versions=shown)

    @router.post(
        "/promote",
        summary="Make a version live, after verifying every byte of it",
        responses=problem_docs(*BODY_PROBLEMS, *_PROBLEMS),
        openapi_extra={"requestBody": PROMOTE_BODY},
    )
    async def promote_version(request: Request) -> SwitchedOut:
        promotion = await bodies.json(request, PROMOTE.read, "application/json")
        live, collection, redacted = await resolve(request)
        return await to_thread.run_sync(_promote, live, collection, promotion["version"], redacted)

    @router.post(
        "/rollback",
        summary="Make the newest good version before the live one live again",
        responses=problem_docs(*_PROBLEMS),
    )
    async def roll_back(request: Request) -> SwitchedOut:
        return await to_thread.run_sync(_roll_back, *await resolve(request))

    return router


def _promote(live: LiveEngine, collection: Collection, version: str, redacted: _Redact) -> SwitchedOut:
    known = collection.versions()
    if version not in known:
        raise invalid("version", f"one of {', '.join(known)}", version)
    try:
        promote(collection, version)
    except CollectionError as error:
        raise VersionNotUsable(redacted(str(error))) from error
    return _switched_out(live, version, {}, redacted)


def _roll_back(live: LiveEngine, collection: Collection, redacted: _Redact) -> SwitchedOut:
    try:
        done = rollback(collection)
    except CollectionError as error:
        raise VersionNotUsable(redacted(str(error))) from error
    return _switched_out(live, done.manifest.version, done.skipped, redacted)


def _switched_out(live: LiveEngine, version: str, skipped: dict[str, str], redacted: _Redact) -> SwitchedOut:
    before = live.engine.searcher.version
    live.refresh()
    return SwitchedOut(
        live=version,
        before=before,
        serving=live.engine.searcher.version,
        failure=live.failure and redacted(live.failure),
        skipped={name: redacted(reason) for name, reason in skipped.items()},
    )
