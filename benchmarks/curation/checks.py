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
