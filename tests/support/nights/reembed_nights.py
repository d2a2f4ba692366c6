"""Nightly jobs without Ray: the real `jobs.update.Update`, with the stages in this process."""

from __future__ import annotations  # pyarrow's types are generic only in its stubs

import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from collections.abc import Collection as Names
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image
from rich.console import Console

from embedder.images.decode import decode_image
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from index.collection import Collection
from index.collection.live_rows import LiveRows
from index.search import Searcher
from jobs.embedding.model_source import ModelCache
from jobs.embedding.placement import blocks_here
from jobs.embedding.report import BlockSummary, Report
from jobs.embedding.stages import Work
from jobs.sources.stored_listing import Listing
from jobs.spec import JobSpec, Resources
from jobs.update import Update
from likeness.cli import app
from tests.support.listings import write_files
from tests.support.pictures.sample_images import encode

DEMO = str(DEMO_MODEL)
BROKEN = b"no picture"
PRECISION = 1e-2
"""Largest difference in a vector, which is computed in int8 or bf16, as is fastest on the machine. Two of 60 pictures
differ by at least 0.057.
"""

load_once = cache(ClipEmbedder.load)
"""`ClipEmbedder.load`, cached for each model."""


@dataclass
class Nights:
    """A folder of pictures and its collection. `embedded` has the ids that the model embedded, night by night. `clock`
    tells jobs the time; `index`, whether to build one.
    """

    pictures: Path
    location: str
    embedded: list[list[str]] = field(default_factory=list)
    block: int = 4
    index: bool = True
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def collection(self) -> Collection:
        return Collection.open(self.location)

    def night(
        self,
        model: str | None = None,
        *,
        before_block: Callable[[], None] = lambda: None,
        source: Path | str | None = None,
        console: Console | None = None,
        dry_run: bool = False,
        index: bool | None = None,
        **fields: Any,
    ) -> Report:
        """Run one job, which builds an index unless `index`, or that of all nights, is false. `before_block` is called
        before each block but the first, and may raise.
        """
        spec = JobSpec(
            source=str(source or self.pictures),
            collection=self.location,
            model=model,
            resources=Resources(device="cpu"),
            **fields,
        )
        console = console or Console(quiet=True)
        index = self.index if index is None else index
        update = Update(spec=spec, console=console, dry_run=dry_run, index=index, clock=self.clock)
        with self._without_ray(before_block):
            return update.run()

    def embed(self, source: Path | None = None, model: str | None = DEMO, *options: str) -> None:
        """Run the command `embed`, which prints."""
        named = ["--model", model] if model else []
        with self._without_ray():
            app.app(
                ["embed", str(source or self.pictures), self.location, *named, "--device", "cpu", *options],
                standalone_mode=False,
            )

    @contextmanager
    def _without_ray(self, before_block: Callable[[], None] = lambda: None) -> Iterator[None]:
        embedded: list[str] = []
        self.embedded.append(embedded)

        def blocks(todo: Listing, work: Work, cache: ModelCache) -> Generator[BlockSummary]:
            def make_rows(table: pa.Table, model: Any) -> pa.Table:
                if embedded:
                    before_block()
                embedded.extend(map(str, table["image_id"].to_pylist()))
                return work.embed.make_rows(table, model)

            return blocks_here(
                todo, replace(work, embed=replace(work.embed, make_rows=make_rows), block_size=self.block), cache
            )

        with (
            patch("jobs.embedding.placement.blocks_here", blocks),
            patch.object(ClipEmbedder, "load", load_once),
        ):
            yield


@cache
def bmp(seed: int) -> bytes:
    """A small picture, different for each seed; all files have the same size."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return encode(Image.fromarray(pixels), "bmp")


def save_nights(folder: Path, pictures: dict[str, bytes]) -> Path:
    """Pictures of an old date and a collection of them, for `copy_nights`; returns the folder."""
    nights = Nights(write_files(folder / "now" / "pictures", pictures), str(folder / "now" / "collection"))
    for name in pictures:
        os.utime(nights.pictures / name, (1e9, 1e9))
    nights.night(DEMO)
    (folder / "now").rename(folder / "saved")
    return folder


def copy_nights(folder: Path) -> Nights:
    """A copy of what is saved, in place of the last one: rows have the addresses of their pictures."""
    shutil.rmtree(folder / "now", ignore_errors=True)
    shutil.copytree(folder / "saved", folder / "now", symlinks=True)
    return Nights(folder / "now" / "pictures", str(folder / "now" / "collection"))


def query_form(number: int) -> dict[str, Any]:
    """A search by the picture of a seed, as the files of a form."""
    return {"image": ("query.bmp", bmp(number), "image/bmp")}


def bmps(*seeds: int) -> dict[str, bytes]:
    return {f"{seed}.bmp": bmp(seed) for seed in seeds}


def assert_rows_match_files(
    nights: Nights, model: str = DEMO, source: Path | None = None, unreachable: Names[str] = ()
) -> None:
    """The source's live rows match the files of its folder, with the vector of the current content for pictures.

    Rows of the ids `unreachable` may be retryable rejects.
    """
    folder = source or nights.pictures
    live = [row for row in nights.collection.live_rows().to_pylist() if str(row["uri"]).startswith(f"{folder}/")]
    rows = {str(row["image_id"]): row for row in live}
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*.*") if path.is_file()}
    assert set(rows) == set(files)
    for image_id, path in files.items():
        row, data = rows[image_id], path.read_bytes()
        assert (row["uri"], row["size"]) == (str(path), len(data))
        assert row["label"] == (path.parent.name if path.parent != folder else None)
        if image_id in unreachable and row["retryable"]:
            continue
        assert row["content_hash"] == hashlib.sha256(data).hexdigest()
        if data.startswith(BROKEN):
            assert (row["error_reason"], row["retryable"], row["embedding"]) == ("not_an_image", False, None)
        else:
            np.testing.assert_allclose(row["embedding"], vector_of(data, model), atol=PRECISION)


@cache
def vector_of(data: bytes, model: str) -> npt.NDArray[np.float32]:
    """`(dim,)` float32."""
    embedder = load_once(model, device="cpu")
    [vector] = embedder.embed_images(decode_image(data, embedder.crop).pixels[None])
    return np.asarray(vector)


def assert_search_is_exact(collection: Collection) -> None:
    """The live index returns the same as brute force over the live rows of its runs, each row once."""
    name = collection.current()
    assert name is not None
    covered = collection.read_version(name).runs
    runs = [run for run in collection.runs() if run.run_id in covered]
    assert [run.run_id for run in runs] == covered
    rows = [row for row in LiveRows.of_runs(collection.storage, runs).read().to_pylist() if row["embedding"]]
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    searcher = Searcher.open(collection)
    assert searcher.ntotal == len(rows)
    for vector, matches in zip(vectors, searcher.search(vectors, len(rows) + 1), strict=True):
        assert sorted(match.image_id for match in matches) == sorted(row["image_id"] for row in rows)
        np.testing.assert_allclose(
            [match.score or 0.0 for match in matches], np.sort(vectors @ vector)[::-1], atol=1e-5
        )
