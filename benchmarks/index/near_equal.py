"""A set of which some rows are nearly alike, such as recompressed placeholders or frames of a still camera."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import faiss
import numpy as np

from benchmarks.common.clustered import BLOCK, DIM, Clustered, Rows, Vectors, add_rows
from benchmarks.common.process import CORES, in_new_process, seconds_of
from benchmarks.common.report import Report
from benchmarks.index.recall import exact
from benchmarks.index.upkeep import build
from index.builder.recall import recall
from index.collection import Collection
from index.collection.records import FLAT, IndexSettings
from index.search import Searcher

_K, _SINGLES, _QUERIES = 10, 200, 1_000
_NOISE = 0.03  # its length beside that of a vector: cosines from 0.999


@dataclass(frozen=True)
class Crowded(Clustered):
    """Clusters in which a `share` of each block's rows are one picture with a little noise."""

    share: float = 0.02

    def _block(self, number: int) -> tuple[Vectors, Rows]:
        vectors, clusters = super()._block(number)
        rng = np.random.default_rng([self.seed, 5, number])
        count = round(self.share * BLOCK)
        picture = super()._block(0)[0][-1]
        vectors[:count] = picture + np.float32(_NOISE / DIM**0.5) * rng.standard_normal((count, DIM), np.float32)
        vectors[:count] /= np.linalg.norm(vectors[:count], axis=1, keepdims=True)
        order = rng.permutation(BLOCK)
        return vectors[order], clusters[order]


def measure_crowd(rows: int, share: float, settings: IndexSettings, folder: Path, report: Report) -> None:
    """Kind, memory and latency of an index; and its recall amid the near-equal rows and beside them."""
    data, collection = Crowded(share=share), Collection.create_or_open(str(folder))
    add_rows(collection, data, range(rows))
    built = in_new_process(build, collection.location, settings, data)
    searcher, manifest, queries = Searcher.open(collection), built.manifest, data.queries(_QUERIES)
    faiss.omp_set_num_threads(1)
    search = partial(searcher.search, k=_K, kind="image")
    search(queries)
    seconds = [seconds_of(partial(search, query[np.newaxis])) for query in queries[:_SINGLES]]
    faiss.omp_set_num_threads(CORES)
    best = exact(queries, data.array(rows), _K)[0]
    reached = recall(np.array([[match.score for match in each] for each in search(queries)], np.float32), best, _K)
    alone = best[:, -1] < 0.99  # the others are for the picture
    report.values(
        f"{share:.0%} of the rows nearly alike",
        {
            "kind": manifest.kind,
            "p50 of a query, ms": float(np.median(seconds) * 1e3),
            "bytes of memory for each vector": manifest.memory / rows,
            "seconds of the build": built.seconds,
            "peak memory of the build, MB": built.peak_rss / 1e6,
            "recall@10 in the manifest": manifest.kinds["image"].recall,
            "recall@10 amid near-equal rows": float(reached[~alone].mean()),
        },
    )
    exact_rows = sum(segment.ntotal for segment in manifest.segments if segment.factory == FLAT)
    report.at_most("rows that are scanned exactly", exact_rows, 0)
    report.at_least("recall@10 of other queries", float(reached[alone].mean()), settings.target_recall)
