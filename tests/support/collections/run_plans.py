"""A plan for one source, and its images."""

import pyarrow as pa

from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from jobs.planning.changes import compare
from jobs.planning.decide import PlannedJob
from jobs.planning.plan import Plan
from jobs.planning.todo import Todo
from jobs.sources.stored_listing import Listing


def run_plan_of(listing: pa.Table, collection: Collection, source: str, model: ModelRecord) -> Plan:
    """The plan of a run over a listing."""
    change = compare(Listing.of([listing]), collection.snapshot(), PlannedJob(source=source, model=model))
    [plan, *_] = change.plans
    return plan


def ids_to_delete(plan: Plan) -> list[str]:
    """The ids that the run will record as deleted."""
    gone = plan.deletes
    return [str(row["image_id"]) for row in gone.workspace.rows(f"FROM {gone.sql} ORDER BY seq")] if gone else []


def images_to_do(todo: Todo) -> pa.Table:
    """All images to do."""
    return pa.concat_tables([todo.schema.empty_table(), *todo.tables()])
