"""Sixty picture files of all formats, modes and sizes, and reference crops to compare with."""

import io
from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from embedder.images import CropSpec
from jobs.demo.drawing import draw, random_subject
from tests.support.pictures.sample_images import encode

Size = tuple[int, int]
Encode = Callable[[Image.Image], bytes]


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


def gradient(size: Size, rng: np.random.Generator) -> Image.Image:
    """Smooth waves, no shorter than the picture."""
    x, y = np.meshgrid(*(np.linspace(0, 1, length, dtype=np.float32) for length in size))
    waves = rng.uniform(1, 6, (3, 3)).tolist()
    planes = [128 + 63 * np.sin(a * x + b * y + c) + 63 * np.cos(c * x - a * y) for a, b, c in waves]
    return Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8))


def photograph(size: Size, rng: np.random.Generator) -> Image.Image:
    """Noise with the 1/f spectrum of photographs and similarly correlated channels."""
    small = (min(size[0], 750), min(size[1], 750))
    frequency = np.hypot(np.fft.fftfreq(small[1])[:, None], np.fft.rfftfreq(small[0])[None])
    frequency[0, 0] = 1 / max(small)
    planes = []
    for _ in range(3):
        spectrum = np.fft.rfft2(rng.standard_normal((small[1], small[0]))) / frequency
        plane = np.fft.irfft2(spectrum, s=(small[1], small[0]))
        planes.append((plane - plane.mean()) / plane.std())
    mixed = np.tensordot(np.stack(planes, axis=-1), [[0.8, 0.7, 0.7], [0.5, -0.4, 0.1], [0.1, 0.3, -0.6]], axes=1)
    pixels = np.clip(rng.uniform(90, 150, 3) + 50 * mixed, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def drawing(size: Size, rng: np.random.Generator) -> Image.Image:
    """Sharp edges: a patterned shape like those of the demo."""
    return draw(random_subject(rng), size, rng)


def saved(kind: str, mode: str = "RGB", **options: object) -> Encode:
    """An encoder to format `kind` in `mode`."""
    return lambda image: encode(image.convert(mode), kind, **options)


def see_through(kind: str, **options: object) -> Encode:
    """An encoder that adds an alpha channel, which fades from left to right."""

    def fading(image: Image.Image) -> bytes:
        layered = image.copy()
        layered.putalpha(Image.linear_gradient("L").rotate(90).resize(image.size))
        return encode(layered, kind, **options)

    return fading


def sixteen_bit(image: Image.Image) -> bytes:
    return encode(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG")


def turned(orientation: int) -> Encode:
    """An encoder to JPEG with this EXIF orientation."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return saved("JPEG", quality=92, exif=exif)


ENCODERS: dict[str, Encode] = {
    "jpeg": saved("JPEG", quality=92),
    "jpeg-progressive": saved("JPEG", quality=80, progressive=True),
    "jpeg-444": saved("JPEG", quality=95, subsampling=0),
    "jpeg-grey": saved("JPEG", "L", quality=90),
    "jpeg-cmyk": saved("JPEG", "CMYK", quality=90),
    **{f"jpeg-orientation-{number}": turned(number) for number in range(2, 9)},
    "png": saved("PNG", compress_level=1),
    "png-alpha": see_through("PNG", compress_level=1),
    "png-palette": saved("PNG", "P"),
    "png-16-bit": sixteen_bit,
    "png-grey-alpha": saved("PNG", "LA"),
    "webp": saved("WEBP", quality=85, method=0),
    "webp-alpha": see_through("WEBP", quality=85, method=0),
    "avif": saved("AVIF", quality=80, speed=10),
    "gif": saved("GIF"),
    "bmp": saved("BMP"),
    "tiff": saved("TIFF", compression="tiff_lzw"),
    "tiff-cmyk": saved("TIFF", "CMYK"),
}
TEXTURES = (gradient, photograph, drawing)
LARGE_JPEGS: tuple[tuple[str, Size], ...] = (
    ("jpeg", (4000, 3000)),
    ("jpeg-progressive", (3000, 2000)),
    ("jpeg-444", (1600, 2400)),
    ("jpeg-orientation-6", (2400, 1600)),
    ("jpeg-grey", (2048, 2048)),
    ("jpeg-cmyk", (1920, 1080)),
)
SIZES: tuple[Size, ...] = (
    (64, 64), (500, 375), (225, 301), (900, 700), (1200, 64), (300, 200), (640, 480), (96, 130), (224, 224),
    (80, 1000), (333, 777), (1024, 768), (448, 448),
)  # fmt: skip


def sixty_pictures() -> Iterator[tuple[str, bytes]]:
    """Names and files, always the same: every encoder twice, then the large JPEGs twice, with different textures."""
    rng = np.random.default_rng(60)
    small = list(zip(list(ENCODERS) * 2, cycle(SIZES), strict=False))
    for number, (kind, size) in enumerate([*small, *LARGE_JPEGS * 2]):
        texture = TEXTURES[(number + number // len(ENCODERS) + number // 54) % 3]
        yield f"{kind} {texture.__name__} {size[0]}x{size[1]}", ENCODERS[kind](texture(size, rng))


def upright(data: bytes) -> Image.Image:
    """The complete picture in RGB, as converted by the reference."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode == "I;16":  # clipped by the reference
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    return Image.fromarray(np.asarray(convert_to_rgb(image, return_numpy=True)))
