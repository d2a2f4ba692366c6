"""An embedding job with a fake model, but otherwise real."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedder.images.decode import decode_image
from embedder.protocol import Embedder
from index.collection import Collection
from jobs.cluster.pool import Pool
from jobs.demo.gallery import Gallery
from jobs.embedding.commit import commit
from jobs.embedding.model_source import model_record
from jobs.embedding.pipeline import write
from jobs.embedding.placement import Place
from jobs.embedding.report import EmbedReport
from jobs.embedding.stages import DecodeSettings
from jobs.planning.image_filter import ImageFilter
from jobs.planning.known_rows import write_known
from jobs.sources.list_images import list_images
from tests.support.collections.hand_made import written_rows
from tests.support.collections.run_plans import run_plan_of
from tests.support.fake_embedder import FakeEmbedder

FAKE = FakeEmbedder()


def embed(
    source: Path,
    location: Path,
    *,
    load: Callable[[], Embedder] = FakeEmbedder,
    where: Place | None = None,
    block_size: int = 16,
    max_reject_rate: float = 0.5,
    progress: Callable[[EmbedReport], None] = lambda _: None,
    like: Embedder = FAKE,
    keep: Mapping[str, Any] | None = None,
    tiles: str | None = None,
) -> EmbedReport:
    """A complete job with models from `load`, which equal `like`; by default on the connected Ray."""
    collection = Collection.create_or_open(str(location))
    listing = list_images(str(source)).read()
    plan = run_plan_of(listing, collection, str(source), model_record(like.identity, tiles))
    if keep:
        plan = replace(plan, image_filter=ImageFilter.parse(keep, listing.schema))
    if plan.done:
        return EmbedReport.of(plan)
    plan = write_known(plan, collection)
    where = where or Place(pool=Pool())
    decode = DecodeSettings(crop=replace(like.crop, tiles=plan.model.boxes))
    written = write(plan, collection, load=load, decode=decode, where=where, block_size=block_size, progress=progress)
    commit(collection, [written], max_reject_rate)
    return written.report


def crops_of(gallery: Gallery) -> dict[str, NDArray[np.uint8]]:
    """The crop of each good picture that the fake model gets."""
    files = {exhibit.image_id: gallery.folder / exhibit.image_id for exhibit in gallery.exhibits}
    return {name: decode_image(path.read_bytes(), FakeEmbedder().crop).pixels for name, path in files.items()}


def assert_gallery_is_embedded(collection: Collection, gallery: Gallery) -> None:
    """One run has each picture once: a good one with its own vector, a broken one with its reason."""
    (run,) = collection.runs()
    written = written_rows(collection, run, collection.files_of(run)).read(["image_id"])["image_id"].to_pylist()
    exhibits = {exhibit.image_id: exhibit for exhibit in gallery.exhibits}
    assert Counter(written) == Counter([*exhibits, *gallery.broken])
    rows = {str(row["image_id"]): row for row in collection.live_rows().to_pylist()}
    assert list(rows) == sorted(map(str, written))
    for image_id, reason in gallery.broken.items():
        assert (rows[image_id]["embedding"], rows[image_id]["error_reason"]) == (None, reason)
    for image_id, pixels in crops_of(gallery).items():
        row, exhibit = rows[image_id], exhibits[image_id]
        np.testing.assert_allclose(row["embedding"], FakeEmbedder().embed_images(pixels[None])[0], atol=1e-6)
        assert (row["width"], row["height"], row["label"]) == (*exhibit.size, exhibit.subject.shape)
