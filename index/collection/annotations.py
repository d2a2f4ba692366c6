"""Annotations: columns that predictors add to a collection's images.

Each is a log of runs below the collection, like the collection's own: rows without an embedding, with the predictor's
columns as their metadata. A row holds for the bytes with its `content_hash` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from index.collection.collection import Collection
from index.collection.layout import ANNOTATIONS, MANIFEST, MERGED, annotation_path, learned_path, run_path
from index.collection.live_rows import LiveRows
from index.collection.records.bounds import MAX_RECORD
from index.collection.records.learned import Learned
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunManifest
from index.errors import CollectionError
from index.matches import SEARCHES

MATCH: Final = "match"
SELECT, PRUNE = "select", "prune"
"""Kinds of annotations whose columns of text are ids of images: like `image_id`, no words."""


@dataclass(frozen=True)
class Annotation:
    """The columns of one predictor, with their committed `runs`: one or more, oldest first."""

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

    @property
    def has_names(self) -> bool:
        """Whether its text is ids of images or names of searches, not words."""
        return kind_of(self.runs[-1].model.id) in (MATCH, SELECT, PRUNE, SEARCHES)

    def has_seen(self, images: LiveRows) -> bool:
        """Whether there is a row, which may be a reject, for each of some images that are embedded."""
        rows = self.rows
        return not images.catalog.table(_UNSEEN.format(images=images.sql, rows=rows.sql)).num_rows

    def has(self, column: str) -> bool:
        return belongs_to(column, self.name)


_UNSEEN: Final = """
SELECT image_id FROM {images} AS image WHERE error_reason IS NULL AND NOT EXISTS (
    FROM {rows} AS row WHERE row.image_id = image.image_id AND row.content_hash IS NOT DISTINCT FROM image.content_hash
) LIMIT 1
"""


def kind_of(predictor: str) -> str:
    """The kind of a predictor's columns: the first word of its id, as in `captions by MODEL`, or a user's class."""
    return predictor.partition(" ")[0]


def belongs_to(column: str, annotation: str) -> bool:
    """Whether an annotation has reserved the name of a column."""
    return column == annotation or column.startswith(f"{annotation}_")


def annotation_log(collection: Collection, name: str) -> Collection:
    """The runs of an annotation, under the collection's lease. The annotation need not exist yet."""
    folder = annotation_path(name)
    collection.storage.local_path(folder)  # UnsafeFileError if it is a link, which the root of a storage may be
    return replace(collection, storage=collection.storage.subfolder(folder))


def annotation_logs(collection: Collection) -> dict[str, Collection]:
    """The runs of every annotation, by its name."""
    entries = collection.storage.list(ANNOTATIONS)
    return {entry.name: annotation_log(collection, entry.name) for entry in entries if entry.is_folder}


def list_annotations(collection: Collection) -> list[Annotation]:
    """The annotations that have a committed run, by name."""
    found = [Annotation(name, log, log.runs()) for name, log in annotation_logs(collection).items()]
    return [annotation for annotation in found if annotation.runs]


def rows_with_values(annotations: Iterable[Annotation]) -> list[LiveRows]:
    """The rows of those annotations that have columns."""
    return [rows for rows in (annotation.rows for annotation in annotations) if rows.metadata]


def read_learned(log: Collection, predictor: ModelRecord) -> Learned | None:
    """What a predictor of an annotation learned; None if it has not. CollectionError if the file is damaged."""
    path = learned_path(predictor.fingerprint)
    try:
        return Learned.from_bytes(log.storage.read(path, max_bytes=MAX_RECORD))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CollectionError(f"{log.location}/{path} is damaged ({error}): {_remedy(log)}") from error


def lost(log: Collection, predictor: ModelRecord) -> CollectionError:
    """The error for rows by a predictor without what it had learned."""
    return CollectionError(f"{log.location}/{learned_path(predictor.fingerprint)} is missing: {_remedy(log)}")


def _remedy(log: Collection) -> str:
    collection, name = log.storage.parent.parent.location, log.storage.root.rpartition("/")[2]
    return (
        f"restore it from a backup, or drop the annotation (`likeness columns {collection} --drop {name}`) and "
        "annotate all images again, which may give them other values"
    )


def drop_annotation(annotation: Annotation) -> None:
    """Remove an annotation's rows. Index versions that have its columns keep them."""
    annotation.log.check_lease()
    annotation.log.storage.delete(MERGED)  # first, as it has copies of the manifests
    for run in reversed(annotation.runs):  # then these: if this is interrupted, files that none names do no harm
        annotation.log.check_lease()
        annotation.log.storage.delete(run_path(run.run_id, MANIFEST))
    annotation.log.storage.delete("")
