"""Real photographs as files of all formats and modes, and reference crops to compare with.

The photographs are part of the wheels of scikit-image and scikit-learn.
"""

import io
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import cycle

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from embedder.images import CropSpec
from tests.support.pictures.sample_images import encode, rotated

Encode = Callable[[Image.Image], bytes]

_OF_SKIMAGE = (
    "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png",
    "coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png", "microaneurysms.png", "moon.png",
    "motorcycle_left.png", "page.png", "retina.jpg", "rocket.jpg", "text.png",
)  # fmt: skip
_OF_SKLEARN = ("china.jpg", "flower.jpg")


def photographs() -> Iterator[Image.Image]:
    """In RGB."""
    folders = {files("skimage") / "data": _OF_SKIMAGE, files("sklearn") / "datasets" / "images": _OF_SKLEARN}
    for folder, names in folders.items():
        for name in names:
            with Image.open(io.BytesIO((folder / name).read_bytes())) as image:
                yield image.convert("RGB")


def stock_crop(image: Image.Image, crop: CropSpec) -> NDArray[np.uint8]:
    """`(side, side, 3)`: the centre crop of CLIP's stock image processor."""
    assert crop.shortest_edge is not None
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": crop.shortest_edge},
        crop_size={"height": crop.side, "width": crop.side},
        do_rescale=False,
        do_normalize=False,
    )
    pixels = processor(image, return_tensors="np")["pixel_values"][0]
    return np.asarray(np.moveaxis(pixels, 0, -1), np.uint8)


def saved(kind: str, mode: str = "RGB", **options: object) -> Encode:
    """An encoder to format `kind` in `mode`."""
    return lambda image: encode(image.convert(mode), kind, **options)


def layered(kind: str, alpha: Callable[[Image.Image], Image.Image], **options: object) -> Encode:
    """An encoder that adds an alpha channel."""

    def encoded(image: Image.Image) -> bytes:
        image = image.copy()
        image.putalpha(alpha(image))
        return encode(image, kind, **options)

    return encoded


def fading(image: Image.Image) -> Image.Image:
    return Image.linear_gradient("L").rotate(90).resize(image.size)


def speckled(image: Image.Image) -> Image.Image:
    """Each pixel is either visible or transparent."""
    return Image.fromarray((255 * (np.random.default_rng(0).random(image.size[::-1]) > 0.5)).astype(np.uint8))


def with_holes(kind: str) -> Encode:
    """An encoder with 64 colours, one of them transparent."""
    return lambda image: encode(image.quantize(64), kind, transparency=5)


def sixteen_bit(image: Image.Image) -> bytes:
    return encode(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG")


def turned(orientation: int) -> Encode:
    return lambda image: rotated(image, orientation, "jpeg", quality=92)


ENCODERS: dict[str, Encode] = {
    "jpeg": saved("JPEG", quality=75),
    "jpeg-progressive": saved("JPEG", quality=80, progressive=True),
    "jpeg-444": saved("JPEG", quality=95, subsampling=0),
    "jpeg-grey": saved("JPEG", "L", quality=90),
    "jpeg-cmyk": saved("JPEG", "CMYK", quality=90),
    **{f"jpeg-orientation-{number}": turned(number) for number in range(2, 9)},
    "png": saved("PNG", compress_level=1),
    "png-alpha": layered("PNG", fading, compress_level=1),
    "png-speckled": layered("PNG", speckled, compress_level=1),
    "png-palette": saved("PNG", "P"),
    "png-palette-holes": with_holes("PNG"),
    "png-1-bit": saved("PNG", "1"),
    "png-16-bit": sixteen_bit,
    "png-grey-alpha": saved("PNG", "LA"),
    "webp": saved("WEBP", quality=85, method=0),
    "webp-alpha": layered("WEBP", fading, quality=85, method=0),
    "avif": saved("AVIF", quality=80, speed=10),
    "gif": saved("GIF"),
    "gif-holes": with_holes("GIF"),
    "bmp": saved("BMP"),
    "tiff": saved("TIFF", compression="tiff_lzw"),
    "tiff-cmyk": saved("TIFF", "CMYK"),
}
_LARGE = ("jpeg", "jpeg-progressive", "jpeg-grey", "jpeg-orientation-6")


def sixty_pictures() -> Iterator[tuple[str, bytes]]:
    """Names and files, always the same: every encoder twice, with different photographs, and large JPEGs."""
    kinds, images = [*ENCODERS] * 2, cycle(photographs())
    for number, (kind, image) in enumerate(zip(kinds, images, strict=False)):
        yield f"{number} {kind}", ENCODERS[kind](image)
    for kind, image in zip(_LARGE, images, strict=False):
        large = image.resize((4 * image.width, 4 * image.height), Image.Resampling.BICUBIC)
        yield f"large {kind}", ENCODERS[kind](large)


def upright(data: bytes) -> Image.Image:
    """The complete picture in RGB, as converted by the reference."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode == "I;16":  # clipped by the reference
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    return Image.fromarray(np.asarray(convert_to_rgb(image, return_numpy=True)))
