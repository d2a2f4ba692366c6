"""The rejects of a small collection, and the checks of its web addresses."""

from typing import Any

import pyarrow as pa

from index.collection import Collection
from index.collection.catalog.sql import quoted
from index.collection.catalog.workspace import Workspace
from index.collection.checks import Checks
from jobs.planning import rejects


def list_rejects(collection: Collection) -> list[dict[str, Any]]:
    """All of them, images that are left out too, by id."""
    catalog = collection.snapshot().newest()
    return list(rejects.list_rejects(catalog, rejects.count_reasons(catalog)))


def read_checks(collection: Collection, source: str | None = None) -> pa.Table:
    """The newest check of each address of a source; None: of all sources."""
    checks, of = Checks(collection), "true" if source is None else f"source = {quoted(source)}"
    return Workspace(collection.location).table(f"FROM {checks.sql} WHERE {of} ORDER BY source, uri")
