"""A plan for one source."""

import pyarrow as pa

from index.collection import Collection
from index.collection.records import ModelRecord
from index.collection.rows import STATE_COLUMNS
from jobs.planning.plan import Plan, plan_run


def run_plan_of(listing: pa.Table, collection: Collection, source: str, model: ModelRecord) -> Plan:
    """The plan of a run over a listing."""
    snapshot = collection.snapshot()
    return plan_run(listing, snapshot, source, model, snapshot.live().of_model(model).read(STATE_COLUMNS))
