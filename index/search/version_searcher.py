"""Finds the nearest images in an index version, whose segments are in this process or in others."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cachedmethod

from index.arrays import Positions
from index.collection.records.version_manifest import VersionManifest
from index.collection.rows import filterable, metadata_columns, text_array
from index.errors import OptionError, QueryError
from index.filters.columns import type_name
from index.filters.facets import Counts, facet_columns
from index.filters.filter import Filter
from index.matches import ROW_FIELDS, Match
from index.queries import QueryKind, unit_vectors
from index.search.fused import page_of_both
from index.search.ranking import Searchable, find_set, ranked_page
from index.search.result_set import Answer, Hit, Order, SetPage, SetRequest
from index.search.set_columns import counted, grouped_by, order_of, require_no_scores
from index.search_options import Place, QueryLimits, SearchOptions
from index.tiles import Box
from index.words.ranked import WordQuery
from index.words.text import any_terms
from index.words.word_index import text_columns

_MAX_COUNTS = 64  # cached facets, each with at most a thousand values for a column


class VersionSearcher:
    """The nearest neighbours in one index version, whose segments are in this process or in others. Thread-safe."""

    def __init__(self, manifest: VersionManifest, index: Searchable) -> None:
        self.manifest = manifest
        self.version, self.model = manifest.version, manifest.model
        self.ntotal, self.dim = manifest.ntotal, manifest.dim
        self._index = index
        self._filterable = filterable(index.schema)
        self.filterable = {field.name: type_name(field.type) for field in self._filterable}
        """Columns that `filter` can name, with their Arrow types."""
        self._metadata = metadata_columns(index.schema)
        self._boxes = (None, *manifest.model.boxes)
        self._lock = threading.Lock()
        self._counts: LRUCache[Any, Counts] = LRUCache(_MAX_COUNTS)

    @cached_property
    def word_columns(self) -> tuple[str, ...]:
        """The columns that have an index of words."""
        return (*text_columns(self._index.schema, self.manifest.settings.words),)

    @property
    def searched(self) -> int:
        """Number of images that are searched: all, or those of the shards that answer."""
        return self._index.live_count

    def search(
        self,
        vectors: npt.ArrayLike,
        k: int,
        *,
        exclude: Collection[str] = (),
        kind: QueryKind | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Match]]:
        """The k nearest of each vector after the first `offset`, by score and then by image_id: see `answer`.

        `vectors` is `(n, dim)`, of any length but zero: a copy is normalised. Results are not in `exclude`. `kind` says
        what the vectors are of: a search for images costs less than the default, which suits any kind. QueryError for
        another shape or a vector without a direction; OptionError for a k + offset outside 1 … MAX_K, or another
        invalid option; FilterError for an invalid filter.
        """
        queries = unit_vectors(vectors, self.dim)
        return [[*self.answer(query, k, exclude=exclude, kind=kind, **options).matches] for query in queries]

    def answer(
        self,
        vector: npt.ArrayLike | None,
        k: int,
        *,
        exclude: Collection[str] = (),
        kind: QueryKind | None = None,
        after: Place | None = None,
        words: str | None = None,
        hidden: Container[str] = (),
        **options: Unpack[SearchOptions],
    ) -> Answer:
        """A page of the set of images that a query selects: one vector, `(dim,)`, or none, to browse all that pass the
        filter. With `words` it has the best of both; or without a vector the set is all that have any of the words. The
        columns `hidden` do not count.

        The page has the first k after the first `offset`, or `after` the end of an earlier page in this version. The
        set is what passes the filter and has a score within the bounds, if there are any. Pages are disjoint, and all
        together have the whole set; but with `distinct` up to MAX_K, with `diversity` to MAX_DIVERSE. Raises like
        `search`.
        """
        _check_known(options)
        grouped = options.get("group_by") is not None
        if after is not None and after.position is None and not grouped:
            options["offset"] = after.seen
        limits = QueryLimits.checked(k, options, exclude)
        after = after or Place(limits.offset, limits.depth)
        if vector is None:
            require_no_scores(options)
        order = order_of(self._filterable, options.get("sort"), is_ranked=vector is not None or words is not None)
        request = SetRequest(
            query=None if vector is None else unit_vectors(np.asarray(vector)[np.newaxis], self.dim),
            words=None if words is None else self._words(words, hidden),
            limits=limits,
            where=self._filter(options.get("filter")),
            width=self.manifest.width_of(kind),
            order=order,
            group_by=grouped_by(self._filterable, options.get("group_by")),
            facets=counted(self._filterable, options.get("facets")),
            after=None if grouped or limits.is_by_rank else self._after(after, order),
            first=after.first,
        )
        page = self._page(request, after)
        seen = after.seen + len(page.hits)
        more = len(page.hits) == limits.k and seen < (len(page.group_sizes) if grouped else page.total)
        return Answer(
            matches=self._matches(page.hits, options.get("fields"), page.group_sizes),
            keys=[hit.key for hit in page.hits],
            positions=[hit.position for hit in page.hits],
            total=page.total,
            exact=page.exact,
            group_sizes=page.group_sizes if grouped else None,
            facets=page.facets if request.facets else None,
            end=_end(page, order, seen, after.first) if more else None,
        )

    def _words(self, words: str, hidden: Container[str]) -> WordQuery:
        return WordQuery(terms=any_terms(words), columns=[name for name in self.word_columns if name not in hidden])

    def _page(self, request: SetRequest, place: Place) -> SetPage:
        """The set, with the hits of the page after a place alone. OptionError for too many values of a facet."""
        limits = request.limits
        if request.words is not None and request.query is not None:
            page = page_of_both(self._index, request, place)
        elif limits.is_by_rank:
            page = ranked_page(self._index, request, place)
        else:
            grouped = request.group_by is not None
            # An earlier image of a group may be in another shard, so all groups before the page are merged.
            skipped = place.seen if grouped or request.after is None else 0
            page = find_set(self._index, replace(request, depth=skipped + limits.k))
            hits = page.hits[skipped:]
            page = replace(page, hits=hits) if grouped else page.of(hits)
        page.require_facets(request)
        return page

    def _after(self, after: Place, order: Order) -> tuple[Any, str, int] | None:
        """The key, id and position that a page comes after. OptionError for a place that the version does not have."""
        if after.position is None:
            return None
        if order.column is None and after.key is not None:
            return after.key, after.image_id, after.position
        known = self._index.positions(text_array([after.image_id]))
        if order.column is None or known[0] < 0 or after.position >= self.manifest.rows:
            raise OptionError("after", after.image_id, f"an image at the end of a page of index version {self.version}")
        return self._index.sort_keys(np.array([after.position]), order.column)[0], after.image_id, after.position

    def facets(self, filter: Mapping[str, Any] | None = None) -> Counts:
        """The columns whose values images share, and how many of the images that pass `filter` have each value.

        A column is counted without its own condition in the filter, so that its other values can be chosen. At most a
        million rows are counted, and the counts are cached. FilterError for an invalid filter.
        """
        where = Filter.parse(filter or {}, self._filterable)
        everything = self._count((*facet_columns(self._filterable),), None)
        shared = everything.shared(self._filterable)
        parts = [self._count((*(name for name in shared if name not in where.expression),), where)]
        for name in (name for name in shared if name in where.expression):
            others = {key: operand for key, operand in where.expression.items() if key != name}
            parts.append(self._count((name,), Filter.parse(others, self._filterable)))
        counts = {name: count for part in parts for name, count in part.values.items()}
        return Counts(rows=everything.rows, values={name: counts[name] for name in shared if name in counts})

    @cachedmethod(attrgetter("_counts"), lock=attrgetter("_lock"))
    def _count(self, columns: tuple[str, ...], where: Filter | None) -> Counts:
        return self._index.count_values(columns, where if where and where.expression else None)

    def row(self, image_id: str) -> dict[str, Any] | None:
        """Every column of an image's row but the embedding, or None if the image is not in the index."""
        positions = self._positions(image_id)
        return self._index.rows(positions, self._index.schema.names)[0] if positions[0] >= 0 else None

    def vector(self, image_id: str) -> npt.NDArray[np.float32]:
        """An image's vector, `(dim,)` float32, unit norm. QueryError if the image is not in the index."""
        positions = self._positions(image_id)
        if positions[0] < 0:
            raise QueryError(f"index version {self.version} holds no image {image_id!r}: expected one of its ids")
        vector: npt.NDArray[np.float32] = self._index.vectors(positions)[0]
        return vector

    def _positions(self, image_id: str) -> Positions:
        """The image's position; -1 if there is none, as for text that is not UTF-8, which no id is."""
        try:
            ids = text_array([image_id])
        except UnicodeEncodeError:
            return np.array([-1], np.int64)
        return self._index.positions(ids)

    def percentile(self, score: float, kind: QueryKind | None = "image") -> float | None:
        """The percentage of images that score below `score` with random queries of a kind. None if no query of the kind
        was measured, or for no kind.
        """
        return self.percentiles([score], kind)[0]

    def percentiles(self, scores: Sequence[float | None], kind: QueryKind | None = "image") -> list[float | None]:
        """The `percentile` of each score; None without one."""
        known = self.manifest.scores
        if not kind or not (random := known.random.get(kind)):
            return [None] * len(scores)
        shares = np.interp(np.array(scores, np.float64), random, known.levels)  # None becomes NaN
        return [
            None if score is None else round(100 * share, 3)
            for score, share in zip(scores, shares.tolist(), strict=True)
        ]

    def lowest_score(self, percentile: float, kind: QueryKind | None = "image") -> float | None:
        """The lowest score whose `percentile` is this one or a higher one; None like that."""
        scores = self.manifest.scores
        random = scores.random.get(kind) if kind else None
        # Percentiles are rounded to three decimals; what is exactly halfway counts as the higher one.
        level = (math.ceil(1_000 * percentile - 1e-6) - 0.500001) / 100_000
        return float(np.interp(level, scores.levels, random, left=-1.0)) if random else None

    def _filter(self, where: Mapping[str, Any] | None) -> Filter | None:
        return None if where is None else Filter.parse(where, self._filterable)

    def _box(self, hit: Hit) -> Box | None:
        return self._boxes[hit.part]

    def _matches(
        self, hits: Sequence[Hit], fields: Sequence[str] | None = None, group_sizes: Mapping[Any, int] | None = None
    ) -> list[Match]:
        rows = self._rows(hits, [*ROW_FIELDS, *(self._metadata if fields is None else dict.fromkeys(fields))])
        return [
            Match(
                image_id=hit.image_id,
                score=hit.score,
                **{name: row.pop(name) for name in ROW_FIELDS},
                metadata=row,
                duplicates=(*hit.duplicates,),
                box=self._box(hit),
                group=hit.group,
                group_size=(group_sizes or {}).get(hit.group),
                words=hit.words,
                vector_rank=hit.vector_rank,
            )
            for hit, row in zip(hits, rows, strict=True)
        ]

    def _rows(self, hits: Sequence[Hit], columns: Sequence[str]) -> list[dict[str, Any]]:
        rows = [hit.row for hit in hits if hit.row is not None and hit.row.keys() >= {*columns}]
        if len(rows) == len(hits):
            return [{name: row[name] for name in columns} for row in rows]
        return self._index.rows(np.array([hit.position for hit in hits], np.int64), columns)


def _end(page: SetPage, order: Order, seen: int, first: int) -> Place:
    if page.after is None:
        return Place(seen, first)
    key, image_id, position = page.after
    return Place(seen, first, image_id, position, key if order.column is None else None)


def _check_known(options: SearchOptions) -> None:
    if unknown := options.keys() - SearchOptions.__annotations__.keys():
        raise TypeError(f"got {', '.join(sorted(unknown))}: expected {', '.join(SearchOptions.__annotations__)}")
