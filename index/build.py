"""Builds an index version from the live rows of a collection; publishes it once it has passed its check."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection import Collection
from index.errors import DamagedVersionError, EmptyCollectionError
from index.live import LiveRows
from index.records import RunManifest, SegmentRecord, VersionManifest
from index.rows import EMBEDDING
from index.segment import FLAT, ROWS, VECTORS, write_segment
from index.verify import file_record, open_segments

logger = logging.getLogger(__name__)

SELF_QUERIES = 100
MIN_SELF_SCORE = 0.9999


def build_index(collection: Collection, *, promote: bool = True) -> VersionManifest:
    """Index the live embedded rows as a new version, check it, and make it the live one.

    When the live version covers the same runs already, and is whole, that one is returned and nothing is
    built. EmptyCollectionError when nothing is embedded, ModelMismatchError when the vectors are of two
    models, CollectionError for a vector that is not of unit norm: the live version then stays as it is.
    """
    started = time.monotonic()
    runs = collection.runs()
    covered = _live_version_of(collection, runs)
    if covered:
        logger.info("index version %s covers all runs already: nothing to build", covered.version)
        return covered
    live = LiveRows.of_runs(collection.storage, runs)
    version = _next_version(collection)
    try:
        draft, sample = _write_version(collection, version, runs, live)
        checked = {
            "self_check": _self_check(collection, draft, sample),
            "seconds": round(time.monotonic() - started, 3),
        }
        manifest = draft.model_copy(update=checked)
        collection.storage.write_atomic(f"index/{version}/manifest.json", manifest.to_bytes())
    except Exception:
        collection.storage.delete(f"index/{version}")  # its room is worth more than its remains
        raise
    if promote:
        collection.promote(version)
    return manifest


def _live_version_of(collection: Collection, runs: list[RunManifest]) -> VersionManifest | None:
    """The live version when it covers exactly these runs and every file of it is whole."""
    try:
        current = collection.current()
        if current is None:
            return None
        manifest = collection.read_version(current)
        if manifest.runs != [run.run_id for run in runs] or manifest.model != runs[-1].model:
            return None
        with tempfile.TemporaryDirectory() as cache:
            open_segments(collection, manifest, Path(cache))
    except DamagedVersionError as error:
        logger.warning("%s", error)
        return None
    return manifest


def _next_version(collection: Collection) -> str:
    """A number that no version ever had. Removes what builds that were killed left behind."""
    storage = collection.storage
    folders = [entry.name for entry in storage.list("index") if entry.is_folder and entry.name.isdecimal()]
    complete = collection.versions()
    for name in folders:
        if name not in complete:
            storage.delete(f"index/{name}")
    return f"{max(map(int, folders), default=0) + 1:06d}"


def _write_version(
    collection: Collection, version: str, runs: list[RunManifest], live: LiveRows
) -> tuple[VersionManifest, pa.Table]:
    """Write the files of a version. Returns its manifest, still unwritten, and a sample of the rows."""
    storage, home = collection.storage, "segments/0000"
    sample: list[pa.RecordBatch] = []
    with storage.scratch(f"index/{version}") as scratch:
        ntotal = write_segment(scratch, _sampled(live, sample), live.schema, capacity=len(live))
        if ntotal == 0:
            raise EmptyCollectionError(
                f"embedded 0 of {len(live)} rows in {collection.location}: "
                + ("see `likeness rejects`" if len(live) else "embed images first with `likeness embed`")
            )
        files = {f"{home}/{name}": file_record(scratch / name) for name in (VECTORS, ROWS)}
        for path in files:
            storage.put_file(scratch / Path(path).name, f"index/{version}/{path}")
    manifest = VersionManifest(
        version=version,
        model=runs[-1].model,
        created_at=datetime.now(UTC),
        runs=[run.run_id for run in runs],
        segments=[SegmentRecord(name="0000", ntotal=ntotal, factory=FLAT, files=files)],
        ntotal=ntotal,
        recall={"1": 1.0, "10": 1.0, "100": 1.0},
        exact=True,
        self_check={},
        seconds=0.0,
    )
    return manifest, pa.Table.from_batches(sample)


def _sampled(live: LiveRows, sample: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The embedded rows; every so many of them, with its position, is put aside in `sample`."""
    step = max(1, -(-len(live) // SELF_QUERIES))
    start = 0
    for batch in live.embedded():
        chosen = np.arange(-start % step, len(batch), step)
        aside = batch.select(["image_id", EMBEDDING]).take(chosen)
        sample.append(aside.append_column("position", pa.array(chosen + start)))
        start += len(batch)
        yield batch


def _self_check(collection: Collection, manifest: VersionManifest, sample: pa.Table) -> dict[str, float]:
    """Open the version as a searcher would, and look rows up by their vectors as Parquet has them.

    Each must lie at its position, under its id, and be its own nearest (or a duplicate of it be).
    """
    with tempfile.TemporaryDirectory() as cache:
        (segment,) = open_segments(collection, manifest, Path(cache))
        ids = sample.column("image_id").to_pylist()
        positions = sample.column("position").to_numpy()
        vectors = np.asarray(pc.list_flatten(sample.column(EMBEDDING)), np.float32).reshape(len(ids), -1)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)  # Arrow's memory is read-only
        nearest = segment.search(vectors, 1)[0][:, 0]
        own = np.array([segment.vector(int(position)) for position in positions])
        scores = np.minimum(nearest, np.einsum("nd,nd->n", own, vectors))
        aligned = [row["image_id"] for row in segment.rows(positions, ["image_id"])] == ids
    if not aligned or scores.min() < MIN_SELF_SCORE:
        worst = ids[int(scores.argmin())]
        raise DamagedVersionError(
            f"index version {manifest.version} failed its self-check and was not published: {worst!r} finds "
            f"itself with a score of {scores.min():.6f}, expected {MIN_SELF_SCORE} or more"
            + ("" if aligned else ", and ids are not where their vectors are"),
            f"index/{manifest.version}",
        )
    return {"queries": float(len(ids)), "min_score": round(float(scores.min()), 6)}
