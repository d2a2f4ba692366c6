"""Selects images of a collection, and writes which as columns. What earlier columns say need not be computed again."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console

from index.analysis.prune import Pruning
from index.analysis.select import Selection, typicality
from index.arrays import Positions
from index.collection import Collection
from index.collection.catalog.workspace import Workspace
from index.collection.rows import number_array, numbers_of, text_array
from index.filters.columns import Column
from index.search.set_columns import can_sort
from index.segments.segmented_index import SegmentedIndex
from jobs.annotation.computed import ComputedColumns
from jobs.annotation.publish import publish
from jobs.curation.spec import SelectSpec
from jobs.duplicates.preference import PREFERRED_FIRST
from jobs.errors import UsageError

_FACTS: Final = ("width", "height", "format", "size", "modified")


@dataclass(frozen=True, kw_only=True)
class Selected:
    """How many `images` there were to choose from, how many of them are `chosen`, and how many of these are `new`;
    `coverage` is the lowest cosine of an image with its nearest pick.
    """

    images: int
    chosen: int
    new: int = 0
    coverage: float = 1.0


@dataclass(kw_only=True)
class Select:
    """Makes a selection in a collection whose lease the caller has. `progress` gets how many images are done, and of
    how many.
    """

    collection: Collection
    spec: SelectSpec
    console: Console
    progress: Callable[[int, int], None] = lambda *_: None

    def run(self) -> Selected:
        """Choose, write the columns and publish them. UsageError for a name, filter, column or number that is wrong;
        see `ComputedColumns.open`.
        """
        positions = self._columns.searcher.passing(self.spec.filter)
        if not len(positions):
            raise UsageError("no image passes --filter: expected one that some images pass")
        made = self._pick(positions) if self.spec.prune is None else self._prune(positions, self.spec.prune)
        publish(self.collection, self.console)
        return made

    @cached_property
    def _columns(self) -> ComputedColumns:
        return ComputedColumns.open(self.collection, self.spec.name, self.spec.kind)

    @property
    def _segments(self) -> SegmentedIndex:
        return self._columns.segments

    def _prune(self, positions: Positions, cut: float) -> Selected:
        name, segments = self.spec.name, self._segments
        schema = _schema({f"{name}_duplicate_of": pa.string(), name: pa.bool_(), f"{name}_score": pa.float32()})
        keeper, scores = np.full(segments.ntotal, -1, np.int64), np.ones(segments.ntotal, np.float32)
        if self._columns.by == self.spec.text:
            columns: list[Any] = self._columns.values(schema).columns
            instead, keep, score = columns
            live, kept, pruned = self._columns.live, numbers_of(keep, False), ~numbers_of(keep, True)
            keeper[live[kept]] = live[kept]
            keeper[live[pruned]] = segments.positions(instead.filter(number_array(pruned)).combine_chunks())
            scores[live] = numbers_of(score, 1)
        pruning = Pruning(segments, self._preferred_first(positions), cut, keeper, scores)
        pruning.run(self.progress)
        found, scores = pruning.keeper[positions], pruning.scores[positions]
        kept = found == positions
        ids, places = text_array(segments.ids(found[~kept])), number_array(np.cumsum(~kept) - 1, kept)
        table = pa.table([ids.take(places), number_array(kept), number_array(scores, kept)], schema=schema)
        self._columns.put(self.spec.text, positions, table)
        return Selected(images=len(positions), chosen=int(kept.sum()))

    def _preferred_first(self, positions: Positions) -> Positions:
        pictures = self._segments.table_at(positions, _FACTS).append_column("number", number_array(positions))
        workspace = Workspace(self.collection.location)
        return numbers_of(workspace.table(PREFERRED_FIRST, pictures=pictures)["number"])

    def _pick(self, passing: Positions) -> Selected:
        spec, segments, count, name = self.spec, self._segments, self.spec.n or 0, self.spec.name
        schema = _schema({name: pa.int32(), f"{name}_nearest": pa.int32(), f"{name}_score": pa.float32()})
        positions, earlier = passing, tuple[Any, ...]()
        if spec.continue_ and self._columns.by:
            every = self._columns.live
            columns: list[Any] = self._columns.values(schema).columns
            ranks, nearest, scores = (numbers_of(column, 0) for column in columns)
            here = np.isin(every, passing) | (ranks > 0)
            positions = every[here]
            earlier = ranks[here].astype(np.int64), nearest[here].astype(np.int64), scores[here].copy()
        if count > len(positions):
            raise UsageError(f"-n is {count:,}: expected at most {len(positions):,}, the number of images to pick from")
        selection = Selection(segments, positions, np.isin(positions, passing), *earlier)
        before = int(np.count_nonzero(selection.ranks))
        values = np.float32(spec.typical) * typicality(segments, positions) if spec.typical else None
        selection.extend(
            count, diverse=spec.diverse, values=values, groups=self._groups(positions), progress=self.progress
        )
        ranks, nearest = (each.astype(np.int32) for each in (selection.ranks, selection.nearest))
        made = [number_array(ranks, ranks == 0), number_array(nearest), number_array(selection.scores)]
        self._columns.put(spec.text, positions, pa.table(made, schema=schema))
        chosen = int(np.count_nonzero(ranks))
        return Selected(images=len(positions), chosen=chosen, new=chosen - before, coverage=selection.coverage)

    def _groups(self, positions: Positions) -> npt.NDArray[np.int64] | None:
        """The number of each row's value of the column `balance`; those without one are a group too."""
        column = self.spec.balance
        if column is None:
            return None
        named = map(self._segments.schema.field, self._columns.searcher.filterable)
        known = {each.name: each for each in map(Column.of, named) if can_sort(each)}
        if column not in known:
            raise UsageError(f"--balance is {column!r}: expected a column with single values: {', '.join(known)}")
        batches = self._segments.batches_at(positions, [column])
        values = pa.chunked_array(map(known[column].sortable, batches)).combine_chunks().dictionary_encode()
        return numbers_of(values.indices.cast(pa.int64()), len(values.dictionary))


def _schema(types: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema(types)
