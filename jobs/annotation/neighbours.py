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
from index.collection.rows import number_array
from jobs.annotation.computed import ComputedColumns
from jobs.embedding.report import EmbedReport
from jobs.progress import rate_bar
from jobs.spec import AnnotationSpec

_OUTLIER_K = 10


def neighbour_column(collection: Collection, spec: AnnotationSpec, console: Console) -> EmbedReport:
    """Bring the column of an annotation with `uniqueness` or `outlier` up to date, without publishing it.

    It has 1 - cosine with the nearest other image, or with the mean of its ten nearest (the weight of Angiulli and
    Pizzuti, 2002), from 0 to 2; null for the only image. Raises like `ComputedColumns.open`.
    """
    kind = "uniqueness" if spec.uniqueness else "outlier"
    columns = ComputedColumns.open(collection, spec.name, kind, console)
    total = columns.searcher.ntotal
    by = f"{kind} with model {columns.searcher.model.fingerprint[:12]}"
    if columns.is_complete(by, pa.schema({spec.name: pa.float64()})):
        return EmbedReport(listed=total, already_there=total)
    # At once: between small arrays of each block, the heap would keep the memory of all vectors.
    apart, done, began = np.empty(columns.segments.live_count), 0, perf_counter()
    with rate_bar(console, f"annotating {spec.name}", total, "starting") as show:
        for positions, hits in nearest_others(columns.segments, 1 if spec.uniqueness else _OUTLIER_K):
            block = slice(done, done := done + len(positions))
            apart[block] = np.maximum(0, np.round(1 - hits.mean_scores(), 4))
            show(done, f"{done / (perf_counter() - began):,.0f} images/s")
            collection.check_lease_if_overdue()
    table = pa.table({spec.name: number_array(apart, np.isnan(apart))})
    changed = columns.put(by, columns.segments.live_positions(), table)
    return EmbedReport(listed=total, already_there=total - changed, embedded=changed)
