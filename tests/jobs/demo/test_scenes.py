"""Drawn scenes: a box around one shape as the query, and scenes found by a shape they hold, by the demo's model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embedder.images import Region
from embedder.images.decode import decode_image
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.load import load_embedder
from index.search import Searcher
from jobs.demo.collection import embed_here
from jobs.demo.drawing import Subject, draw, random_subject
from tests.support.pictures.sample_images import encode
from tests.support.pictures.scenes import write_scenes

SIDE = 128


def scene(subjects: list[Subject], rng: np.random.Generator) -> bytes:
    image = Image.new("RGB", (2 * SIDE, 2 * SIDE))
    for number, subject in enumerate(subjects):
        image.paste(draw(subject, (SIDE, SIDE), rng), (SIDE * (number % 2), SIDE * (number // 2)))
    return encode(image, "png")


def test_a_box_around_a_shape_finds_pictures_of_it_and_the_whole_scene_does_not() -> None:
    rng, model = np.random.default_rng(5), load_embedder(str(DEMO_MODEL))

    def vectors(pictures: list[bytes], region: Region | None = None) -> Any:
        crop = replace(model.crop, region=region)
        return model.embed_images(np.stack([decode_image(data, crop).pixels for data in pictures]))

    shown = [random_subject(rng) for _ in range(200)]
    shapes = np.array([subject.shape for subject in shown])
    pictures = vectors([encode(draw(subject, (SIDE, SIDE), rng), "png") for subject in shown])
    asked = [[random_subject(rng) for _ in range(4)] for _ in range(40)]
    scenes = [scene(subjects, rng) for subjects in asked]
    wanted = np.array([subjects[3].shape for subjects in asked])
    whole, part = (
        float((shapes[(-(vectors(scenes, region) @ pictures.T)).argsort()[:, :10]] == wanted[:, np.newaxis]).mean())
        for region in (None, (0.5, 0.5, 0.5, 0.5))
    )
    assert part > 0.6
    assert part >= 2 * whole


@pytest.mark.slow
def test_tiles_find_the_scenes_that_hold_a_shape(tmp_path: Path) -> None:
    """Object recall@10: 2.5 times that of whole pictures at five times the vectors, by pictures and by words."""
    shown, rng = write_scenes(tmp_path / "scenes", 400), np.random.default_rng(7)
    asked = [random_subject(rng) for _ in range(120)]
    model = load_embedder(str(DEMO_MODEL))
    pictures = [decode_image(encode(draw(subject, (SIDE, SIDE), rng), "png"), model.crop).pixels for subject in asked]
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
        shares = [len(ids & of) / min(10, len(of)) for ids, of in zip(found, holding, strict=True) if of]
        return float(np.mean(shares))

    whole, tiled = (
        Searcher.open(embed_here(tmp_path / "scenes", tmp_path / f"with-{tiles}", tiles=tiles))
        for tiles in (None, "2x2")
    )
    for kind, vectors in queries.items():
        before, after = recall(whole, vectors), recall(tiled, vectors)
        print(f"{kind}: recall@10 {before:.3f} of whole pictures, {after:.3f} with tiles, {after / before:.2f} times")
        assert after >= 2.5 * before, kind
