"""Scenes found by one shape that they hold, with the demo's model."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embedder.images.decode import decode_image
from embedder.models.load import load_embedder
from index.search import Searcher
from jobs.demo.collection import embed_here
from jobs.demo.drawing import draw, random_subject
from jobs.values import DEMO_MODEL
from tests.support.pictures.scenes import write_scenes

SIDE = 128


def encoded(image: Image.Image) -> bytes:
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


@pytest.mark.slow
def test_tiles_find_the_scenes_that_hold_a_shape(tmp_path: Path) -> None:
    """Object recall@10: 2.5 times that of whole pictures at five times the vectors, by pictures and by words."""
    shown, rng = write_scenes(tmp_path / "scenes", 400), np.random.default_rng(7)
    asked = [random_subject(rng) for _ in range(120)]
    model = load_embedder(str(DEMO_MODEL))
    pictures = [decode_image(encoded(draw(subject, (SIDE, SIDE), rng)), model.crop).pixels for subject in asked]
    queries = {
        "pictures": model.embed_images(np.stack(pictures)),
        "words": model.embed_texts([f"a {subject.colour} {subject.shape}" for subject in asked]),
    }
    holding = [
        {
            name
            for name, subjects in shown.items()
            if (asks.colour, asks.shape) in {(s.colour, s.shape) for s in subjects}
        }
        for asks in asked
    ]

    def recall(searcher: Searcher, vectors: Any) -> float:
        found = [{match.image_id for match in matches} for matches in searcher.search(vectors, 10)]
        shares = [
            len(ids & wanted) / min(10, len(wanted)) for ids, wanted in zip(found, holding, strict=True) if wanted
        ]
        return float(np.mean(shares))

    whole, tiled = (
        Searcher.open(embed_here(tmp_path / "scenes", tmp_path / f"with-{tiles}", tiles=tiles))
        for tiles in (None, "2x2")
    )
    for kind, vectors in queries.items():
        before, after = recall(whole, vectors), recall(tiled, vectors)
        print(f"{kind}: recall@10 {before:.3f} of whole pictures, {after:.3f} with tiles, {after / before:.2f} times")
        assert after >= 2.5 * before, kind
