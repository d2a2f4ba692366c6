"""Rows like those of a bucket of photographs, with random vectors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RowFile, RunManifest, RunStart
from index.collection.rows import EMBEDDING, embedding_column
from jobs.planning.todo import IN_MEMORY
from jobs.sources.listing import listing_table

SOURCE = "s3://bucket/photos"
MODIFIED = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


def model_of(dim: int) -> ModelRecord:
    """A record of a model with vectors of `dim` dimensions."""
    return ModelRecord(id="random", revision=None, fingerprint="0" * 64, dim=dim)


def usual_images(numbers: range) -> pa.Table:
    """The listing of the images with these numbers."""
    ids = [f"2026/album-{number // 1000:04}/IMG_{number:07}.jpg" for number in numbers]
    return listing_table(
        {
            "image_id": ids,
            "uri": [f"{SOURCE}/{image_id}" for image_id in ids],
            "size": [100_000 + number for number in numbers],
            "modified": [MODIFIED] * len(ids),
        },
        {},
    )


def listing_of(count: int, images: Callable[[range], pa.Table] = usual_images) -> Iterator[pa.Table]:
    """The images with the numbers below `count`, in tables as large as a job's."""
    return (images(range(low, min(low + IN_MEMORY, count))) for low in range(0, count, IN_MEMORY))


def with_vectors(images: pa.Table, dim: int, seed: int) -> pa.Table:
    return images.append_column(EMBEDDING, embedding_column(random_vectors(len(images), dim, seed)))


def random_vectors(count: int, dim: int, seed: int) -> npt.NDArray[np.float32]:
    """`(count, dim)`, of unit norm."""
    vectors = np.random.default_rng(seed).standard_normal((count, dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def usual_rows(numbers: range, dim: int) -> pa.Table:
    """The rows of the images with these numbers, with the usual columns and vectors."""
    rng, count = np.random.default_rng(dim), len(numbers)
    columns: dict[str, Any] = {
        "content_hash": [rng.bytes(32).hex() for _ in numbers],
        "width": pa.array([2048] * count, pa.int32()),
        "height": pa.array([1536] * count, pa.int32()),
        "format": ["jpeg"] * count,
        "label": [f"album-{number // 1000:04}" for number in numbers],
    }
    images = usual_images(numbers)
    for name, values in columns.items():
        images = images.append_column(name, pa.chunked_array([values]))
    return with_vectors(images, dim, numbers.start)


def manifest_of(start: RunStart, files: RowFile, facts: Sequence[RowFile] = ()) -> RunManifest:
    """The manifest of a run that has written the row files in this list."""
    return RunManifest(**start.model_dump(), finished_at=start.started_at, files=files, facts=list(facts), counts={})
