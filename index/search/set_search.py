"""The set of images that a query and a filter select: counted, sorted, grouped, and read page by page.

With a cut, a least score, the set is what scores so much; without one, or without a query, all that passes the filter.
A set of up to `_FOUND` images is found by an approximate search, a larger one by comparing all vectors. DuckDB sorts
and groups the rows. Shards do so on their own, and send the first rows of a page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Parts, Positions, Vectors, rounded
from index.collection.catalog.database import database, run_statement
from index.collection.rows import number_array, text_array
from index.filters.columns import Column, is_time
from index.filters.facets import count_values
from index.search.result_set import MAX_VALUES, Hit, Order, SetPage, SetRequest
from index.segments.eligible import Eligible
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex

_FOUND: Final = 1_000
_WIDER: Final = 4.0  # times as wide as for a page of matches: a set should miss nothing
_ROUNDING: Final = 1e-6  # includes scores that are rounded up to the least one
_ALL: Final = -2.0  # no cosine is below
_EPOCH: Final = date(1970, 1, 1).toordinal()
_SECONDS_OF_DAY: Final = 86_400


@dataclass(frozen=True, eq=False)
class Members:
    """Images of a set: `(n,)` positions, ascending, and with a query the scores and parts that were compared."""

    positions: Positions
    scores: npt.NDArray[np.float64] | None = None
    parts: Parts | None = None

    @classmethod
    def of(cls, hits: Hits, min_score: float) -> Members:
        """Those that score so much or more, of a search with one query."""
        scores, positions, parts = rounded(hits.scores[0]), hits.positions[0], hits.parts[0]
        good = np.flatnonzero((positions >= 0) & (scores >= min_score))
        slots = good[np.argsort(positions[good], kind="stable")]
        return cls(positions[slots], scores[slots], parts[slots])

    def without(self, positions: Positions) -> Members:
        if not len(positions):
            return self
        keep = ~np.isin(self.positions, positions)
        if self.scores is None or self.parts is None:
            return Members(self.positions[keep])
        return Members(self.positions[keep], self.scores[keep], self.parts[keep])

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class SetSearch:
    """Finds a set among the rows that this process holds."""

    segments: SegmentedIndex
    request: SetRequest

    def page(self) -> SetPage:
        request, names = self.request, [column.name for column in self.request.facets]
        if request.order is None and request.is_uncut and not names:
            return SetPage.counted(self.segments.count(self._eligible, self._excluded))
        members, exact = self._members()
        batches = self.segments.batches_at(members.positions, names) if names else iter(())
        return SetPage(
            total=len(members),
            exact=exact,
            hits=self._hits(members),
            group_sizes=self._group_sizes(members),
            facets=count_values(((batch, None) for batch in batches), request.facets, MAX_VALUES),
        )

    def _members(self) -> tuple[Members, bool]:
        """The set, and whether every image was compared."""
        if self.request.query is None or self.request.is_uncut:
            positions = self.segments.eligible_positions(self._eligible)
            return Members(positions).without(self._excluded), True
        members, complete = self._found(self.request.query)
        if complete:
            return members, self.segments.scans(_FOUND, self._eligible)
        return self._scanned(self.request.query), True

    @cached_property
    def _eligible(self) -> Sequence[Eligible] | None:
        return self.segments.eligible(self.request.where)

    @cached_property
    def _excluded(self) -> Positions:
        return self.segments.positions(text_array(sorted(self.request.exclude)))

    def _found(self, query: Vectors) -> tuple[Members, bool]:
        """The images that an approximate search finds, and whether no others score so much."""
        hits = self.segments.search_parts(query, _FOUND, self._eligible, width=_WIDER * self.request.width)
        last, least = rounded(hits.scores[0])[-1], self.request.min_score
        complete = bool(hits.positions[0, -1] < 0 or last < least)
        if not complete:  # others may have the score of the last
            least = max(least, float(np.nextafter(last, np.inf)))
        return Members.of(hits, least).without(self._excluded), complete

    def _scanned(self, query: Vectors) -> Members:
        least = max(self.request.min_score - _ROUNDING, _ALL)
        hits = self.segments.parts_within(query[0], least, self._eligible)
        return Members.of(hits, self.request.min_score).without(self._excluded)

    def _hits(self, members: Members) -> list[Hit]:
        request = self.request
        if request.order is None or not len(members):
            return []
        if request.order.column is None and members.scores is None and request.query is not None:
            if request.order.descending:
                best, complete = self._found(request.query)
                hits = self._first_hits(best, request.order)
                if complete or len(hits) == request.depth:
                    return hits
            members = self._scanned(request.query)
        return self._first_hits(members, request.order)

    def _first_hits(self, members: Members, order: Order) -> list[Hit]:
        """The first of these images after the place; with groups, the first of each."""
        if not len(members):
            return []
        request = self.request
        first, direction = ("max", "DESC") if order.descending else ("min", "ASC")
        source = "members" if request.group_by is None else _FIRST_OF_GROUPS.format(first=first)
        condition, values = self._after(members, order)
        found = _sql(
            f"SELECT key, image_id, position, grp FROM {source} WHERE {condition} "
            f"ORDER BY key {direction} NULLS LAST, image_id LIMIT {request.depth}",
            self._table(members, order.column),
            values,
        )
        positions = np.array([position for _, _, position, _ in found], np.int64)
        scores, parts = self._scores(members, positions)
        return [
            Hit(key, image_id, position, score, part, _group_value(request.group_by, group))
            for (key, image_id, position, group), score, part in zip(found, scores, parts, strict=True)
        ]

    def _after(self, members: Members, order: Order) -> tuple[str, dict[str, Any]]:
        """The condition for rows after the place, in SQL, with its values."""
        if (place := self.request.after) is None:
            return "TRUE", {}
        values = {"id": place.image_id}
        if place.key is None:
            return "key IS NULL AND image_id > $id", values
        further, key = "<" if order.descending else ">", place.key
        if order.column is None and members.scores is not None:  # which may have been rounded otherwise
            own = np.isin(members.positions, self.segments.positions(text_array([place.image_id])))
            key = next(iter(members.scores[own].tolist()), key)
        return f"(key {further} $key OR (key = $key AND image_id > $id) OR key IS NULL)", {"key": key} | values

    def _scores(self, members: Members, positions: Positions) -> tuple[list[float | None], list[int]]:
        if members.scores is not None and members.parts is not None:
            slots = np.searchsorted(members.positions, positions)
            return members.scores[slots].tolist(), members.parts[slots].tolist()
        if self.request.query is None or not len(positions):
            return [None] * len(positions), [0] * len(positions)
        hits = self.segments.search_parts(
            self.request.query, len(positions), self.segments.eligible_at(np.unique(positions))
        )
        found = Members.of(hits, -math.inf)
        return self._scores(found, positions)

    def _group_sizes(self, members: Members) -> dict[Any, int]:
        by = self.request.group_by
        if by is None or not len(members):
            return {}
        sizes = _sql("SELECT grp, count(*) FROM members GROUP BY grp", self._table(members, None), {})
        counts = Counter[Any]()
        for group, count in sizes:  # several days beyond Python's years are one group, without a value
            counts[_group_value(by, group)] += count
        return counts

    def _table(self, members: Members, key: Column | None) -> pa.Table:
        """The images as DuckDB reads them; without a `key` the score is it."""
        by, ids, keys, groups = self.request.group_by, list[Any](), list[Any](), list[Any]()
        names = {"image_id"} | {column.name for column in (key, by) if column is not None}
        for batch in self.segments.batches_at(members.positions, [*names]):
            ids.append(batch.column("image_id"))
            keys.append(key.sortable(batch) if key is not None else None)
            groups.append(_groupable(by, batch) if by is not None else pa.nulls(len(batch)))
        scores = pa.nulls(len(members)) if members.scores is None else number_array(members.scores)
        return pa.table(
            {
                "image_id": pa.chunked_array(ids),
                "position": number_array(members.positions),
                "key": scores if key is None else pa.chunked_array(keys),
                "grp": pa.chunked_array(groups),
            }
        )


_FIRST_OF_GROUPS: Final = """(
    SELECT members.key, min(image_id) AS image_id, arg_min(position, image_id) AS position, members.grp
    FROM members JOIN (SELECT grp, {first}(key) AS key FROM members GROUP BY grp) AS firsts
    ON members.grp IS NOT DISTINCT FROM firsts.grp AND members.key IS NOT DISTINCT FROM firsts.key
    GROUP BY members.key, members.grp
)"""


def _sql(statement: str, members: pa.Table, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with database().cursor() as cursor:
        return run_statement(cursor, lambda: cursor.register("members", members).execute(statement, values).fetchall())


def _groupable(column: Column, batch: pa.RecordBatch) -> Any:
    if not is_time(column.element):
        return column.sortable(batch)
    kind: Any = column.element
    unit: Any = kind.unit if pa.types.is_timestamp(kind) else "ms"
    times = column.read(batch).cast(pa.timestamp(unit))  # without its zone: in UTC
    return pc.floor_temporal(times, unit="day").cast(pa.timestamp("s"), safe=False).cast(pa.int64())


def _group_value(column: Column | None, group: Any) -> Any:
    """A group as answers show it; a day of a time in ISO 8601, in UTC."""
    if column is None or group is None or not is_time(column.element):
        return group
    day = _EPOCH + group // _SECONDS_OF_DAY
    return date.fromordinal(day).isoformat() if 1 <= day <= date.max.toordinal() else None
