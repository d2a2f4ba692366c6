"""Whether the columns of a large collection have the right values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.common.clustered import BLOCK, Clustered
from benchmarks.curation.near_copies import Copied
from benchmarks.index.recall import exact, recall
from index.collection import Collection
from index.collection.annotations import Annotation, annotation_log
from index.collection.rows import EMBEDDING, vectors_of
from index.search import Searcher

_K, _MATCHED = 10, 2_000
_SAMPLE = 500  # rows whose values are compared with brute force
_COLUMNS = (("outlier", 10), ("unique", 1))


def share_of_pairs(location: str, data: Copied, rows: int) -> float:
    """The share of the planted pairs that are left of which not both images are kept."""
    segments = Searcher.open(Collection.open(location)).segments
    table = segments.table_at(segments.live_positions(), ("keep",))
    kept = dict(zip(table["image_id"].cast(pa.int64()).to_pylist(), table["keep"].to_pylist(), strict=True))
    both = [kept[one] and kept[other] for one, other in data.pairs(rows) if one in kept and other in kept]
    return both.count(False) / len(both)


def recall_of_matches(location: str, data: Copied, other: range) -> float:
    """Recall@10 of the first images' matches in these clustered rows, against a comparison with all."""
    log = annotation_log(Collection.open(location), "seen")
    found = Annotation("seen", log, log.runs()).rows.read(["image_id", "seen_ids"])
    order = pc.sort_indices(found["image_id"].cast(pa.int64()))[:_MATCHED]
    ids = np.asarray(pc.list_flatten(found["seen_ids"].take(order)).cast(pa.int64()))
    blocks = range(other.start, other.stop, BLOCK)
    vectors = np.concatenate([vectors_of(Clustered().table(each, each + BLOCK)[EMBEDDING]) for each in blocks])
    truth = other.start + exact(data.array(_MATCHED), vectors, _K)[1]
    return recall(ids.reshape(-1, _K), truth)


def errors(location: str) -> tuple[float, float]:
    """The shares of a sample whose `outlier` and `unique` differ from those of brute force by more than rounding."""
    segments = Searcher.open(Collection.open(location)).segments
    positions = np.random.default_rng(0).choice(segments.live_positions(), _SAMPLE, replace=False)
    queries, best = segments.vectors(positions), np.full((_SAMPLE, 0), -np.inf, np.float32)
    for block, vectors in segments.live_blocks():
        scores = np.where(positions[:, np.newaxis] == block, -np.inf, queries @ vectors.T)
        best = -np.sort(-np.concatenate([best, scores], axis=1), axis=1)[:, :10]
    rows = segments.rows(positions, ["outlier", "unique"])
    far = [np.abs(1 - best[:, :k].mean(axis=1) - [row[name] for row in rows]) > 2e-4 for name, k in _COLUMNS]
    return float(far[0].mean()), float(far[1].mean())


def sizes(location: str) -> tuple[int, float, float]:
    """The number of clusters, and the sizes of the smallest and the largest in relation to the mean."""
    segments = Searcher.open(Collection.open(location)).segments
    rows = segments.rows(segments.live_positions(), ["kind"])
    counts = np.unique([row["kind"] for row in rows], return_counts=True)[1]
    return len(counts), float(counts.min() / counts.mean()), float(counts.max() / counts.mean())
