"""The checks of a collection's web addresses, as a table."""

import pyarrow as pa

from index.collection import Collection
from index.collection.catalog.catalog import Catalog
from index.collection.catalog.sql import quoted
from index.collection.checks import Checks


def read_checks(collection: Collection, source: str | None = None) -> pa.Table:
    """The newest check of each address of a source; None: of all sources."""
    checks, of = Checks(collection), "true" if source is None else f"source = {quoted(source)}"
    return Catalog(collection.storage, [], live=False).table(f"FROM {checks.sql} WHERE {of} ORDER BY source, uri")
