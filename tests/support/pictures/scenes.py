"""Drawn scenes of four shapes each, with random positions and sizes."""

from pathlib import Path

import numpy as np
from PIL import Image

from jobs.demo.drawing import Subject, draw, random_subject

_SIDE, _CELL = 256, 128


def write_scenes(folder: Path, count: int) -> dict[str, list[Subject]]:
    """Write PNGs into a new folder; returns the subjects by file name."""
    folder.mkdir()
    rng, scenes = np.random.default_rng(5), {}
    for number in range(count):
        scenes[f"{number:03d}.png"] = [random_subject(rng) for _ in range(4)]
        image = Image.new("RGB", (_SIDE, _SIDE), tuple(rng.integers(180, 256, 3).tolist()))
        for place, subject in enumerate(scenes[f"{number:03d}.png"]):
            side = int(rng.integers(88, _CELL + 1))
            corner = _CELL * np.array([place % 2, place // 2]) + (_CELL - side) // 2 + rng.integers(-16, 17, 2)
            x, y = np.clip(corner, 0, _SIDE - side).tolist()
            image.paste(draw(subject, (side, side), rng), (x, y))
        image.save(folder / f"{number:03d}.png")
    return scenes
