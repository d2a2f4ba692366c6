"""Drawn videos."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from jobs.demo.drawing import BACKGROUNDS, COLOURS, PATTERNS, SHAPES, Subject, draw

SCENES = [
    Subject(
        shape=SHAPES[n % len(SHAPES)],
        colour=tuple(COLOURS)[n % len(COLOURS)],
        pattern=PATTERNS[n % len(PATTERNS)],
        background=BACKGROUNDS[n % len(BACKGROUNDS)],
    )
    for n in range(12)
]


def draw_scenes(seed: int = 5, size: tuple[int, int] = (224, 224)) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [draw(subject, size, rng) for subject in SCENES]


def write_video(
    path: Path, pictures: Sequence[Image.Image], *, seconds: int = 60, codec: str = "libx264", **options: Any
) -> Path:
    """Write a video that shows each picture for the same time, at ten frames per second."""
    with ThreadPoolExecutor(1) as thread:
        # If root starts SVT-AV1, this thread and all that it starts have priority over all processes of the machine.
        thread.submit(_encode, path, pictures, seconds * 10 // len(pictures), codec, options).result()
    return path


def _encode(path: Path, pictures: Sequence[Image.Image], frames: int, codec: str, options: dict[str, Any]) -> None:
    with av.open(path, "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = pictures[0].size
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            for _ in range(frames):
                container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
