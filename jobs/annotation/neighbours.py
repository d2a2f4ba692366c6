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
from index.collection.annotations import Annotation, annotation_log
from index.collection.records.model_record import ModelRecord
from index.collection.rows import number_array
from index.versions.servable import collection_model
from jobs.annotation.computed import ComputedColumns
from jobs.annotation_spec import AnnotationSpec
from jobs.embedding.report import EmbedReport
from jobs.errors import RolledBackColumnsError
from jobs.progress import rate_bar

_OUTLIER_K = 10


def neighbour_column(collection: Collection, spec: AnnotationSpec, console: Console) -> EmbedReport:
    """Bring the column of an annotation with `uniqueness` or `outlier` up to date, without publishing it.

    It has 1 - cosine with the nearest other image, or with the mean of its ten nearest (the weight of Angiulli and
    Pizzuti, 2002), from 0 to 2; null for the only image. Raises like `ComputedColumns.open`, unless the columns that
    were rolled back have seen all images: then there is nothing to do, as with other annotations.
    """
    try:
        columns = ComputedColumns.open(collection, spec.name, spec.kind)
    except RolledBackColumnsError:
        if report := _rolled_back_report(collection, spec.name, spec.kind):
            return report
        raise
    total = columns.searcher.ntotal
    by = _by(spec.kind, columns.searcher.model)
    if columns.is_complete(by, pa.schema({spec.name: pa.float64()})):
        return EmbedReport(listed=total, already_there=total)
    # At once: between small arrays of each block, the heap would keep the memory of all vectors.
    apart, done, began = np.empty(columns.segments.live_count), 0, perf_counter()
    with rate_bar(console, f"annotating {spec.name}", total, "starting") as show:
        for positions, hits in nearest_others(columns.segments, 1 if spec.uniqueness else _OUTLIER_K):
            block = slice(done, done := done + len(positions))
            apart[block] = np.maximum(0, np.round(1 - hits.mean_scores(), 4))
            show(done, f"{done / (perf_counter() - began):,.0f} images/s")
            collection.raise_if_lease_lost()
    table = pa.table({spec.name: number_array(apart, np.isnan(apart))})
    changed = columns.put(by, columns.segments.live_positions(), table)
    # An only image has no value, and so is not up to date.
    return EmbedReport(listed=total, already_there=total - changed if total > 1 else 0, embedded=changed)


def _rolled_back_report(collection: Collection, name: str, kind: str) -> EmbedReport | None:
    """None if columns that were rolled back have not seen all images, or are of another model."""
    snapshot, log = collection.snapshot(), annotation_log(collection, name)
    columns, model = Annotation(name, log, log.runs()), collection_model(snapshot)
    if model is None or columns.runs[-1].model.id != _by(kind, model):
        return None
    live = snapshot.live.of_model(model)
    return EmbedReport(listed=len(live), already_there=len(live)) if columns.has_seen(live) else None


def _by(kind: str, model: ModelRecord) -> str:
    return f"{kind} with model {model.fingerprint[:12]}"
