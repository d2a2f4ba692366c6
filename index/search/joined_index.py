"""The indexes of several collections as one, as if one collection had all their images."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from index.collection.records.version_manifest import KindRecord, ScoreDistribution, VersionManifest
from index.filters.filter import Filter
from index.queries import QueryKind
from index.search.result_set import Hit
from index.search.searcher import Searcher
from index.segments.eligible import Eligible
from index.segments.segmented_index import SegmentedIndex, union_schema
from index.tiles import Box


class JoinedIndex(SegmentedIndex):
    """Searches the segments of several indexes, one after the other. What passes a filter is cached by each of them."""

    def __init__(self, indexes: Sequence[SegmentedIndex]) -> None:
        schema = union_schema([index.schema for index in indexes])
        super().__init__([segment for index in indexes for segment in index.parts], schema)
        self._indexes = indexes

    def eligible(self, where: Filter | None) -> list[Eligible] | None:
        return None if where is None else [each for index in self._indexes for each in index.eligible(where) or ()]


class JoinedSearcher(Searcher):
    """Searches all images of several searchers. If models differ, no query can have a vector."""

    def __init__(self, searchers: Sequence[Searcher]) -> None:
        manifests = [searcher.manifest for searcher in searchers]
        changes = {
            "version": ", ".join(manifest.version for manifest in manifests),
            "ntotal": sum(manifest.ntotal for manifest in manifests),
            "segments": [segment for manifest in manifests for segment in manifest.segments],
            "settings": manifests[0].settings.model_copy(
                update={"words": (*{name for searcher in searchers for name in searcher.word_columns},)}
            ),
            "kinds": _kinds(manifests),
            "scores": _scores(manifests),
        }
        super().__init__(manifests[0].model_copy(update=changes), JoinedIndex([each.segments for each in searchers]))
        self._searchers = searchers
        self._starts = [0, *accumulate(manifest.rows for manifest in manifests)]

    def _box(self, hit: Hit) -> Box | None:
        return self._searchers[bisect(self._starts, hit.position) - 1]._box(hit)  # grids of tiles may differ


def _kinds(manifests: Sequence[VersionManifest]) -> dict[QueryKind, KindRecord]:
    """Searches are as wide as in the collection that needs it most."""
    known = {kind: record for manifest in manifests for kind, record in manifest.kinds.items()}
    return {
        kind: record.model_copy(update={"width": max(manifest.width_of(kind) for manifest in manifests)})
        for kind, record in known.items()
    }


def _scores(manifests: Sequence[VersionManifest]) -> ScoreDistribution:
    """The scores of random queries in all collections, as often as these have images. One with too few images for any
    does not count.
    """
    measured = [manifest for manifest in manifests if manifest.scores.random] or manifests
    levels, weights = measured[0].scores.levels, [manifest.ntotal for manifest in measured]
    random: dict[QueryKind, list[float]] = {}
    for kind in measured[0].scores.random:
        if all(kind in manifest.scores.random for manifest in measured):
            parts = [(manifest.scores.random[kind], manifest.scores.levels) for manifest in measured]
            scores = np.unique(np.concatenate([known for known, _ in parts]))
            below = np.average([np.interp(scores, *part) for part in parts], axis=0, weights=weights)
            random[kind] = np.interp(levels, below, scores).tolist()
    return ScoreDistribution(levels=levels, random=random, nearest=[])
