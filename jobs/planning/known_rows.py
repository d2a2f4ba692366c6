"""Writes the rows that need no model, because the collection has the outcome of the same image or content, or because
the listing itself refuses them.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.catalog.catalog import Catalog
from index.collection.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.rows import EMBEDDING, OUTCOME_COLUMNS, REJECT_COLUMNS, TILES, embedding_type
from jobs.planning.plan import Plan, write_block
from jobs.planning.todo import Todo
from jobs.sources.listing import COPIED, FILE_FACTS, REFUSAL, Column, refused_mask, with_columns, with_outcome

Positions = npt.NDArray[np.int64]

BLOCK: Final = 4096  # rows per file: 8 MB of vectors of 512 dimensions
_SORTED: Final = 1 << 17  # rows that are put in order at a time

_STARTS: Final = f"""
SELECT DISTINCT {COPIED}
FROM (SELECT {COPIED}, row_number() OVER (ORDER BY {COPIED}) - 1 AS number FROM {{todo}} WHERE {COPIED} IS NOT NULL)
WHERE number % {_SORTED} = 0 ORDER BY {COPIED}
"""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The `plan` of a run. Of its images to do, `copies` take the outcome of a row of `catalog`, at the place `COPIED`;
    `refused` are rejected by the listing, or `filtered` among them.
    """

    plan: Plan
    copies: int
    refused: int
    filtered: int
    catalog: Catalog

    def write_known(self, collection: Collection) -> Plan:
        """Write the rows that need no model; returns the plan of what is left."""
        plan, files = self.plan, list(self.plan.files)
        for rows in self._blocks():
            run = plan.start(collection)
            plan = replace(plan, run=run)
            collection.check_lease()
            files.append(write_block(collection, run.run_id, plan.attempt, rows))
        return replace(plan, files=files, todo=self._to_embed(), refused=self.refused, filtered=self.filtered)

    def _to_embed(self) -> Todo:
        """The images that need the model."""
        names = [name for name in self._listed if name != COPIED]
        if not self.copies and not self.refused:
            return self.plan.todo.select(names)
        rows = (each.filter(pc.is_null(each[COPIED])) for each in map(_not_refused, self.plan.todo.tables()))
        return Todo(each.select(names) for each in rows)

    @property
    def _listed(self) -> list[str]:
        return [name for name in self.plan.todo.schema.names if name not in (*REFUSAL.names, *FILE_FACTS.names)]

    def _blocks(self) -> Iterator[pa.Table]:
        """The rows that need no model."""
        todo, images = self.plan.todo, self.plan.image_filter
        if self.copies:
            yield from copied_blocks(todo.select(self._listed), self.catalog, images.exif_columns)
        if self.refused:
            nothing: Any = embedding_type(self.plan.model.dim)
            for table in todo.tables():
                refused = table.filter(refused_mask(table)).drop_columns(COPIED)
                for start in range(0, refused.num_rows, BLOCK):
                    rows = refused.slice(start, BLOCK)
                    yield rows.append_column(EMBEDDING, pa.nulls(rows.num_rows, nothing))


def _not_refused(listed: pa.Table) -> pa.Table:
    return listed.filter(pc.invert(refused_mask(listed)))


def copied_blocks(
    todo: Todo, catalog: Catalog, choose_exif: Callable[[Sequence[str]], list[str]]
) -> Iterator[pa.Table]:
    """Rows of the images of `todo` that have a place `COPIED`, with the outcome of the row there: about in the order of
    these, so that few row files are read twice.
    """
    starts: list[Any] = catalog.table(_STARTS.format(todo=todo.sql))[COPIED].to_pylist()
    for first, end in pairwise([*starts, 1 << 62]):
        parts = [each.filter(_between(each[COPIED], first, end)) for each in todo.tables()]
        listed = pa.concat_tables(parts).sort_by(COPIED)
        seqs, rows = np.unique(np.asarray(listed[COPIED], np.int64), return_inverse=True)
        pool, listed = LiveRows.at(catalog, seqs), listed.drop_columns(COPIED)
        exif = choose_exif(pool.metadata)
        for start in range(0, len(rows), BLOCK):
            yield copied_rows(listed.slice(start, BLOCK), pool, rows[start : start + BLOCK], exif)


def _between(numbers: Column, first: int, end: int) -> Any:
    """A mask, null where a number is."""
    return pc.and_(pc.greater_equal(numbers, pa.scalar(first)), pc.less(numbers, pa.scalar(end)))


def copied_rows(listed: pa.Table, pool: LiveRows, at: Positions, exif: Sequence[str]) -> pa.Table:
    """Rows of listed images with the outcome of the rows of `pool` at `at`; those that are refused without a vector."""
    positions, again = np.unique(at, return_inverse=True)
    known = pool.take(positions)
    tiles = [TILES] if TILES in known.schema.names else []  # none where all are rejects
    columns = [*OUTCOME_COLUMNS, *tiles, *REJECT_COLUMNS, *exif]
    rows, refused = with_outcome(listed, known.read([*columns, "size"]).take(again), columns), refused_mask(listed)
    if pc.any(refused).as_py():
        kept: dict[str, Any] = {name: listed[name] for name in REJECT_COLUMNS}
        kept |= {name: pa.nulls(rows.num_rows, rows[name].type) for name in (EMBEDDING, *tiles)}
        rows = with_columns(rows, {name: pc.if_else(refused, kept[name], rows[name]) for name in kept})
    return rows
