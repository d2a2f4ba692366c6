"""Writes the rows that need no model, because the collection has the outcome of the same image or content, or because
the listing itself refuses them.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.catalog.catalog import Catalog
from index.collection.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.rows import EMBEDDING, OUTCOME_COLUMNS, REJECT_COLUMNS, TILES, embedding_type
from jobs.planning.image_filter import ImageFilter
from jobs.planning.plan import Plan, write_block
from jobs.sources.listing import COPIED, with_columns, with_outcome
from jobs.sources.stored_listing import Listing

BLOCK: Final = 4096  # rows per file: 8 MB of vectors of 512 dimensions
_SORTED: Final = 1 << 17  # rows that are put in order at a time

_STARTS: Final = f"""
SELECT DISTINCT copied
FROM (SELECT {{copied}} AS copied, row_number() OVER (ORDER BY copied) - 1 AS number FROM {{images}})
WHERE number % {_SORTED} = 0 ORDER BY copied
"""


def write_known(plan: Plan, collection: Collection) -> Plan:
    """Write the rows that need no model; returns the plan of what is left."""
    files = list(plan.files)
    for rows in _known_rows(plan):
        run = plan.start(collection)
        plan = replace(plan, run=run)
        collection.check_lease()
        files.append(write_block(collection, run.run_id, plan.attempt, rows))
    return replace(plan, files=files)


def _known_rows(plan: Plan) -> Iterator[pa.Table]:
    if plan.copies and plan.catalog:
        yield from copied_blocks(plan.copies, plan.catalog, plan.image_filter)
    if plan.refused:
        nothing: Any = embedding_type(plan.model.dim)
        for rows in plan.refused.tables(BLOCK):
            yield rows.append_column(EMBEDDING, pa.nulls(rows.num_rows, nothing))


def copied_blocks(images: Listing, catalog: Catalog, image_filter: ImageFilter) -> Iterator[pa.Table]:
    """Rows of images, with the outcome of the row at their place `COPIED`: about in the order of these, so that few
    row files are read twice.
    """
    if not images.num_rows:
        return
    copied = images.catalog.aliases[COPIED]
    starts = images.catalog.table(_STARTS.format(copied=copied, images=images.view))["copied"].to_pylist()
    for first, end in pairwise([*starts, 1 << 62]):
        near = images.changed(f"FROM {{listing}} WHERE {copied} >= {first} AND {copied} < {end}")
        listed = pa.concat_tables(near.tables()).sort_by(COPIED)
        for start in range(0, listed.num_rows, BLOCK):
            yield _copied_rows(listed.slice(start, BLOCK), catalog, image_filter)


def _copied_rows(listed: pa.Table, catalog: Catalog, image_filter: ImageFilter) -> pa.Table:
    """Those that are refused have no vector."""
    seqs, again = np.unique(np.asarray(listed[COPIED], np.int64), return_inverse=True)
    known, listed = LiveRows.at(catalog, seqs), listed.drop_columns(COPIED)
    tiles = [TILES] if TILES in known.schema.names else []  # only models with tiles have them
    columns = [*OUTCOME_COLUMNS, *tiles, *REJECT_COLUMNS, *image_filter.exif_columns(known.metadata)]
    rows = with_outcome(listed, known.read([*columns, "size"]).take(again), columns)
    if pc.any(refused := pc.is_valid(listed["error_reason"])).as_py():
        kept: dict[str, Any] = {name: listed[name] for name in REJECT_COLUMNS}
        kept |= {name: pa.nulls(rows.num_rows, rows[name].type) for name in (EMBEDDING, *tiles)}
        rows = with_columns(rows, {name: pc.if_else(refused, kept[name], rows[name]) for name in kept})
    return rows
