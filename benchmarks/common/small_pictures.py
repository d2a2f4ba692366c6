"""Small pictures in folders of a thousand."""

from pathlib import Path

import numpy as np
from PIL import Image


def path_of(folder: Path, number: int) -> Path:
    """Where the picture with this number is."""
    return folder / f"{number // 1000:03}" / f"{number:06}.png"


def draw(folder: Path, numbers: range, seed: int) -> None:
    """Write small PNGs, all different; those with the same numbers are replaced."""
    rng = np.random.default_rng(seed)
    for number in numbers:
        path = path_of(folder, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may have other names
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC).save(path, compress_level=1)
