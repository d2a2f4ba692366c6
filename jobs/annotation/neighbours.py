"""Columns from an image's nearest others, as the live index finds them.

Any new image may be nearer to any other, and first of all to those far from all: so all images are looked up again once
any is new or gone, and only values that differ are written.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pyarrow as pa
from rich.console import Console

from index.analysis.neighbourhoods import nearest_others
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.live_rows import LiveRows
from index.collection.rows import text_array
from index.search import Searcher
from jobs.annotation.computed import indexed_rows, put_columns
from jobs.embedding.report import EmbedReport
from jobs.progress import rate_bar
from jobs.spec import AnnotationSpec

_OUTLIER_K = 10


def neighbour_column(collection: Collection, spec: AnnotationSpec, console: Console) -> EmbedReport:
    """Bring the column of an annotation with `uniqueness` or `outlier` up to date, and publish it.

    It has 1 - cosine with the nearest other image, or with the mean of its ten nearest (the weight of Angiulli and
    Pizzuti, 2002), from 0 to 2; null for the only image. UsageError if there is no index, or the name is taken.
    """
    live, log = indexed_rows(collection, spec.name), annotation_log(collection, spec.name)
    k = 1 if spec.uniqueness else _OUTLIER_K
    searcher = Searcher.open(collection)
    by = f"{'uniqueness' if spec.uniqueness else 'outlier'} with model {searcher.model.fingerprint[:12]}"
    committed, total = log.runs(), searcher.ntotal
    if committed and committed[-1].model.id == by:
        before = LiveRows.of_runs(log.storage, committed).of_model(committed[-1].model)
        [[differing]] = live.catalog.table(_DIFFERING.format(images=live.sql, values=before.sql)).to_pydict().values()
        if not differing:
            return EmbedReport(listed=total, already_there=total)
    values = _values(searcher, spec.name, k, collection, console)
    del searcher  # it may hold half a gigabyte for a million images, and the join needs as much
    changed = put_columns(collection, spec.name, by, values, console)
    return EmbedReport(listed=total, already_there=total - changed, embedded=changed)


_DIFFERING = """
SELECT count(*) FROM (SELECT image_id, content_hash FROM {images} WHERE error_reason IS NULL) AS i
FULL JOIN (SELECT image_id, content_hash FROM {values}) AS v
ON v.image_id = i.image_id AND v.content_hash IS NOT DISTINCT FROM i.content_hash
WHERE i.image_id IS NULL OR v.image_id IS NULL
"""
"""Counts the images that are new, changed or gone since their values were computed."""


def _values(searcher: Searcher, name: str, k: int, collection: Collection, console: Console) -> pa.Table:
    """The column of each live row, looked up block by block."""
    segments, done, began = searcher.segments, 0, perf_counter()
    # At once: between small arrays of each block, the heap would keep the memory of all vectors.
    order, apart = np.empty(segments.live_count, np.int64), np.empty(segments.live_count)
    with rate_bar(console, f"annotating {name}", segments.live_count, "starting") as show:
        for positions, hits in nearest_others(segments, k):
            block = slice(done, done := done + len(positions))
            order[block], apart[block] = positions, np.maximum(0, np.round(1 - hits.mean_scores(), 4))
            show(done, f"{done / (perf_counter() - began):,.0f} images/s")
            collection.check_lease_if_overdue()
    ids = text_array(segments.ids(order).tolist())
    return pa.table({"image_id": ids, name: pa.array(apart, mask=np.isnan(apart))})
