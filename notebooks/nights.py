"""Two nights of a collection: by the second one, some pictures are gone, edited, new or broken. Then another model
embeds the same pictures into a collection of its own.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from embedder.models.checkpoint import DEMO_MODEL
from index.collection import Collection
from jobs.demo.broken import BROKEN
from jobs.demo.collection import embed_here
from jobs.demo.gallery import make_gallery, plan_exhibit

GONE, EDITED, NEW, BROKEN_NOW = 12, 8, 20, 3
_NOISE = 0.6  # in standard deviations of each weight tensor: the other model still works, though less well


@dataclass(frozen=True, kw_only=True)
class Nights:
    """`nightly` has the index versions 000001 and 000002, `other` has the second night's pictures by another model.

    The ids are those that changed by the second night.
    """

    nightly: Collection
    other: Collection
    gone: list[str]
    edited: list[str]
    new: list[str]
    broken: list[str]


def make_nights(folder: Path, *, count: int = 240) -> Nights:
    """Draw, embed and index in an empty folder. `count` is at least 23, the number of pictures that change."""
    pictures = folder / "pictures"
    gallery = make_gallery(pictures, count=count, broken=0)
    embed_here(pictures, folder / "nightly")

    ids = [exhibit.image_id for exhibit in gallery.exhibits]
    gone, edited, broken = ids[:GONE], ids[GONE:][:EDITED], ids[GONE + EDITED :][:BROKEN_NOW]
    extra = [plan_exhibit(number) for number in range(count, count + NEW + EDITED)]
    for image_id in gone:
        (pictures / image_id).unlink()
    for image_id, drawn in zip(edited, extra[NEW:], strict=True):
        (pictures / image_id).write_bytes(drawn.data())
    for image_id, breakage in zip(broken, BROKEN, strict=False):
        (pictures / image_id).write_bytes(breakage.make())
    for drawn in extra[:NEW]:
        (pictures / drawn.image_id).write_bytes(drawn.data())
    new = [drawn.image_id for drawn in extra[:NEW]]

    nightly = embed_here(pictures, folder / "nightly")
    other = embed_here(pictures, folder / "other-model", str(_worse_model(folder / "model-b")))
    return Nights(nightly=nightly, other=other, gone=gone, edited=edited, new=new, broken=broken)


def _worse_model(folder: Path) -> Path:
    """The demo model with noise in its weights, which an index treats as another model."""
    shutil.copytree(DEMO_MODEL, folder)
    weights = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(0)
    for name in sorted(weights):
        value = weights[name]
        if value.ndim == 2 and value.dtype == np.float32:
            weights[name] = value + _NOISE * value.std() * rng.standard_normal(value.shape, np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
