"""Finds the nearest images in an index version, whose segments are in this process or in others."""

from __future__ import annotations

import math
import threading
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cachetools import LRUCache, cachedmethod

from index.collection.records import VersionManifest
from index.collection.rows import REJECT_COLUMNS, metadata_columns, text_array
from index.errors import OptionError, QueryError
from index.filters.columns import type_name
from index.filters.facets import Counts, facet_columns
from index.filters.filter import Filter
from index.matches import Match
from index.queries import QueryKind, unit_vectors
from index.search.fused import best_of_both
from index.search.ranking import Ranking, Searchable
from index.search.result_set import Answer, Hit, Order, SetPage, SetRequest
from index.search.set_columns import SetColumns
from index.search.set_search import SetSearch
from index.search.sharded_index import ShardedIndex
from index.search_options import MAX_K, Place, QueryLimits, SearchOptions

_MAX_COUNTS = 64  # cached facets, each with at most a thousand values for a column


class VersionSearcher:
    """The nearest neighbours in one index version, whose segments are in this process or in others. Thread-safe."""

    def __init__(self, manifest: VersionManifest, index: Searchable) -> None:
        self.manifest = manifest
        self.version, self.model = manifest.version, manifest.model
        self.ntotal, self.dim = manifest.ntotal, manifest.dim
        self._index = index
        named = (field for field in index.schema if field.name not in REJECT_COLUMNS)  # null in embedded rows
        self._filterable = pa.schema(named)
        self.filterable = {field.name: type_name(field.type) for field in self._filterable}
        """Columns that `filter` can name, with their Arrow types."""
        self._metadata = metadata_columns(index.schema)
        self._boxes = (None, *manifest.model.boxes)
        self._lock = threading.Lock()
        self._counts: LRUCache[Any, Counts] = LRUCache(_MAX_COUNTS)

    @property
    def has_words(self) -> bool:
        """Whether there is an index of words."""
        return self.manifest.settings.words != ()

    @property
    def searched(self) -> int:
        """Number of images that are searched: all, or those of the shards that answer."""
        return self._index.live_count

    def search(
        self,
        vectors: npt.ArrayLike,
        k: int,
        *,
        exclude: Iterable[str] = (),
        kind: QueryKind | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Match]]:
        """The k nearest of each vector after the first `offset`, by score and then by image_id.

        `vectors` is `(n, dim)`, of any length but zero: a copy is normalised. Results are not in `exclude`. `kind` says
        what the vectors are of: a search for images costs less than the default, which suits any kind. QueryError for
        another shape or a vector without a direction; OptionError for a k + offset outside 1 … MAX_K, or another
        invalid option; FilterError for an invalid filter.
        """
        _check_known(options)
        limits = QueryLimits.checked(k, options, exclude)
        queries = unit_vectors(vectors, self.dim)
        ranking = Ranking(self._index, limits, self._filter(options.get("filter")), self.manifest.width_of(kind))
        ranked = ranking.rank(queries)
        matches = iter(self._matches([hit for hits in ranked for hit in hits], options.get("fields")))
        return [[next(matches) for _ in hits] for hits in ranked]

    def answer(
        self,
        vector: npt.ArrayLike | None,
        k: int,
        *,
        exclude: Iterable[str] = (),
        kind: QueryKind | None = None,
        after: Place | None = None,
        words: str | None = None,
        hidden: Container[str] = (),
        **options: Unpack[SearchOptions],
    ) -> Answer:
        """A page of the set of images that a query selects: one vector, `(dim,)`, or none, to browse all that pass the
        filter. With `words` it has the best of both, or of the words alone; the columns `hidden` do not count.

        The page has the first k after the first `offset`, or `after` the end of an earlier page in this version. The
        set is what scores `min_score` or more, or without that all that passes the filter. Pages are disjoint, and all
        together have the whole set; but with words, `distinct` or `diversity` up to MAX_K, and an approximate search
        may find others for a deeper page. Raises like `search`.
        """
        _check_known(options)
        if after is not None and after.image_id is None:
            options["offset"] = after.seen
        limits = QueryLimits.checked(k, options, exclude)
        after = after or Place(limits.offset, limits.depth)
        columns = SetColumns.of(self._filterable, options, has_query=vector is not None or words is not None)
        grouped = columns.group_by is not None
        request = SetRequest(
            query=None if vector is None else unit_vectors(np.asarray(vector)[np.newaxis], self.dim),
            min_score=limits.min_score,
            where=self._filter(options.get("filter")),
            exclude=limits.exclude,
            width=self.manifest.width_of(kind),
            after=None if grouped else self._place(after, columns.order),
            first=after.first,
            # An earlier image of a group may be in another shard, so all groups before the page are merged.
            depth=limits.k + (after.seen if grouped else limits.offset),
            **vars(columns),
        )
        page = self._page_of(request, limits, words, hidden)
        hits, by_words = page.hits, words is not None and request.query is None
        if not by_words:
            page.require_facets(request)
        seen = after.seen + len(hits)
        end = None
        if len(hits) == limits.k and seen < (len(page.group_sizes) if grouped else page.total):
            end = Place(seen, request.first)
            if words is None and not limits.is_by_rank:
                end = replace(end, image_id=hits[-1].image_id, key=None if columns.order.column else hits[-1].key)
        return Answer(
            matches=self._matches(hits, options.get("fields"), page.group_sizes),
            keys=[hit.key for hit in hits],
            total=page.total,
            exact=page.exact,
            group_sizes=page.group_sizes if grouped else None,
            facets=page.facets if request.facets and not by_words else None,
            end=end,
        )

    def _page_of(self, request: SetRequest, limits: QueryLimits, words: str | None, hidden: Container[str]) -> SetPage:
        """The set, with the hits of one page alone."""
        if words is not None:
            hits = best_of_both(self._index, request, limits, words, hidden)
            of_words = SetPage.counted(len(hits), exact=len(hits) < MAX_K)
            page = of_words if request.query is None else self._counted(request)
            return replace(page, hits=hits[limits.offset : limits.depth])
        if request.query is not None and limits.is_by_rank:
            ranked = Ranking(self._index, limits, request.where, request.width).rank(request.query)
            return replace(self._counted(request), hits=ranked[0])
        page = self._page(request)
        return replace(page, hits=page.hits[request.depth - limits.k :])

    def _page(self, request: SetRequest) -> SetPage:
        index = self._index
        return index.page(request) if isinstance(index, ShardedIndex) else SetSearch(index, request).page()

    def _counted(self, request: SetRequest) -> SetPage:
        """The set without rows. All images need not be counted."""
        if not request.is_uncut or request.where is not None or request.facets:
            return self._page(replace(request, depth=0))
        return SetPage.counted(self.searched - len(request.exclude))

    def _place(self, after: Place, order: Order) -> tuple[Any, str] | None:
        """The key and the id that a page comes after. OptionError for an image that the version does not have."""
        if after.image_id is None:
            return None
        if order.column is None and after.key is not None:
            return after.key, after.image_id
        positions = self._index.positions(text_array([after.image_id]))
        if order.column is None or positions[0] < 0:
            raise OptionError("after", after.image_id, f"the id of an image of index version {self.version}")
        return self._index.sort_keys(positions, order.column)[0], after.image_id

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
        positions = self._index.positions(text_array([image_id]))
        return self._index.rows(positions, self._index.schema.names)[0] if positions[0] >= 0 else None

    def vector(self, image_id: str) -> npt.NDArray[np.float32]:
        """An image's vector, `(dim,)` float32, unit norm. QueryError if the image is not in the index."""
        positions = self._index.positions(text_array([image_id]))
        if positions[0] < 0:
            raise QueryError(f"index version {self.version} holds no image {image_id!r}: expected one of its ids")
        vector: npt.NDArray[np.float32] = self._index.vectors(positions)[0]
        return vector

    def percentile(self, score: float, kind: QueryKind | None = "image") -> float | None:
        """The percentage of images that score below `score` with random queries of a kind. None if no query of the kind
        was measured, or for no kind.
        """
        scores = self.manifest.scores
        random = scores.random.get(kind) if kind else None
        return round(100 * float(np.interp(score, random, scores.levels)), 3) if random else None

    def lowest_score(self, percentile: float, kind: QueryKind | None = "image") -> float | None:
        """The lowest score whose `percentile` is this one or a higher one; None like that."""
        scores = self.manifest.scores
        random = scores.random.get(kind) if kind else None
        # Percentiles are rounded to three decimals; what is exactly halfway counts as the higher one.
        level = (math.ceil(1_000 * percentile - 1e-6) - 0.500001) / 100_000
        return float(np.interp(level, scores.levels, random, left=-1.0)) if random else None

    def _filter(self, where: Mapping[str, Any] | None) -> Filter | None:
        return None if where is None else Filter.parse(where, self._filterable)

    def _matches(
        self, hits: Sequence[Hit], fields: Sequence[str] | None = None, group_sizes: Mapping[Any, int] | None = None
    ) -> list[Match]:
        columns = self._metadata if fields is None else dict.fromkeys(fields)
        positions = np.array([hit.position for hit in hits], np.int64)
        rows = self._index.rows(positions, ["uri", *columns])
        return [
            Match(
                image_id=hit.image_id,
                score=hit.score,
                uri=row.pop("uri"),
                metadata=row,
                duplicates=(*hit.duplicates,),
                box=self._boxes[hit.part],
                group=hit.group,
                group_size=(group_sizes or {}).get(hit.group),
                words=hit.words,
                vector_rank=hit.vector_rank,
            )
            for hit, row in zip(hits, rows, strict=True)
        ]


def _check_known(options: SearchOptions) -> None:
    if unknown := options.keys() - SearchOptions.__annotations__.keys():
        raise TypeError(f"got {', '.join(sorted(unknown))}: expected {', '.join(SearchOptions.__annotations__)}")
