"""Finds the nearest images in an index version."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cachetools import LRUCache, cachedmethod

from index.collection import Collection
from index.collection.records import VersionManifest
from index.collection.rows import REJECT_COLUMNS, metadata_columns, text_array
from index.errors import EmptyCollectionError, QueryError
from index.filters.columns import type_name
from index.filters.facets import Counts, facet_columns
from index.filters.filter import Filter
from index.matches import Match
from index.queries import QueryKind, unit_vectors
from index.search.ranking import Hit, Ranking, Searchable, hits_of, rounded
from index.search_options import QueryLimits, SearchOptions, checked_min_score
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex
from index.storage.scratch import Scratch
from index.versions.opening import open_segments

_MAX_COUNTS = 64  # cached facets, each with at most a thousand values for a column


def no_index(collection: Collection) -> EmptyCollectionError:
    """The error for a collection without an index version; says which command to run."""
    embedded = any(run.files.rows for run in collection.runs())
    advice = "build one with `likeness index`" if embedded else "embed images first with `likeness embed`"
    return EmptyCollectionError(f"{collection.location} has no index to search: {advice}")


def searched_version(collection: Collection, version: str | None) -> VersionManifest:
    """The manifest of a version, by default the live one. EmptyCollectionError when there is none."""
    version = version or collection.current()
    if version is None:
        raise no_index(collection)
    return collection.read_version(version)


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
        if unknown := options.keys() - SearchOptions.__annotations__.keys():
            raise TypeError(f"got {', '.join(sorted(unknown))}: expected {', '.join(SearchOptions.__annotations__)}")
        limits = QueryLimits.checked(k, options, exclude)
        queries = unit_vectors(vectors, self.dim)
        ranking = Ranking(self._index, limits, self._filter(options.get("filter")), self.manifest.width_of(kind))
        ranked = ranking.rank(queries)
        matches = iter(self._matches([hit for hits in ranked for hit in hits], options.get("fields")))
        return [[next(matches) for _ in hits] for hits in ranked]

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

    def _matches(self, hits: Sequence[Hit], fields: Sequence[str] | None = None) -> list[Match]:
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
            )
            for hit, row in zip(hits, rows, strict=True)
        ]


class Searcher(VersionSearcher):
    """Also gives access to all rows, which this process holds in its `segments`."""

    def __init__(self, manifest: VersionManifest, segments: SegmentedIndex) -> None:
        super().__init__(manifest, segments)
        self.segments = segments

    @classmethod
    def open(cls, collection: Collection, version: str | None = None) -> Searcher:
        """Verify and map a version, by default the live one. DamagedVersionError names the damaged file."""
        manifest = searched_version(collection, version)
        with Scratch("segments") as cache:
            # A mapped file stays readable after it is unlinked, and its space is freed when the process ends.
            return cls(manifest, open_segments(collection, manifest, cache.path))

    def within(
        self, vector: npt.ArrayLike, min_score: float, *, filter: Mapping[str, Any] | None = None, limit: int = 100_000
    ) -> list[Match]:
        """Every image that scores `min_score` or more, by an exact search, ordered by score and then by image_id.

        `vector` is `(dim,)`; it is compared with whole pictures, not with tiles. QueryError if there are more than
        `limit` (it gives their number).
        """
        min_score = checked_min_score(min_score)
        eligible = self.segments.eligible(self._filter(filter))
        found, count = [], 0
        # Includes scores that are rounded up to the minimum.
        query = unit_vectors(np.asarray(vector)[np.newaxis], self.dim)[0]
        for hits in self.segments.within(query, min_score - 1e-6, eligible):
            good = np.flatnonzero(rounded(hits.scores[0]) >= min_score)
            count += len(good)
            if count <= limit:
                found.append(hits.take(good[np.newaxis]))
        if count > limit:
            raise QueryError(
                f"{count:,} images score {min_score} or more: expected {limit:,} at most; raise min_score or limit"
            )
        return self._matches(hits_of(Hits.joined(found).with_ids(self.segments.ids))[0])


OpenVersion = Callable[[Collection, str | None], VersionSearcher]
"""`Searcher.open`, or a function like it."""
