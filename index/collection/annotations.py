"""Annotations: columns that predictors add to a collection's images.

Each is a log of runs below the collection, like the collection's own: rows without an embedding, with the predictor's
columns as their metadata. `content_hash` says of which bytes a row is; it counts for no others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.collection import Collection
from index.collection.layout import ANNOTATIONS, MANIFEST, annotation_path, run_path
from index.collection.live_rows import LiveRows
from index.collection.records import RunManifest
from index.collection.rows import TEXT


@dataclass(frozen=True)
class Annotation:
    """The columns of one predictor, with their committed `runs`, oldest first: at least one."""

    name: str
    log: Collection
    runs: list[RunManifest]

    @property
    def rows(self) -> LiveRows:
        """The newest row of each image that the newest predictor has seen; rejects too."""
        return LiveRows.of_runs(self.log.storage, self.runs).of_model(self.runs[-1].model)

    @property
    def run_ids(self) -> list[str]:
        return [run.run_id for run in self.runs]


def annotation_log(collection: Collection, name: str) -> Collection:
    """The runs of an annotation, which need not be there yet, under the lease of the collection."""
    return replace(collection, storage=collection.storage.subfolder(annotation_path(name)))


def list_annotations(collection: Collection) -> list[Annotation]:
    """The annotations that have a committed run, by name."""
    logs = {entry.name: annotation_log(collection, entry.name) for entry in collection.storage.list(ANNOTATIONS)}
    found = [Annotation(name, log, log.runs()) for name, log in logs.items()]
    return [annotation for annotation in found if annotation.runs]


def same_content(listed: pa.Table, rows: pa.Table) -> tuple[Any, Any]:
    """For each image listed, the index of its row, and whether that is of the same bytes; `rows` has one of an id."""
    at: Any = pc.index_in(listed["image_id"].cast(TEXT), value_set=rows["image_id"])
    content: Any = listed["content_hash"].cast(TEXT)
    of: Any = rows["content_hash"].take(at)
    both_unknown = pc.and_(pc.is_null(content), pc.and_(pc.is_null(of), pc.is_valid(at)))
    return at, pc.or_(pc.equal(content, of).fill_null(False), both_unknown)


def drop_annotation(annotation: Annotation) -> None:
    """Remove an annotation's rows. The versions of the index that have its columns keep them."""
    for run in reversed(annotation.runs):  # without manifests there is no annotation, if this is cut short
        annotation.log.check_lease()
        annotation.log.storage.delete(run_path(run.run_id, MANIFEST))
    annotation.log.storage.delete("")
