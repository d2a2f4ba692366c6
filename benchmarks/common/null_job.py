"""The embedding job on Ray with stages that do nothing, so that only its driver has work."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from benchmarks.common.process import peak_rss
from benchmarks.common.rows import listing_of, model_of
from embedder.images import CropSpec
from index.collection import Collection
from index.collection.layout import ROW_FILES, run_path
from jobs.cluster.pool import Pool
from jobs.cluster.session import ray_cluster
from jobs.embedding.on_ray import RowGroup
from jobs.embedding.pipeline import write
from jobs.embedding.placement import Place
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import CollectionAt, DecodeSettings, EmbedSettings
from jobs.planning.plan import Plan, block_name
from jobs.sources.stored_listing import Listing

BLOCK = 256  # images
_CROP = CropSpec(side=16, shortest_edge=None)
_BYTES = 4 * BLOCK * 1300  # four blocks between the stages together, as of pictures of 224 × 224


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a job took of its driver: seconds of CPU in all threads, and the peak of its memory in bytes."""

    images: int
    cpu_s: float
    peak: int


def run_null_job(images: int, folder: Path, pool: Pool) -> Cost:
    """Run the job on the connected Ray, with the actors of `pool`."""
    collection = Collection.create_or_open(str(folder))
    plan = Plan(source="benchmark", model=model_of(512), listed=images, todo=Listing.of(listing_of(images)))
    with (
        patch("jobs.embedding.on_ray.decode_images", decode_nothing),
        patch("jobs.embedding.on_ray.EmbedImages", EmbedNothing),
        patch("jobs.embedding.on_ray._BYTES", _BYTES),
    ):
        started = time.process_time()
        written = write(
            plan,
            collection,
            load=dict,  # `EmbedNothing` needs no model
            decode=DecodeSettings(crop=_CROP),
            where=Place(pool=pool),
            block_size=BLOCK,
        )
        seconds = time.process_time() - started
    if (written.report.done, len(written.files)) != (images, -(-images // BLOCK)):
        raise RuntimeError(
            f"expected {images} images in whole blocks, got {written.report.done} in {len(written.files)}"
        )
    return Cost(images=images, cpu_s=seconds, peak=peak_rss())


def null_job(images: int, folder: Path) -> Cost:
    """Run it on a Ray of its own, with an actor that has a device."""
    with ray_cluster(None, verbose=False, resources={"device": 1}):
        return run_null_job(images, folder, Pool(resources={"device": 1}))


def decode_nothing(
    groups: pa.Table,
    *,
    collection: CollectionAt,
    folder: str,
    settings: DecodeSettings,
    block_size: int,
) -> Iterator[pa.Table]:
    """In place of `decode_images`: the rows with pixels, which are as large as all columns that it adds."""
    storage, pixels = collection().storage.subfolder(folder), bytes(16 * 16 * 3 + 256)
    for group in groups.to_pylist():
        table = RowGroup(**group).read(storage)
        for start in range(0, table.num_rows, block_size):
            rows = table.slice(start, block_size)
            yield rows.append_column("pixels", pa.array([pixels] * rows.num_rows, pa.binary(len(pixels))))


class EmbedNothing:
    """In place of `EmbedImages`: reports each block as if it were written."""

    def __init__(self, settings: EmbedSettings) -> None:
        self._run_id, self._name = settings.run_id, f"actor:{os.getpid()}"

    async def __call__(self, table: pa.Table) -> pa.Table:
        name, now = block_name(1, list(map(str, table["image_id"].to_pylist()))), time.time()
        summary = BlockSummary(
            path=f"{run_path(self._run_id, ROW_FILES, name)}.{'0' * 16}.parquet",
            actor=self._name,
            rows=table.num_rows,
            size=table.num_rows * 2048,
            sha256="0" * 64,
            embedded=table.num_rows,
            rejected=0,
            filtered=0,
            started_at=now,
            ended_at=now,
            fetch_seconds=0.0,
            decode_seconds=0.0,
            model_seconds=0.0,
            write_seconds=0.0,
        )
        return pa.Table.from_pylist([vars(summary)])
