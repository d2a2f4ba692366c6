"""The real embedding job over a listing, with its progress over time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from embedder.protocol import Embedder
from index.collection import Collection
from jobs.embedding.model_source import model_record
from jobs.embedding.pipeline import write
from jobs.embedding.placement import Place
from jobs.embedding.report import EmbedReport
from jobs.embedding.stages import DecodeSettings
from jobs.planning.changes import compare
from jobs.planning.decide import PlannedJob
from jobs.sources.stored_listing import Listing


class Progress:
    """Records after each block: time by the actors' clock, images on disk, actors so far."""

    def __init__(self) -> None:
        self.records: list[tuple[float, int, int]] = []

    def advance(self, report: EmbedReport) -> None:
        """Called by the job after each block."""
        self.records.append(
            (max(ended for _, ended in report.actors.values()), report.embedded + report.rejected, len(report.actors))
        )


def embed(
    listing: pa.Table, folder: Path, like: Embedder, load: Callable[[], Embedder], *, block: int, where: Place
) -> Progress:
    """Embed a listing into a new collection in `folder`, with models from `load`, which equal `like`."""
    collection = Collection.create_or_open(str(folder))
    model = model_record(like.identity)
    change = compare(Listing.of([listing]), collection.snapshot(), PlannedJob(source="benchmark", model=model))
    progress = Progress()
    write(
        change.plans[0],
        collection,
        load=load,
        decode=DecodeSettings(crop=like.crop),
        block_size=block,
        where=where,
        progress=progress.advance,
    )
    return progress
