"""Images with the same address, as in lists of products: one is read and embedded, the others get copies of its row."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.rows import STATE_COLUMNS, is_filtered
from index.storage.storage import Storage
from jobs.planning.image_filter import ImageFilter
from jobs.planning.known_rows import copied_blocks
from jobs.sources.listing import COPIED, FILE_FACTS, with_columns, with_outcome
from jobs.sources.stored_listing import Listing

_FACTS: Final = tuple(name for name in STATE_COLUMNS if name not in ("image_id", "uri"))
_WRITTEN: Final = f"""
SELECT number, seq, {", ".join(f"row.{name}" for name in _FACTS)}
FROM (SELECT seq AS number, uri FROM {{todo}}) LEFT JOIN {{c}}.addresses USING (uri)
LEFT JOIN {{c}}.written AS row USING (seq)
"""


def first_of_each_address(todo: Listing, image_filter: ImageFilter) -> tuple[Listing, Listing | None]:
    """The images to read, and the others, if any, which share an address with one of these."""
    if image_filter.measures:  # rows do not store the measures, so each image has to be judged on its own
        return todo, None
    catalog = todo.catalog
    count = catalog.group("first", "min(seq) AS seq", f"FROM {todo.view} WHERE uri IS NOT NULL", "uri")
    count += catalog.create(f"INSERT INTO first SELECT seq FROM {todo.view} WHERE uri IS NULL")
    if count == todo.num_rows:
        return todo, None
    first, others = (
        Listing.of(todo.changed(f"FROM {{listing}} {join} JOIN {catalog.name}.first USING (seq)").tables())
        for join in ("SEMI", "ANTI")
    )
    return first, others


def find_copies(
    todo: Listing, storage: Storage, written: RunRows, image_filter: ImageFilter
) -> tuple[Iterator[pa.Table], Listing]:
    """Look for the addresses in the rows that have just been written: the rows of the images that get copies; and
    the images without such a row, or with one that the filter left out while it keeps them.
    """
    catalog = Catalog(storage, [written], live=False)
    catalog.group("addresses", "uri, min(seq) AS seq", "SELECT uri, seq FROM written", "uri")

    def images(*, known: bool) -> Iterator[pa.Table]:
        for row, listed in todo.beside(_WRITTEN.format(todo=todo.view, c=catalog.name)):
            failed, _ = image_filter.judge(with_outcome(listed, row, FILE_FACTS.names))
            decided: Any = pc.or_(pc.is_valid(failed), pc.invert(is_filtered(row)))
            mask = pc.and_(pc.is_valid(row["seq"]), decided)
            if known:
                found = {name: pc.coalesce(listed[name], row[name]) for name in ("modified", "etag")}
                copied = image_filter.leave_out(with_columns(listed, found), failed)
                yield with_columns(copied, {COPIED: row["seq"]}).filter(mask)
            else:
                yield listed.filter(pc.invert(mask))

    copies, waiting = Listing.of(images(known=True)), Listing.of(images(known=False))
    return copied_blocks(copies, catalog, image_filter), waiting
