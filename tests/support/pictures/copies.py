"""A folder of pictures with copies of every kind."""

import io
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jobs.demo.drawing import Subject, draw

STAR = Subject(shape="star", colour="red", pattern="checked", background="lined")
RING = replace(STAR, shape="ring", colour="blue", background="dark")


def _saved(path: Path, picture: Image.Image, **options: Any) -> None:
    picture.save(path, **options)
    os.utime(path, (1.6e9, 1.6e9))


def make_pictures(folder: Path) -> None:
    """A picture with a copy of each kind, a second with an animation that starts with it, and a similar picture."""
    folder.mkdir()
    star, ring = (draw(subject, (400, 300), np.random.default_rng(3)) for subject in (STAR, RING))
    _saved(folder / "star.jpg", star, quality=92)
    shutil.copy2(folder / "star.jpg", folder / "star copy.jpg")
    os.utime(folder / "star copy.jpg", (1.7e9, 1.7e9))
    star = Image.open(io.BytesIO((folder / "star.jpg").read_bytes()))
    _saved(folder / "star.png", star)
    _saved(folder / "star-q.jpg", star, quality=65)
    _saved(folder / "star-small.jpg", star.resize((200, 150)), quality=80)
    _saved(folder / "star-crop.jpg", star.crop((6, 4, 394, 296)), quality=80)
    _saved(folder / "ring.jpg", ring)
    _saved(folder / "other star.jpg", draw(replace(STAR, colour="green"), (400, 300), np.random.default_rng(3)))
    frames = [ring.quantize(), star.quantize()]
    for name, form in (("still.gif", {}), ("moving.gif", {"save_all": True, "append_images": frames[1:]})):
        _saved(folder / name, frames[0], **form)
