"""Finds the nearest images in an index version."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.collection import Collection
from index.errors import EmptyCollectionError, QueryError
from index.records import ModelRecord, VersionManifest
from index.rows import FIXED
from index.segment import Segment
from index.verify import open_segments

MAX_K = 10_000

_DECIMALS = 6  # float32 holds no more, and duplicates have to score the same


@dataclass(frozen=True, kw_only=True)
class Match:
    """An image near the query. `score` is the cosine; `metadata` are the columns of the source."""

    image_id: str
    score: float
    uri: str
    metadata: dict[str, Any]


class Searcher:
    """The nearest neighbours in one index version. Safe to use from several threads."""

    def __init__(self, manifest: VersionManifest, segments: list[Segment]) -> None:
        self.manifest = manifest
        self._segments = segments
        self._starts = np.cumsum([0, *(segment.ntotal for segment in segments)])

    @classmethod
    def open(cls, collection: Collection, version: str | None = None) -> Searcher:
        """Verify and map a version; None: the live one.

        EmptyCollectionError when there is none, DamagedVersionError names the file that is not whole.
        """
        version = version or collection.current()
        if version is None:
            raise EmptyCollectionError(f"{collection.location} has no index to search: build one with `likeness index`")
        manifest = collection.read_version(version)
        with tempfile.TemporaryDirectory(prefix="likeness-") as cache:
            # A mapped file stays readable after its name is gone, and its room is freed with the process.
            return cls(manifest, open_segments(collection, manifest, Path(cache)))

    @property
    def version(self) -> str:
        """Name of the index version."""
        return self.manifest.version

    @property
    def model(self) -> ModelRecord:
        """The model whose vectors these are."""
        return self.manifest.model

    @property
    def ntotal(self) -> int:
        """Number of images."""
        return self.manifest.ntotal

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.manifest.dim

    def search(self, vectors: npt.ArrayLike, k: int) -> list[list[Match]]:
        """The k nearest of each vector, by score and then by image_id; all of them when there are fewer.

        `vectors` is `(n, dim)`, of any length but zero: a copy is normalised. QueryError for another shape, a
        vector without a direction, or a k outside 1 … MAX_K.
        """
        k = min(_checked_k(k), self.ntotal)
        queries = self._unit_queries(vectors)
        if not len(queries):
            return []
        scores, positions = self._nearest(queries, k)
        rows = self._rows(positions[positions >= 0])
        matches = iter(_match(row, score) for row, score in zip(rows, scores[positions >= 0].tolist(), strict=True))
        found = [[next(matches) for _ in range(count)] for count in (positions >= 0).sum(axis=1)]
        return [sorted(ranked, key=lambda match: (-match.score, match.image_id)) for ranked in found]

    def row(self, image_id: str) -> dict[str, Any] | None:
        """Every column of an image's row but the embedding, or None when the index does not hold it."""
        rows = (segment.find(image_id) for segment in self._segments)
        return next((row for row in rows if row is not None), None)

    def _unit_queries(self, vectors: npt.ArrayLike) -> npt.NDArray[np.float32]:
        queries = np.array(vectors, dtype=np.float32, order="C")  # a copy: the caller's may be read-only
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise QueryError(f"got vectors of shape {queries.shape}: the index takes (n, {self.dim})")
        norms = np.linalg.norm(queries, axis=1, keepdims=True)
        wrong = np.flatnonzero(~(np.isfinite(norms[:, 0]) & (norms[:, 0] > 0)))
        if len(wrong):
            raise QueryError(f"vector {wrong[0]} is zero or not finite: expected a direction to search in")
        queries /= norms
        return queries

    def _nearest(
        self, queries: npt.NDArray[np.float32], k: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Scores and positions over all segments, `(n, k)`; -1 where there are fewer."""
        found = [segment.search(queries, k) for segment in self._segments]
        scores = np.concatenate([scores for scores, _ in found], axis=1)
        positions = np.concatenate(
            [
                np.where(positions < 0, -1, positions + start)
                for (_, positions), start in zip(found, self._starts, strict=False)
            ],
            axis=1,
        )
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(positions, best, axis=1)

    def _rows(self, positions: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{}] * len(positions)
        for segment, start in zip(self._segments, self._starts, strict=False):
            slots = np.flatnonzero((positions >= start) & (positions < start + segment.ntotal))
            columns = ["image_id", "uri", *(name for name in segment.columns if name not in FIXED)]
            for slot, row in zip(slots, segment.rows(positions[slots] - start, columns), strict=True):
                found[slot] = row
        return found


def _checked_k(k: object) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= MAX_K:
        raise QueryError(f"k is {k!r}: expected a whole number from 1 to {MAX_K:,}")
    return int(k)


def _match(row: dict[str, Any], score: float) -> Match:
    image_id, uri = row.pop("image_id"), row.pop("uri")
    return Match(image_id=image_id, score=round(score, _DECIMALS), uri=uri, metadata=row)
