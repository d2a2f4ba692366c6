"""The plan that `likeness duplicates` wrote. Nothing is computed here, so searches do not wait."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from api.http.problems import problem_docs
from api.http.query_runner import QueryRunner
from index.analysis.duplicate_plan import PlannedGroup, PlanSummary, read_plan

Offset = Annotated[int, Query(ge=0, le=10**9, description="how many groups to skip")]
Limit = Annotated[int, Query(ge=1, le=100, description="how many groups to return at most")]


class DuplicatesOut(BaseModel):
    plan: Annotated[PlanSummary | None, Field(description="null if `likeness duplicates` has not written one yet")]
    serving: Annotated[str, Field(description="the index version that this server answers from")]
    groups: list[PlannedGroup]


def duplicate_routes(runner: QueryRunner) -> APIRouter:
    """`GET /duplicates/plan`."""
    router = APIRouter(tags=["images"])

    @router.get(
        "/duplicates/plan",
        summary="The plan of `likeness duplicates`: which copies to keep and which to remove",
        responses=problem_docs("invalid-request", "internal"),
    )
    async def plan(request: Request, offset: Offset = 0, limit: Limit = 20) -> DuplicatesOut:
        service, collection = await runner.with_collection(request)
        summary, groups = await to_thread.run_sync(read_plan, collection, offset, limit) or (None, [])
        if not runner.limits.show_locations:
            groups = [group.without_locations() for group in groups]
        return DuplicatesOut(plan=summary, serving=service.engine.searcher.version, groups=groups)

    return router
