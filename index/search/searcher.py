"""Finds the nearest images in an index version that this process holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Positions
from index.collection import Collection
from index.collection.records.version_manifest import VersionManifest
from index.errors import EmptyCollectionError, QueryError
from index.matches import Match
from index.queries import unit_vectors
from index.search.members import Members
from index.search.result_set import Hit, merged_hits
from index.search.version_searcher import VersionSearcher
from index.search_options import QueryLimits
from index.segments.segmented_index import SegmentedIndex
from index.storage.scratch import Scratch
from index.versions.opening import open_segments


def no_index(collection: Collection) -> EmptyCollectionError:
    """The error for a collection without an index version; says which command to run."""
    counts = "SELECT count(*) AS images, count(error_reason) AS rejects FROM live_rows"
    snapshot = collection.snapshot()
    [live], [newest] = snapshot.live.catalog.rows(counts), snapshot.newest().rows(counts)
    if live["images"] > live["rejects"]:
        advice = "build one with `likeness index`"
    elif 0 < newest["images"] == newest["rejects"]:  # also in a run that was refused for them
        advice = f"embedded 0 of {newest['images']:,} images, see `likeness rejects`"
    else:
        advice = "embed images first with `likeness embed`"
    return EmptyCollectionError(f"{collection.location} has no index to search: {advice}")


def searched_version(collection: Collection, version: str | None) -> VersionManifest:
    """The manifest of a version, by default the live one. EmptyCollectionError when there is none."""
    version = version or collection.current()
    if version is None:
        raise no_index(collection)
    return collection.read_version(version)


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

    def passing(self, filter: Mapping[str, Any] | None = None) -> Positions:
        """The positions of the images that pass a filter, ascending. FilterError for an invalid one."""
        return self.segments.eligible_positions(self.segments.eligible(self._filter(filter)))

    def within(
        self, vector: npt.ArrayLike, min_score: float, *, filter: Mapping[str, Any] | None = None, limit: int = 100_000
    ) -> list[Match]:
        """Every image that scores `min_score` or more, by an exact search, ordered by score and then by image_id.

        `vector` is `(dim,)`; it is compared with whole pictures, not with tiles. QueryError if there are more than
        `limit` (it gives their number).
        """
        limits = QueryLimits.checked(1, {"min_score": min_score})
        eligible = self.segments.eligible(self._filter(filter))
        # Includes scores that are rounded up to the minimum.
        query = unit_vectors(np.asarray(vector)[np.newaxis], self.dim)[0]
        found = Members.of(self.segments.within(query, limits.min_score - 1e-6, eligible), limits)
        if (count := len(found)) > limit:
            least = f"{limits.min_score} or more"
            raise QueryError(f"{count:,} images score {least}: expected {limit:,} at most; raise min_score or limit")
        assert found.scores is not None
        scores = found.scores.tolist()
        hits = map(Hit, scores, self.segments.ids(found.positions), found.positions.tolist(), scores)
        return self._matches(merged_hits(hits, descending=True, grouped=False))


OpenVersion = Callable[[Collection, str | None], VersionSearcher]
"""`Searcher.open`, or a function like it."""
