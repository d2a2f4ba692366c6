"""Clusters: the nearest of some centres that were learned once from the collection's vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from index.collection.live_rows import LiveRows
from index.collection.records.learned import Learned
from index.collection.records.model_record import ModelRecord
from index.collection.rows import EMBEDDING, TEXT, vectors_of
from jobs.annotation.predictor import Batch, Columns, Predictor, Recipe
from jobs.annotation.predictors.labels import Embed
from jobs.annotation_spec import AnnotationSpec
from jobs.errors import UsageError
from jobs.indexing.query_texts import CAPTION_COLUMNS, LABEL_COLUMNS, sample_rows
from jobs.values import MAX_CLUSTERS, fingerprint_of

_SAMPLED = 1_024, 64  # places and rows; with 512 dimensions, 134 MB of vectors
_VERSION = 1
"""Changes with whatever affects the clusters, so that they are learned again."""


def clusters_recipe(spec: AnnotationSpec, model: ModelRecord, embed: Embed) -> Recipe:
    """The recipe for clusters. Learning them raises ModelError if they are to be named by labels, and the model
    cannot embed texts; QueryError if there are fewer images than clusters.
    """
    parts = ["clusters", _VERSION, model.fingerprint, spec.clusters, *spec.labels, spec.template]
    return Recipe(
        id="clusters",
        fingerprint=fingerprint_of(parts),
        make=_nearest_centre,
        learn=partial(_learn, spec, embed),
    )


def _learn(spec: AnnotationSpec, embed: Embed, live: LiveRows, others: Sequence[LiveRows]) -> Learned:
    from index.analysis import clusters  # imported late: faiss takes a second

    sample = pa.Table.from_batches(sample_rows(live, *_SAMPLED).embedded(annotations=others))
    vectors = vectors_of(sample[EMBEDDING])
    count = _automatic_count(len(live)) if spec.clusters == "auto" else int(spec.clusters or 0)
    if count > len(vectors):
        raise UsageError(f"--clusters is {count:,}: expected at most {len(vectors):,}, the number of images, or auto")
    centres, nearest = clusters.cluster(vectors, count)
    labels, captions = (_texts(sample, names) for names in (LABEL_COLUMNS, CAPTION_COLUMNS))
    if spec.labels:
        known = dict(zip(spec.labels, embed(spec.labels), strict=True))
        names = clusters.nearest_words(centres, known)
    elif labels:
        names = clusters.common_labels(nearest, labels, len(centres))
    elif captions:
        names = clusters.distinctive_words(nearest, captions, len(centres))
    else:
        names = [""] * len(centres)
    return Learned.of(clusters.distinct_names(names), centres)


def _automatic_count(images: int) -> int:
    """√(n/2) clusters of about √(2n) images (Mardia, Kent and Bibby, Multivariate Analysis, 1979), within bounds."""
    return min(MAX_CLUSTERS, max(1, round(math.sqrt(images / 2))))


def _texts(sample: pa.Table, columns: Sequence[str]) -> list[str | None]:
    """The values of the first of these columns that is of text and has any; empty if none is."""
    for name in columns:
        if name in sample.column_names and sample[name].type in (TEXT, pa.string()):
            values: list[str | None] = sample[name].to_pylist()
            if any(values):
                return values
    return []


def _nearest_centre(learned: Learned) -> Predictor:
    """Predicts the name of the nearest centre, and its cosine as `score`."""
    names, centres = np.array(learned.names, object), learned.array

    def predict(batch: Batch) -> Columns:
        scores = batch["embedding"] @ centres.T
        return {"": names[scores.argmax(axis=1)], "score": np.round(scores.max(axis=1).astype(np.float64), 4)}

    return predict
