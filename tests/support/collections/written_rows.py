"""Reads what a run has written, live or not."""

from collections.abc import Sequence

import numpy as np

from index.collection import Collection
from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.live_rows import LiveRows
from index.collection.records import RowFile, RunStart


def written_rows(collection: Collection, run: RunStart, files: Sequence[RowFile]) -> LiveRows:
    """All rows in these files of a run, those of repeated ids too."""
    catalog = Catalog(collection.storage, [RunRows(run=run, files=files)], live=False)
    return LiveRows.at(catalog, np.asarray(catalog.table("SELECT seq FROM written ORDER BY seq")["seq"], np.int64))
