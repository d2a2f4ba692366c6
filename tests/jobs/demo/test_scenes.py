"""A box around one shape of a drawn scene, as a query with the demo's model."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from embedder.images import Region
from embedder.images.decode import decode_image
from embedder.models.load import load_embedder
from jobs.demo.drawing import Subject, draw, random_subject
from jobs.values import DEMO_MODEL

SIDE = 128


def encoded(image: Image.Image) -> bytes:
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def scene(subjects: list[Subject], rng: np.random.Generator) -> bytes:
    image = Image.new("RGB", (2 * SIDE, 2 * SIDE))
    for number, subject in enumerate(subjects):
        image.paste(draw(subject, (SIDE, SIDE), rng), (SIDE * (number % 2), SIDE * (number // 2)))
    return encoded(image)


def test_a_box_around_a_shape_finds_pictures_of_it_and_the_whole_scene_does_not() -> None:
    rng, model = np.random.default_rng(5), load_embedder(str(DEMO_MODEL))

    def vectors(pictures: list[bytes], region: Region | None = None) -> Any:
        crop = replace(model.crop, region=region)
        return model.embed_images(np.stack([decode_image(data, crop).pixels for data in pictures]))

    shown = [random_subject(rng) for _ in range(200)]
    shapes = np.array([subject.shape for subject in shown])
    pictures = vectors([encoded(draw(subject, (SIDE, SIDE), rng)) for subject in shown])
    asked = [[random_subject(rng) for _ in range(4)] for _ in range(40)]
    scenes = [scene(subjects, rng) for subjects in asked]
    wanted = np.array([subjects[3].shape for subjects in asked])
    whole, part = (
        float((shapes[(-(vectors(scenes, region) @ pictures.T)).argsort()[:, :10]] == wanted[:, np.newaxis]).mean())
        for region in (None, (0.5, 0.5, 0.5, 0.5))
    )
    assert part > 0.6
    assert part >= 2 * whole
