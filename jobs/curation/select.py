"""Selects images of a collection, and writes which as columns. What earlier columns say need not be computed again."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from index.analysis.prune import Pruning
from index.analysis.select import Selection, typicality
from index.arrays import Positions
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.catalog.catalog import Catalog
from index.collection.rows import is_list
from index.search import Searcher
from index.segments.segmented_index import SegmentedIndex
from jobs.annotation.computed import indexed_rows, put_columns
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
        see `indexed_rows`.
        """
        indexed_rows(self.collection, self.spec.name)  # before anything that takes long
        positions = self._searcher.passing(self.spec.filter)
        if not len(positions):
            raise UsageError("no image passes --filter: expected one that some images pass")
        selected, rows = self._pick(positions) if self.spec.prune is None else self._prune(positions, self.spec.prune)
        put_columns(self.collection, self.spec.name, self.spec.text, rows, self.console)
        return selected

    @cached_property
    def _earlier(self) -> str:
        """What the columns of this name were made by; empty if there are none."""
        runs = annotation_log(self.collection, self.spec.name).runs()
        return runs[-1].model.id if runs else ""

    @cached_property
    def _searcher(self) -> Searcher:
        """The live version, with all columns that there are: a run may have been killed before it put them in."""
        if self._earlier:
            publish(self.collection, self.collection.runs(), self.console)
        return Searcher.open(self.collection)

    @property
    def _segments(self) -> SegmentedIndex:
        return self._searcher.segments

    def _prune(self, positions: Positions, cut: float) -> tuple[Selected, pa.Table]:
        name, segments = self.spec.name, self._segments
        order = self._preferred_first(positions)
        keeper, scores = np.full(segments.ntotal, -1, np.int64), np.ones(segments.ntotal, np.float32)
        columns = (name, f"{name}_duplicate_of", f"{name}_score")
        if self._earlier == self.spec.text and set(columns) <= set(segments.schema.names):
            earlier = segments.table_at(positions, columns)
            kept = np.flatnonzero(_numbers(earlier[name], False, bool))
            pruned = np.flatnonzero(~_numbers(earlier[name], True, bool))
            keeper[positions[kept]] = positions[kept]
            keeper[positions[pruned]] = segments.positions(earlier[columns[1]].take(pruned).combine_chunks())
            scores[positions] = _numbers(earlier[columns[2]], 1, np.float32)
        pruning = Pruning(segments, order, cut, keeper, scores)
        pruning.run(self.progress)
        found, scores = pruning.keeper[positions], pruning.scores[positions]
        kept_mask = found == positions
        rows = segments.table_at(positions, ())
        instead: Any = pa.array(np.searchsorted(positions, found), mask=kept_mask)
        rows = rows.append_column(columns[1], rows["image_id"].take(instead)).append_column(name, pa.array(kept_mask))
        rows = rows.append_column(columns[2], pa.array(scores, mask=kept_mask))
        return Selected(images=len(positions), chosen=int(kept_mask.sum())), rows

    def _preferred_first(self, positions: Positions) -> Positions:
        pictures = self._segments.table_at(positions, _FACTS).append_column("number", pa.array(positions))
        catalog = Catalog(self.collection.storage, [])
        return np.asarray(catalog.table(PREFERRED_FIRST, pictures=pictures)["number"], np.int64)

    def _pick(self, passing: Positions) -> tuple[Selected, pa.Table]:
        spec, segments, count = self.spec, self._segments, self.spec.n or 0
        columns = (spec.name, f"{spec.name}_nearest", f"{spec.name}_score")
        positions, earlier = passing, tuple[Any, ...]()
        if spec.continue_ and set(columns) <= set(segments.schema.names) and self._earlier.startswith("select -n"):
            every = segments.live_positions()
            table = segments.table_at(every, columns)
            ranks = _numbers(table[columns[0]], 0, np.int64)
            here = np.isin(every, passing) | (ranks > 0)
            positions, ranks = every[here], ranks[here]
            nearest, scores = _numbers(table[columns[1]], 0, np.int64), _numbers(table[columns[2]], -2, np.float32)
            earlier = ranks, nearest[here], scores[here]
        if count > len(positions):
            raise UsageError(f"-n is {count:,}: expected at most {len(positions):,}, the number of images to pick from")
        selection = Selection(segments, positions, np.isin(positions, passing), *earlier)
        before = int(np.count_nonzero(selection.ranks))
        values = np.float32(spec.typical) * typicality(segments, positions) if spec.typical else None
        selection.extend(
            count, diverse=spec.diverse, values=values, groups=self._groups(positions), progress=self.progress
        )
        ranks = selection.ranks
        rows = segments.table_at(positions, ())
        rows = rows.append_column(columns[0], pa.array(ranks.astype(np.int32), mask=ranks == 0))
        rows = rows.append_column(columns[1], pa.array(selection.nearest.astype(np.int32)))
        rows = rows.append_column(columns[2], pa.array(selection.scores))
        chosen = int(np.count_nonzero(ranks))
        return Selected(images=len(positions), chosen=chosen, new=chosen - before, coverage=selection.coverage), rows

    def _groups(self, positions: Positions) -> npt.NDArray[np.int64] | None:
        """The number of each row's value of the column `balance`; those without one are a group too."""
        column = self.spec.balance
        if column is None:
            return None
        known = self._searcher.filterable
        if column not in known or is_list(self._segments.schema.field(column).type):
            names = ", ".join(name for name in known if not is_list(self._segments.schema.field(name).type))
            raise UsageError(f"--balance is {column!r}: expected a column with single values: {names}")
        values = self._segments.table_at(positions, (column,))[column].combine_chunks().dictionary_encode()
        return _numbers(values.indices, len(values.dictionary), np.int64)


def _numbers(column: Any, missing: float, kind: type[Any]) -> npt.NDArray[Any]:
    return np.asarray(pc.fill_null(column, missing), kind)
