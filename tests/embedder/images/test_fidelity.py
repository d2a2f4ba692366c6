"""Real photographs in every format: their embeddings agree with those of crops by the stock image processor.

The photographs are part of the wheels of scikit-image and scikit-learn. The model is the demo's: at 64 pixels a change
of a few grey levels has more effect than at 224.
"""

import io
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from embedder.images.decode import decode_image
from embedder.models.clip import ClipEmbedder
from jobs.values import DEMO_MODEL
from tests.support.pictures.sample_images import encode
from tests.support.pictures.sixty_pictures import Encode, saved, see_through, stock_crop

pytestmark = pytest.mark.slow

_OF_SKIMAGE = (
    "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png",
    "coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png", "microaneurysms.png", "moon.png",
    "motorcycle_left.png", "page.png", "retina.jpg", "rocket.jpg", "text.png",
)  # fmt: skip
_OF_SKLEARN = ("china.jpg", "flower.jpg")


def with_holes(kind: str) -> Encode:
    """Encodes 64 colours, one of them transparent."""
    return lambda image: encode(image.quantize(64), kind, transparency=5)


def speckled(image: Image.Image) -> bytes:
    """A PNG in which each pixel is either visible or transparent."""
    visible = np.random.default_rng(0).random((image.height, image.width)) > 0.5
    layered = image.copy()
    layered.putalpha(Image.fromarray((255 * visible).astype(np.uint8)))
    return encode(layered, "png", compress_level=1)


EXACT: dict[str, Encode] = {
    "png": saved("PNG", compress_level=1),
    "png-grey": saved("PNG", "L"),
    "png-1-bit": saved("PNG", "1"),
    "png-palette-holes": with_holes("png"),
    "png-alpha": see_through("PNG", compress_level=1),
    "png-speckled": speckled,
    "gif": saved("GIF"),
    "gif-holes": with_holes("gif"),
    "webp": saved("WEBP", quality=80, method=0),
    "webp-alpha": see_through("WEBP", quality=80, method=0),
    "tiff": saved("TIFF"),
    "avif": saved("AVIF", quality=70, speed=10),
    "bmp": saved("BMP"),
}
JPEG: dict[str, Encode] = {
    "jpeg": saved("JPEG", quality=75),
    "jpeg-444-progressive": saved("JPEG", quality=92, subsampling=0, progressive=True),
}


@cache
def photographs() -> dict[str, Image.Image]:
    folders = {files("skimage") / "data": _OF_SKIMAGE, files("sklearn") / "datasets" / "images": _OF_SKLEARN}
    images: dict[str, Image.Image] = {}
    for folder, names in folders.items():
        for name in names:
            with Image.open(io.BytesIO((folder / name).read_bytes())) as image:
                images[name] = image.convert("RGB")
    return images


@pytest.fixture(scope="module")
def embedder() -> ClipEmbedder:
    return ClipEmbedder.load(str(DEMO_MODEL), device="cpu")


def lowest_cosine(embedder: ClipEmbedder, pictures: Iterator[bytes], *, draft: bool = True) -> float:
    """The lowest cosine between embeddings of our crops and of the stock processor's."""
    crop, ours, theirs = embedder.crop, [], []
    for data in pictures:
        ours.append(decode_image(data, crop, draft=draft).pixels)
        with Image.open(io.BytesIO(data)) as image:
            theirs.append(stock_crop(image, crop))
    vectors = [embedder.embed_images(np.stack(crops)) for crops in (ours, theirs)]
    return float(np.einsum("nd,nd->n", *vectors).min())


def large(image: Image.Image) -> Image.Image:
    return image.resize((4 * image.width, 4 * image.height), Image.Resampling.BICUBIC)


def encoded(kind: Encode, each: Callable[[Image.Image], Image.Image] = lambda image: image) -> Iterator[bytes]:
    return (kind(each(image)) for image in photographs().values())


@pytest.mark.parametrize("kind", EXACT)
def test_embeddings_agree_with_the_stock_processor(embedder: ClipEmbedder, kind: str) -> None:
    assert lowest_cosine(embedder, encoded(EXACT[kind])) >= 0.9999


@pytest.mark.parametrize("kind", JPEG)
def test_reduced_scale_keeps_the_embedding_of_a_jpeg(embedder: ClipEmbedder, kind: str) -> None:
    assert lowest_cosine(embedder, encoded(JPEG[kind])) >= 0.999
    assert lowest_cosine(embedder, encoded(JPEG[kind]), draft=False) >= 0.9999


def test_large_photographs(embedder: ClipEmbedder) -> None:
    assert lowest_cosine(embedder, encoded(JPEG["jpeg"], large)) >= 0.999
