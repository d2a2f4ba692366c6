"""The set of images that a query and a filter select: counted, sorted, grouped, and read page by page.

With a cut, a least score, the set is what scores so much; without one, or without a query, all that passes the filter.
A set of up to `_FOUND` images is found by an approximate search, a larger one by comparing all vectors. DuckDB sorts
by columns and groups. Shards do so on their own, and send the first rows of a page.

Every page of a search is a part of one order. Without a cut, the images that the search for the first page finds come
first, then those that deeper searches find, and then all others. An image that was found later than others counts as
less than these, whatever it scores, so no page goes past it.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Positions, Vectors, rounded
from index.collection.catalog.database import database, run_statement
from index.collection.rows import is_time, number_array, text_array
from index.filters.columns import Column
from index.filters.facets import count_values
from index.search.members import NOTHING, Members
from index.search.result_set import MAX_VALUES, Hit, SetPage, SetRequest
from index.search_options import MAX_K
from index.segments.eligible import Eligible
from index.segments.segmented_index import SegmentedIndex
from index.words.ranked import FoundWords

_FOUND: Final = 1_000
_DEEPER: Final = 10  # times as deep, if there are too few
_WIDER: Final = 4.0  # times as wide as for a page of matches: a set should miss nothing
_ROUNDING: Final = 1e-6  # includes scores that are rounded up to the least one
_ALL: Final = -2.0  # no cosine is below
_EPOCH: Final = date(1970, 1, 1).toordinal()
_SECONDS_OF_DAY: Final = 86_400
_FIRST_DAY, _LAST_DAY = ((day.toordinal() - _EPOCH) * _SECONDS_OF_DAY for day in (date.min, date.max))


@dataclass(frozen=True)
class SetSearch:
    """Finds a set among the rows that this process holds."""

    segments: SegmentedIndex
    request: SetRequest

    def page(self) -> SetPage:
        request = self.request
        if request.limits.has_all_scores and request.words is None:
            total, exact = self.segments.count(self._eligible, self._excluded), True
        else:
            total, exact = len(self._members[0]), self._members[1]
        hits = self._hits() if total else []
        facets = count_values(self._batches, request.facets, MAX_VALUES)
        return SetPage(total=total, exact=exact, hits=hits, group_sizes=self._group_sizes(), facets=facets)

    @cached_property
    def _members(self) -> tuple[Members, bool]:
        """The set, without scores if it has no cut; and whether every image was compared."""
        if self.request.words and self._words:
            positions, scores = self.segments.rank_words(self.request.words, self._words, self._eligible)
            return Members(positions, scores.astype(np.float64)).without(self._excluded), True
        if self.request.query is None or self.request.limits.has_all_scores:
            positions = self.segments.eligible_positions(self._eligible)
            return Members(positions).without(self._excluded), True
        members, complete = self._found(self.request.query, _FOUND, _WIDER)
        if complete:
            return members, self.segments.scans(_FOUND, self._eligible)
        return self._scanned(self.request.query), True

    @cached_property
    def _words(self) -> FoundWords | None:
        return None if self.request.words is None else self.segments.find_words(self.request.words)

    @cached_property
    def _eligible(self) -> Sequence[Eligible] | None:
        return self.segments.eligible(self.request.where)

    @cached_property
    def _excluded(self) -> Positions:
        return self.segments.positions(text_array(sorted(self.request.limits.exclude)))

    def _found(self, query: Vectors, depth: int, wider: float) -> tuple[Members, bool]:
        """The images that an approximate search finds, and whether no others score so much."""
        hits = self.segments.search_parts(query, depth, self._eligible, width=wider * self.request.width)
        last, limits = rounded(hits.scores[0])[-1], self.request.limits
        complete = bool(hits.positions[0, -1] < 0 or last < limits.min_score)
        if not complete:  # others may have the score of the last
            limits = replace(limits, min_score=max(limits.min_score, float(np.nextafter(last, np.inf))))
        return Members.of(hits, limits).without(self._excluded), complete

    def _scanned(self, query: Vectors) -> Members:
        least = max(self.request.limits.min_score - _ROUNDING, _ALL)
        hits = self.segments.parts_within(query[0], least, self._eligible)
        return Members.of(hits, self.request.limits).without(self._excluded)

    def _hits(self) -> list[Hit]:
        """The first images after the place; with groups, the first of each."""
        request, query = self.request, self.request.query
        if query is None or request.words or request.order.column is not None or not request.limits.has_all_scores:
            return self._first(self._members[0])
        if not request.order.descending:
            return self._first(self._scanned(query))
        found = NOTHING
        for depth, wider in self._searches():
            more, complete = self._found(query, depth, wider)
            found = found.followed_by(more)
            hits = self._first(found)
            if complete or len(hits) == request.depth:
                return hits
        return self._first(found.followed_by(self._scanned(query)))

    def _searches(self) -> Iterator[tuple[int, float]]:
        """How deep and how wide to search for the best, until there are enough."""
        if self.request.group_by is not None:
            yield _FOUND, _WIDER
            return
        # With one more, equal scores at the end are seen.
        depth = self.request.first + 1 + len(self.request.limits.exclude)
        while depth < MAX_K:
            yield depth, 1.0
            depth *= _DEEPER
        yield depth, 1.0

    def _first(self, members: Members) -> list[Hit]:
        by, order = self.request.group_by, self.request.order
        if not len(members):
            return []
        if by is None and order.column is None:
            rows = self._best(members, -1 if order.descending else 1)
        else:
            rows = self._sorted(self._table if members is self._members[0] else self._found_table(members))
        positions = np.array([position for _, _, position, _ in rows], np.int64)
        scores, parts = self._scores(members, positions)
        words = self._words.terms_at(positions) if self._words else [None] * len(rows)
        return [
            Hit(key, image_id, position, score, part, _group_value(by, group), words=terms)
            for (key, image_id, position, group), score, part, terms in zip(rows, scores, parts, words, strict=True)
        ]

    def _best(self, members: Members, sign: int) -> list[_Row]:
        """The first images by `sign` × key, and then by id and position."""
        assert members.keys is not None  # the order is by score
        keys, slots, count = sign * members.keys, np.arange(len(members)), self.request.depth
        after: tuple[Any, ...] = ()
        if self.request.after is not None:
            key, image_id, position = self.request.after
            after = sign * key, image_id, position
            slots, count = np.flatnonzero(keys >= after[0]), count + int(np.count_nonzero(keys == after[0]))
        if count < len(slots):
            slots = slots[keys[slots] <= np.partition(keys[slots], count - 1)[count - 1]]
        positions = members.positions[slots]
        ranked = sorted(zip(keys[slots].tolist(), self.segments.ids(positions), positions.tolist(), strict=True))
        page = ranked[bisect(ranked, after) :][: self.request.depth]
        return [(sign * key, image_id, position, None) for key, image_id, position in page]

    def _sorted(self, table: pa.Table) -> list[_Row]:
        """The first images, or of each group the first."""
        request, order = self.request, self.request.order
        first, direction = ("max", "DESC") if order.descending else ("min", "ASC")
        source = "members" if request.group_by is None else _FIRST_OF_GROUPS.format(first=first)
        condition, values = "TRUE", dict[str, Any]()
        if request.after is not None:
            further, (key, image_id, position) = "<" if order.descending else ">", request.after
            later, values = "(image_id, position) > ($id, $position)", {"id": image_id, "position": position}
            condition = f"key IS NULL AND {later}"
            if key is not None:
                condition = f"(key {further} $key OR (key = $key AND {later}) OR key IS NULL)"
                values["key"] = key
        return _sql(
            f"SELECT key, image_id, position, grp FROM {source} WHERE {condition} "
            f"ORDER BY key {direction} NULLS LAST, image_id, position LIMIT {request.depth}",
            table,
            values,
        )

    def _scores(self, members: Members, positions: Positions) -> tuple[list[float | None], list[int]]:
        if members.scores is not None and members.parts is not None:
            slots = np.searchsorted(members.positions, positions)
            return members.scores[slots].tolist(), members.parts[slots].tolist()
        if self.request.query is None or not len(positions):
            return [None] * len(positions), [0] * len(positions)
        scores, parts = self.segments.scores(self.request.query, positions)
        return rounded(scores).tolist(), parts.tolist()

    def _group_sizes(self) -> dict[Any, int]:
        by = self.request.group_by
        if by is None or not len(self._members[0]):
            return {}
        sizes = _sql("SELECT grp, count(*) FROM members GROUP BY grp", self._table, {})
        return {_group_value(by, group): size for group, size in sizes}

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        """The whole set, with the columns that it is sorted, grouped and counted by."""
        request = self.request
        names = {column.name for column in (request.order.column, request.group_by, *request.facets) if column}
        return [*self.segments.batches_at(self._members[0].positions, [*names | {"image_id"}])] if names else []

    @cached_property
    def _table(self) -> pa.Table:
        """The whole set, as DuckDB reads it."""
        return self._table_of(self._members[0], self._batches)

    def _found_table(self, members: Members) -> pa.Table:
        """Some of the images, to group them."""
        assert self.request.group_by is not None  # otherwise the best of them are known without their columns
        batches = self.segments.batches_at(members.positions, [*{"image_id", self.request.group_by.name}])
        return self._table_of(members, [*batches])

    def _table_of(self, members: Members, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        key, by = self.request.order.column, self.request.group_by
        keys: Any = pa.nulls(len(members))
        if key is not None:
            keys = pa.chunked_array([key.sortable(batch) for batch in batches])
        elif members.keys is not None:
            keys = number_array(members.keys)
        groups: Any = pa.chunked_array([_groupable(by, batch) for batch in batches]) if by else pa.nulls(len(members))
        ids = pa.chunked_array([batch.column("image_id") for batch in batches])
        return pa.table({"image_id": ids, "position": number_array(members.positions), "key": keys, "grp": groups})


_Row: TypeAlias = tuple[Any, str, int, Any]
"""What an image is ordered by, its id, its position, and its group."""

_FIRST_OF_GROUPS: Final = """(
    SELECT members.key, min(image_id) AS image_id, arg_min(position, (image_id, position)) AS position, members.grp
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
    days: Any = pc.floor_temporal(times, unit="day").cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    in_years: Any = pc.and_(pc.greater_equal(days, pa.scalar(_FIRST_DAY)), pc.less_equal(days, pa.scalar(_LAST_DAY)))
    return pc.if_else(in_years, days, None)  # Python has no other dates


def _group_value(column: Column | None, group: Any) -> Any:
    """A group as answers show it; a day of a time in ISO 8601, in UTC."""
    if column is None or group is None or not is_time(column.element):
        return group
    return date.fromordinal(_EPOCH + group // _SECONDS_OF_DAY).isoformat()
