"""Random histories of two sources and their collection, with rows whose vectors are made up: no picture is decoded."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import random
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.collection import Collection
from index.collection.catalog.catalog import split_seq
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunSettings
from index.collection.rows import FILTERED, row_schema
from jobs.embedding.commit import WrittenRun
from jobs.planning.image_filter import EVERY_IMAGE, EXIF_TYPES, ImageFilter
from jobs.planning.plan import Plan, write_block
from tests.jobs.planning.decisions import Image, Job, Keep, Run
from tests.support.collections.run_plans import images_to_do
from tests.support.nights.changing_sources import COLUMNS, NAMES, SOURCES, ChangingSources, table_of
from tests.support.nights.fake_pictures import BROKEN, EVERYTHING, KEEPS, camera_of, facts_of, vector_of

_MODELS: Final = ("m", "n")
_BLOCK = 3


@dataclass
class Night:
    """A job, and what `compare` gets for it. `filter` is the job's, as an expression and as a function."""

    job: Job
    filter: tuple[dict[str, Any], Keep]
    images: list[Image]
    postponed: str
    listing: pa.Table
    model: ModelRecord
    image_filter: ImageFilter
    killed_after: int | None
    """The number of changes to files of the collection after which the job is killed."""


class History:
    """Two `sources` and their `collection`."""

    def __init__(self, collection: Collection, seed: int) -> None:
        self.collection, self._random = collection, random.Random(seed)
        self.sources = ChangingSources(self._random)
        self._last, self._model = dict[str, Night](), "m"

    def runs(self) -> list[Run]:
        """Oldest first, as the collection has them."""
        snapshot, storage = self.collection.snapshot(), self.collection.storage
        written = [(start, self.collection.written_files(start)) for start in snapshot.unfinished]
        committed = [(start, [*self.collection.files_of(start)]) for start in snapshot.committed]
        runs = dict[str, Run]()
        for start, files in [*committed, *written]:
            run = runs[start.run_id] = Run(
                source=start.source,
                model=start.model.fingerprint[0],
                keep=start.keep,
                exif=bool(start.exif),
                committed=len(runs) < len(committed),
            )
            for file in files:
                rows = pq.read_table(storage.absolute(file.path)).to_pylist()
                run.files[file.path] = [dict.fromkeys(COLUMNS) | row | {"run": run} for row in rows]
                for row in run.files[file.path]:
                    _check(row, run)
        for deleted in snapshot.live.catalog.rows("SELECT seq, image_id FROM deleted"):
            [number], _, _ = split_seq(np.array([deleted["seq"]]))
            runs[snapshot.committed[number].run_id].deletes.append(deleted["image_id"])
        return [run for _, run in sorted(runs.items())]

    def night(self) -> Night:
        """The next job: often like the last one of its source, sometimes to be killed."""
        drawn, source = self._random, self._random.choice(SOURCES)
        last = self._last.get(source)
        if drawn.random() < 0.1:
            self._model = drawn.choice(_MODELS)
        expression, keep = last.filter if last and drawn.random() < 0.85 else drawn.choice([*[EVERYTHING] * 6, *KEEPS])
        images = self.sources.images(source, complete=drawn.random() < 0.92)
        listing = table_of(images)
        image_filter = ImageFilter.parse(expression, listing.schema) if expression else EVERY_IMAGE
        job = Job(
            source=source,
            model=self._model,
            keep=replace(keep, key=image_filter.settings.keep),
            exif=last.job.exif if last and drawn.random() < 0.85 else drawn.random() < 0.3,
            missing=drawn.choice(["delete", "delete", "delete", "keep"]),
            verify_hash=drawn.random() < 0.1,
            postponed=frozenset(name for name in [*NAMES, "z"] if drawn.random() < 0.5),
            hash_of=self.sources.hash_of,
        )
        night = Night(
            job=job,
            filter=(expression, keep),
            images=images,
            postponed=f"(SELECT unnest({sorted(job.postponed)}::VARCHAR[]) AS image_id)",
            listing=listing,
            model=ModelRecord(id=drawn.choice(["hub", "copy"]), revision=None, fingerprint=self._model * 64, dim=4),
            image_filter=replace(image_filter, settings=RunSettings(keep=image_filter.settings.keep, exif=job.exif)),
            killed_after=drawn.randrange(1, 9) if drawn.random() < 0.3 else None,
        )
        self._last[source] = night
        self.sources.log.append(f"{job}, {expression}, killed after {night.killed_after}")
        return night

    def write(self, plan: Plan, night: Night) -> WrittenRun:
        """The rows of the images that need the model, in blocks."""
        written = WrittenRun.begin(plan, self.collection)
        metadata = [field for field in plan.todo.schema if field.name == "label"]
        exif = [pa.field(name, EXIF_TYPES[name]) for name in ("exif_camera",) if plan.image_filter.settings.exif]
        schema = row_schema(4, [*metadata, *exif])
        todo = images_to_do(plan.todo).to_pylist()
        for start in range(0, len(todo), _BLOCK):
            keep = night.job.keep if plan.source == night.job.source else Keep()
            rows = [self._row(image, keep, plan) for image in todo[start : start + _BLOCK]]
            table = pa.Table.from_pylist(rows, schema=schema)
            written.files.append(write_block(self.collection, written.run.run_id, plan.attempt, table))
            written.report.embedded += len(rows)
        return written

    def _row(self, image: Image, keep: Keep, plan: Plan) -> Image:
        """The row of an image that is read now."""
        file = self.sources.files[image["uri"]]
        row: Image = dict.fromkeys(COLUMNS) | image
        if file.failure:
            retryable = file.failure != "http_404"
            return row | {"error_stage": "fetch", "error_reason": file.failure, "retryable": retryable}
        row |= facts_of(file.content)
        if image["uri"].startswith("http"):
            row["etag"] = row["content_hash"][:8]
        left_out, _ = keep.judge(row)
        if left_out:
            return row | {"error_stage": "filter", "error_reason": FILTERED, "retryable": False}
        if file.content == BROKEN:
            return row | {"error_stage": "decode", "error_reason": "not_an_image", "retryable": False}
        return row | {
            "embedding": vector_of(row["content_hash"], plan.model.fingerprint[0]),
            "exif_camera": camera_of(row["content_hash"]),
        }


def _check(row: Image, run: Run) -> None:
    """A row has the vector of its content and of its run's model, and EXIF if that was read."""
    is_embedded = row["error_reason"] is None
    assert row["embedding"] == (vector_of(row["content_hash"], run.model) if is_embedded else None)
    assert row["exif_camera"] == (camera_of(row["content_hash"]) if is_embedded and run.exif else None)
