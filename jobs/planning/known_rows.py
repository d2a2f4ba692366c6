"""Writes the rows that need no model, because the collection has the outcome of the same image or content, or because
the listing itself refuses them.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.catalog import Catalog
from index.collection.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.rows import EMBEDDING, FILTERED, OUTCOME_COLUMNS, REJECT_COLUMNS, TILES, embedding_type
from jobs.planning.plan import Plan, write_block
from jobs.sources.listing import Column, refused_mask, with_outcome, without_refusal

Positions = npt.NDArray[np.int64]

BLOCK = 4096  # rows per file: 8 MB of vectors of 512 dimensions


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The `plan` of a run, with the action for each of its images to do: those to copy take the outcomes of the rows at
    `seqs` in `catalog`.
    """

    plan: Plan
    actions: Column
    seqs: Column
    catalog: Catalog

    def of_action(self, action: str) -> Positions:
        """The positions of the images to do with this action."""
        return np.flatnonzero(np.asarray(self.actions) == action)

    def write_known(self, collection: Collection) -> Plan:
        """Write the rows that need no model; returns the plan of what is left."""
        plan, files = self.plan, list(self.plan.files)
        for table in self._tables():
            run = plan.start(collection)
            plan = replace(plan, run=run)
            collection.check_lease()
            files.append(write_block(collection, run.run_id, plan.attempt, table))
        refused = len(self.of_action("refuse"))
        filtered = int(pc.sum(refused_mask(plan.todo, FILTERED)).as_py() or 0)
        return replace(plan, files=files, todo=self.to_embed, refused=refused, filtered=filtered)

    @property
    def to_embed(self) -> pa.Table:
        """The images that need the model."""
        todo = without_refusal(self.plan.todo)
        return todo.filter(pa.array(np.asarray(self.actions) == "embed"))

    def _tables(self) -> Iterator[pa.Table]:
        """The rows that need no model, in blocks."""
        todo, at = self.plan.todo, self.of_action("copy")
        seqs, rows = np.unique(np.asarray(self.seqs)[at].astype(np.int64), return_inverse=True)
        pool = LiveRows.at(self.catalog, seqs)
        exif = self.plan.image_filter.exif_columns(pool.metadata)
        order = np.argsort(rows, kind="stable")  # rows of one file together
        for start in range(0, len(order), BLOCK):
            block = order[start : start + BLOCK]
            yield copied_rows(without_refusal(todo).take(at[block]), pool, rows[block], exif)
        refused = self.of_action("refuse")
        for start in range(0, len(refused), BLOCK):
            rejects = todo.take(refused[start : start + BLOCK])
            yield rejects.append_column(
                EMBEDDING, pa.array([None] * rejects.num_rows, embedding_type(self.plan.model.dim))
            )


def copied_rows(listed: pa.Table, pool: LiveRows, at: Positions, exif: Sequence[str]) -> pa.Table:
    """Rows of listed images with the outcome of the rows of `pool` at `at`."""
    positions, again = np.unique(at, return_inverse=True)
    known = pool.take(positions)
    tiles = [TILES] if TILES in known.schema.names else []  # none where all are rejects
    columns = [*OUTCOME_COLUMNS, *tiles, *REJECT_COLUMNS, *exif]
    return with_outcome(listed, known.read([*columns, "size"]).take(again), columns)
