"""Re-embedding without Ray and torch, for tests: the real stages, called one after the other in this process."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from embedder.fake import FakeEmbedder
from embedder.images import decode_image
from embedder.protocol import Embedder
from index.collection import Collection
from index.records import RowFile
from jobs.commit import Written
from jobs.plan import Plan
from jobs.reembed import ReembedSettings, bring_up_to_date, list_source
from jobs.reembed_report import ReembedReport, Stopwatch
from jobs.report import EmbedReport
from jobs.run import model_record
from jobs.stages import BlockSummary, DecodeSettings, EmbedBlock, fetch_and_decode


@dataclass
class Nights:
    """A folder of pictures and its collection. `embedded` are the ids that the model was needed for, night by night."""

    pictures: Path
    location: Path
    embedded: list[list[str]] = field(default_factory=list)
    block: int = 4

    @property
    def collection(self) -> Collection:
        return Collection.open(str(self.location))

    def night(
        self,
        load: Callable[[], Embedder] = FakeEmbedder,
        *,
        after_block: Callable[[], None] = lambda: None,
        source: Path | None = None,
        **settings: object,
    ) -> ReembedReport:
        """One job. `after_block` is called whenever a block is on disk, and may raise."""
        wanted = ReembedSettings(
            source=str(source or self.pictures),
            collection=str(self.location),
            **settings,  # type: ignore[arg-type]
        )
        embedded: list[str] = []
        self.embedded.append(embedded)

        def write(plans: Sequence[Plan], collection: Collection) -> list[Written]:
            return [self._write(plan, collection, load, embedded, after_block) for plan in plans]

        listing = list_source(wanted)
        collection = Collection.create_or_open(str(self.location))
        model = model_record(load().identity)
        return bring_up_to_date(wanted, listing, collection, model, write, Stopwatch(), Console(quiet=True))

    def _write(
        self,
        plan: Plan,
        collection: Collection,
        load: Callable[[], Embedder],
        embedded: list[str],
        after_block: Callable[[], None],
    ) -> Written:
        run = plan.run or collection.start_run(plan.source, plan.model)
        files, report = list(plan.files), EmbedReport.of(plan)
        actor = EmbedBlock(
            load=load,
            fingerprint=plan.model.fingerprint,
            location=collection.location,
            run_id=run.run_id,
            attempt=plan.attempt,
        )
        decode = DecodeSettings(crop=load().crop, draft=True, threads=2)
        for start in range(0, plan.todo.num_rows, self.block):
            part = plan.todo.slice(start, self.block)
            block = BlockSummary.of(actor(fetch_and_decode(part, settings=decode)).to_pylist()[0])
            embedded += map(str, part["image_id"].to_pylist())
            files.append(RowFile(path=block.path, rows=block.rows, size=block.size))
            report.add(block)
            after_block()
        return Written(plan=plan, run=run, files=files, report=report)


def bmp(seed: int) -> bytes:
    """A small picture that is like no other seed's; all have as many bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "BMP")
    return target.getvalue()


def assert_rows_are_what_is_there(nights: Nights, load: Callable[[], Embedder] = FakeEmbedder) -> None:
    """The live rows are the files of the folder, each with the vector of its own content if it is a picture (a BMP)."""
    model = load()
    rows = {str(row["image_id"]): row for row in nights.collection.live_rows().to_pylist()}
    files = {str(path.relative_to(nights.pictures)): path for path in nights.pictures.rglob("*.*") if path.is_file()}
    assert set(rows) == set(files)
    for image_id, path in files.items():
        assert (rows[image_id]["uri"], rows[image_id]["size"]) == (str(path), path.stat().st_size)
        if not path.read_bytes().startswith(b"BM"):
            assert (rows[image_id]["error_reason"], rows[image_id]["embedding"]) == ("not_an_image", None)
            continue
        pixels = decode_image(path.read_bytes(), model.crop).pixels
        np.testing.assert_allclose(rows[image_id]["embedding"], model.embed_images(pixels[None])[0], atol=1e-6)
