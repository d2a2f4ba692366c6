"""The predictor of `likeness match`: the nearest of each image in a collection's index; and its pairs as a file."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.arrays import Ids, Vectors, rounded
from index.builder.recall import drop_own
from index.collection import Collection
from index.collection.annotations import MATCH, Annotation, annotation_log
from index.collection.layout import ROWS, TOMBSTONES, VECTORS
from index.collection.records.model_record import ModelRecord
from index.collection.records.version_manifest import VersionManifest
from index.collection.rows import number_array, text_array
from index.search import Searcher
from index.search.searcher import searched_version
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex
from index.storage.storage import Storage, canonical_address
from index.versions.servable import check_version, open_last_good
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.embedding.stages import CollectionAt
from jobs.errors import UsageError
from jobs.sources.files import source_address
from jobs.values import fingerprint_of


def match_recipe(location: str, k: int, collection: Collection, model: ModelRecord) -> Recipe:
    """The recipe for the `k` nearest in the collection at `location` of each image of another one, or of the same.

    EmptyCollectionError if there is no index to search, UsageError if its vectors are not of this `model`.
    """
    other = Collection.open(location)
    manifest = matched_version(other)
    if manifest.model.fingerprint != model.fingerprint:
        raise UsageError(
            f"{collection.location} has vectors of {model}, {other.location} has those of {manifest.model}, and these "
            "cannot be compared: embed the images of one again with the other's model (`likeness reembed --model`)"
        )
    itself = _place(collection) == _place(other)
    return Recipe(
        id=MATCH,
        fingerprint=fingerprint_of([k, itself, *_content(manifest)]),
        make=partial(_matches, CollectionAt(other.storage.address), manifest.version, k, itself),
        memory=Recipe.memory + manifest.memory,
    )


def matched_version(other: Collection) -> VersionManifest:
    """The version in which matches are found. EmptyCollectionError if there is none."""
    return open_last_good(other, _manifest)


def _manifest(other: Collection, version: str | None) -> VersionManifest:
    manifest = searched_version(other, version)
    check_version(other, manifest, verify=False)  # opening it verifies every byte
    return manifest


def _matches(other: CollectionAt, version: str, k: int, itself: bool) -> Matches:
    """Opens the version in the process that searches it, so that all workers search the same."""
    searcher = Searcher.open(other(), version)
    return Matches(searcher.segments, k, searcher.manifest.width_of("image"), itself)


def _place(collection: Collection) -> str:
    storage = collection.storage
    return os.path.realpath(storage.root) if storage.is_local else canonical_address(storage.location)


def _content(manifest: VersionManifest) -> list[Any]:
    """What affects the matches in a version: not its annotations, which may be these."""
    dead = manifest.files.get(TOMBSTONES)
    segments = [[record.files[name].sha256 for name in (VECTORS, ROWS)] for record in manifest.segments]
    return [segments, dead and dead.sha256, [record.parameters for record in manifest.segments]]


@dataclass(frozen=True)
class Matches:
    """The nearest rows of an index: the id of the first, with its cosine as `score`, and of up to k the `ids` and
    `scores`, best first. Null and empty lists if there are none. With `itself` an image is not one of its own.
    """

    segments: SegmentedIndex
    k: int
    width: float
    itself: bool

    def __call__(self, batch: Batch) -> Columns:
        hits = self._nearest(batch["embedding"], batch["image_id"])
        found = hits.positions >= 0
        starts = np.concatenate([[0], np.cumsum(found.sum(axis=1))]).astype(np.int32)
        ids, scores = text_array(self.segments.ids(hits.positions[found])), number_array(rounded(hits.scores[found]))
        first: Any = pa.array(starts[:-1], mask=starts[:-1] == starts[1:])
        offsets: Any = number_array(starts)
        return {
            "": ids.take(first),
            "score": scores.take(first),
            "ids": pa.ListArray.from_arrays(offsets, ids),
            "scores": pa.ListArray.from_arrays(offsets, scores),
        }

    def _nearest(self, vectors: Vectors, ids: Ids) -> Hits:
        depth = self.k + 1 if self.itself else self.k
        hits = self.segments.search(vectors, depth, width=self.width)
        return drop_own(hits, self.segments.positions(text_array(ids))) if self.itself else hits


_PAIRS = """
WITH matches AS (
    SELECT image_id, content_hash, generate_subscripts({ids}, 1) AS rank, unnest({ids}) AS match_id,
           unnest({scores}) AS score
    FROM {values}
)
SELECT m.image_id, image.uri, rank, match_id, match.uri AS match_uri, score
FROM matches AS m
JOIN {images} AS image ON image.image_id = m.image_id AND image.content_hash IS NOT DISTINCT FROM m.content_hash
LEFT JOIN {others} AS match ON match.image_id = match_id
ORDER BY m.image_id, rank
"""


def write_pairs(collection: Collection, name: str, other: Collection, file: Path, source: str | None = None) -> int:
    """Write the matches in the `other` collection as a Parquet file, which is complete or not there: a row for each,
    with the columns image_id, uri, rank (from 1), match_id, match_uri and score. Returns their number. With a `source`,
    only those of its images. UsageError if there are no images to match.
    """
    log = annotation_log(collection, name)
    runs = log.runs()
    if not runs:
        raise UsageError(f"{collection.location} has no images with a vector, so {file} is not written")
    values = Annotation(name, log, runs).rows
    images, others = (each.snapshot().live for each in (collection, other))
    if source:
        images = images.of_source(source_address(source))
    lists = {column: values.catalog.aliases[f"{name}_{column}"] for column in ("ids", "scores")}
    sql = _PAIRS.format(**lists, values=values.sql, images=images.sql, others=others.sql)
    storage = Storage.open(file.parent)
    with storage.scratch("") as scratch:
        path = scratch / "pairs.parquet"
        place = str(path).replace("'", "''")
        images.catalog.create(f"COPY ({sql}) TO '{place}' (FORMAT parquet)")
        count = pq.read_metadata(path).num_rows
        storage.put_file(path, file.name)
    return count
