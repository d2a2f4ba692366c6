"""Images with the same address, as in lists of products: one is read and embedded, the others get copies of its row."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.catalog.workspace import Workspace
from index.collection.rows import STATE_COLUMNS, is_filtered
from index.storage.storage import Storage
from jobs.planning.image_filter import ImageFilter
from jobs.planning.known_rows import copied_blocks
from jobs.planning.todo import IN_MEMORY, POSITION, Todo
from jobs.sources.listing import COPIED, FILE_FACTS, with_columns, with_outcome

_FACTS: Final = tuple(name for name in STATE_COLUMNS if name not in ("image_id", "uri"))
_SHARED: Final = "SELECT (SELECT count(uri) FROM {todo}) - (SELECT count(*) FROM first) AS images"
# A join, as DuckDB keeps all that an IN beside an OR may find in memory.
_IS_FIRST: Final = f"""
SELECT uri IS NULL OR first.number IS NOT NULL AS first
FROM (SELECT {POSITION}, uri FROM {{todo}}) LEFT JOIN first ON first.number = {POSITION}
ORDER BY {POSITION}
"""
_WRITTEN: Final = f"""
SELECT seq, {", ".join(f"row.{name}" for name in _FACTS)}
FROM (SELECT {POSITION}, uri FROM {{todo}}) LEFT JOIN addresses USING (uri) LEFT JOIN written AS row USING (seq)
ORDER BY {POSITION}
"""


def first_of_each_address(todo: Todo, image_filter: ImageFilter) -> tuple[Todo, Todo]:
    """The images to read, and the others, which share an address with one of these."""
    nothing = todo.slice(todo.num_rows)
    if image_filter.measures:  # rows do not store the measures, so each image has to be judged on its own
        return todo, nothing
    workspace, rows = Workspace(todo.storage.location), f"FROM {todo.sql} WHERE uri IS NOT NULL"
    workspace.group("first", f"min({POSITION}) AS number", rows, "uri", rows=todo.num_rows)
    [shared] = workspace.table(_SHARED.format(todo=todo.sql))["images"].to_pylist()
    if not shared:
        return todo, nothing

    def images(*, first: bool) -> Iterator[pa.Table]:
        with workspace.query(_IS_FIRST.format(todo=todo.sql), IN_MEMORY) as answers:
            for listed, answer in todo.beside(answers):
                yield listed.filter(pc.equal(answer["first"].cast(pa.bool_()), pa.scalar(first)))

    return Todo(images(first=True)), Todo(images(first=False))


def find_copies(
    todo: Todo, storage: Storage, written: RunRows, image_filter: ImageFilter
) -> tuple[Iterator[pa.Table], Todo]:
    """Look for the addresses in the rows that have just been written: the rows of the images that get copies; and
    the images without such a row, or with one that the filter left out while it keeps them.
    """
    catalog = Catalog(storage, [written], live=False)
    catalog.group("addresses", "uri, min(seq) AS seq", "SELECT uri, seq FROM written", "uri")

    def images(*, known: bool) -> Iterator[pa.Table]:
        with catalog.query(_WRITTEN.format(todo=todo.sql), IN_MEMORY) as answers:
            for listed, answer in todo.beside(answers):
                row = pa.Table.from_batches([answer])
                failed, _ = image_filter.judge(with_outcome(listed, row, FILE_FACTS.names))
                decided: Any = pc.or_(pc.is_valid(failed), pc.invert(is_filtered(row)))
                mask = pc.and_(pc.is_valid(row["seq"]), decided)
                if known:
                    found = {name: pc.coalesce(listed[name], row[name]) for name in ("modified", "etag")}
                    copied = image_filter.leave_out(with_columns(listed, found), failed)
                    yield copied.add_column(0, COPIED, row["seq"]).filter(mask)
                else:
                    yield listed.filter(pc.invert(mask))

    return copied_blocks(Todo(images(known=True)), catalog, image_filter), Todo(images(known=False))
