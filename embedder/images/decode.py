"""Decodes the bytes of a picture into the uint8 crop that a model takes, or into a thumbnail. Thread-safe.

For upright 8-bit pictures, conversion to RGB, resizing and cropping agree with the image processors of transformers
(`CLIPImageProcessorPil`, `SiglipImageProcessorPil`).
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from PIL import ExifTags, Image

from embedder.images.exif import read_exif
from embedder.images.formats import EXTRA_FORMATS, picture_format
from embedder.images.limits import DEFAULT_LIMITS, ImageLimits, cost_of
from embedder.images.opening import OpenedImage, open_image
from embedder.images.pixel_modes import as_rgb, correct, in_png_mode, resized_rgb
from embedder.images.resize import Box, Size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Fit = Callable[[int, int], tuple[Size, Box]]
Region = tuple[float, float, float, float]
"""A part of the upright picture: left, top, width and height as fractions of it, 0 … 1."""

# A JPEG decoded at reduced scale is still at least this many times as large as the target. Measured at side 224 on
# pictures with the spectrum of photographs: the mean difference from exact resizing is 0.4 grey levels, and 1.5 to 2
# with margin 1.
_DRAFT_MARGIN = 2.0
_REGION_MARGIN = 1.0  # a box drawn by hand is less exact than that, and should cost no more than the whole picture
_MAX_EXACT_PIXELS = 2**25  # of the whole picture, before and after resizing: three copies of it take 400 MB
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, kw_only=True)
class CropSpec:
    """How a picture becomes `side × side` pixels.

    With `shortest_edge`, the shorter edge is resized to it and the central square is cropped (CLIP, DINOv2); with None
    the whole picture is squashed into the square (SigLIP). With `region` only that part of the picture is used. Each of
    `tiles` adds the pixels of that part, after those of the whole picture.
    """

    side: int
    shortest_edge: int | None
    resample: Image.Resampling = Image.Resampling.BICUBIC
    region: Region | None = None
    tiles: tuple[Region, ...] = ()

    def __post_init__(self) -> None:
        if self.side < 1 or (self.shortest_edge is not None and self.shortest_edge < self.side):
            raise ValueError(
                f"a crop needs 1 <= side <= shortest_edge, or shortest_edge None to squash the picture; "
                f"got side {self.side} and shortest_edge {self.shortest_edge}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a picture's pixels: `(side, side, 3)`, or with tiles `(1 + tiles, side, side, 3)`."""
        return (*((1 + len(self.tiles),) if self.tiles else ()), self.side, self.side, 3)

    def fit(self, width: int, height: int) -> tuple[Size, Box]:
        """The target size, and the box of a `width × height` picture that is resized to it.

        Rounds like `get_resize_output_image_size` and `center_crop` of transformers.
        """
        if self.region is not None:
            region = region_box(self.region, width, height)
            size, box = replace(self, region=None).fit(region[2] - region[0], region[3] - region[1])
            return size, (box[0] + region[0], box[1] + region[1], box[2] + region[0], box[3] + region[1])
        size = (self.side, self.side)
        if self.shortest_edge is None:
            return size, (0.0, 0.0, width, height)
        short = min(width, height)
        resized_width = int(self.shortest_edge * width / short)
        resized_height = int(self.shortest_edge * height / short)
        left, top = (resized_width - self.side) // 2, (resized_height - self.side) // 2
        x, y = width / resized_width, height / resized_height
        right, bottom = min((left + self.side) * x, width), min((top + self.side) * y, height)
        return size, (left * x, top * y, right, bottom)


def region_box(region: Region, width: int, height: int) -> tuple[int, int, int, int]:
    """A region in whole pixels, at least one in each direction: left, top, right and bottom."""
    left, top = min(round(region[0] * width), width - 1), min(round(region[1] * height), height - 1)
    right, bottom = round((region[0] + region[2]) * width), round((region[1] + region[3]) * height)
    return left, top, min(max(right, left + 1), width), min(max(bottom, top + 1), height)


@dataclass(frozen=True, kw_only=True)
class DecodedImage:
    """The crop, RGB of `CropSpec.shape`; and the whole picture's size as displayed, its format, such as "jpeg", and
    the result of `read_exif`, if requested.
    """

    pixels: npt.NDArray[np.uint8]
    width: int
    height: int
    format: str
    exif: Mapping[str, Any] = field(default_factory=dict)


def decode_image(
    data: bytes, crop: CropSpec, *, limits: ImageLimits = DEFAULT_LIMITS, draft: bool = True
) -> DecodedImage:
    """Decode the first frame, turn it upright, put it on white if transparent, and crop it; raises `ImageError`.

    With `draft`, JPEGs far larger than the crop are decoded at reduced scale, which is several times faster and gives
    nearly the same pixels; other pictures differ from the reference by rounding (1 grey level, rarely 2). Without
    `draft`, all pixels equal the reference's, up to 33 megapixels.
    """
    import numpy as np  # `decode_rgb` must not need it

    pixels, facts = decode_rgb(data, crop, limits=limits, draft=draft)
    return DecodedImage(pixels=np.frombuffer(pixels, np.uint8).reshape(crop.shape).copy(), **facts)


def decode_rgb(
    data: bytes, crop: CropSpec, *, limits: ImageLimits, draft: bool, exif: bool = False
) -> tuple[bytes, dict[str, Any]]:
    """The crop's pixels, and the other fields of a `DecodedImage`; raises `ImageError`. The file is decoded once.

    Works without NumPy, whose import would take half of a decoder process's start time.
    """
    with open_image(data, limits) as opened:
        margin = _DRAFT_MARGIN if crop.region is None else _REGION_MARGIN
        fits = [replace(crop, region=region).fit for region in (crop.region, *crop.tiles)]
        crops, size = render(opened, fits, crop.resample, margin=margin if draft else None)
        name = picture_format(data)
        label = ((name if name in EXTRA_FORMATS else opened.image.format) or "").lower()
        facts = {"width": size[0], "height": size[1], "format": label}
        return b"".join(rgb.tobytes() for rgb in crops), facts | ({"exif": read_exif(opened.image)} if exif else {})


def thumbnail(
    data: bytes, max_side: int, *, limits: ImageLimits = DEFAULT_LIMITS, region: Region = (0, 0, 1, 1)
) -> bytes:
    """A JPEG of the upright picture or a region, with sides up to `max_side` and no metadata; raises `ImageError`."""
    if max_side < 1:
        raise ValueError(f"expected a max_side of at least 1 pixel, got max_side {max_side}")

    def fit(width: int, height: int) -> tuple[Size, Box]:
        box = region_box(region, width, height)
        width, height = box[2] - box[0], box[3] - box[1]
        scale = min(1.0, max_side / max(width, height))
        return (max(1, round(width * scale)), max(1, round(height * scale))), box

    with open_image(data, limits) as opened:
        [rgb], _ = render(opened, [fit], margin=_DRAFT_MARGIN)
        target = io.BytesIO()
        # From the pixels, because the encoder copies an image's comments.
        Image.frombytes("RGB", rgb.size, rgb.tobytes()).save(target, "JPEG", quality=85)
        return target.getvalue()


def render(
    opened: OpenedImage,
    fits: Sequence[Fit],
    resample: Image.Resampling = Image.Resampling.BICUBIC,
    *,
    margin: float | None = None,
) -> tuple[list[Image.Image], Size]:
    """An RGB crop for each of `fits`, and the size of the whole picture as displayed.

    The crop is taken in the stored orientation and only then turned upright, when it is small. Without a `margin` for
    `_draft`, it is made as in image processors: the whole upright picture is resized, then cropped.
    """
    image = opened.image
    width, height = image.size
    scale = _draft(image, fits, margin) if margin else 1
    opened.limits.check_cost(cost_of(image, opened.source, width * height))
    image.load()
    orientation = _orientation(image)  # only now, because a PNG may have it after the pixels
    if orientation >= 5:
        width, height = height, width

    def crop(fit: Fit) -> Image.Image:
        size, box = fit(width, height)
        x, y = size[0] / (box[2] - box[0]), size[1] / (box[3] - box[1])
        whole = round(width * x), round(height * y)
        if margin or max(width * height, whole[0] * whole[1]) > _MAX_EXACT_PIXELS:
            size, box = _as_stored(size, box, (width, height), orientation)
            box = (box[0] / scale, box[1] / scale, box[2] / scale, box[3] / scale)
            return _turn_upright(resized_rgb(image, size, resample, box=box), orientation)
        rgb = _turn_upright(as_rgb(image), orientation).resize(whole, resample)
        left, top = round(box[0] * x), round(box[1] * y)
        return rgb.crop((left, top, left + size[0], top + size[1]))

    return [crop(fit) for fit in fits], (width, height)


def _as_stored(size: Size, box: Box, displayed: Size, orientation: int) -> tuple[Size, Box]:
    """The target size, and the box of a picture as `displayed`, for the picture as it is stored."""
    width, height = displayed
    if orientation in (2, 3, 6, 7):
        box = (width - box[2], box[1], width - box[0], box[3])
    if orientation in (3, 4, 7, 8):
        box = (box[0], height - box[3], box[2], height - box[1])
    if orientation >= 5:
        size, box = (size[1], size[0]), (box[1], box[0], box[3], box[2])
    return size, box


def _draft(image: Image.Image, fits: Sequence[Fit], margin: float) -> float:
    """Selects the smallest scale to decode a JPEG at that leaves `margin` for the first of `fits` and `_REGION_MARGIN`
    for the others. Returns the divisor: 1, 2, 4 or 8.
    """
    width, height = image.size
    room = math.inf
    for number, fit in enumerate(fits):
        both_orientations = fit(width, height), fit(height, width)  # a region may be larger in one of them
        shrinks = [(box[axis + 2] - box[axis]) / size[axis] for size, box in both_orientations for axis in (0, 1)]
        room = min(room, min(shrinks) / (_REGION_MARGIN if number else margin))
    scale = next((s for s in (8, 4, 2) if s <= room), 1)
    drafted = image.draft(None, (width // scale, height // scale)) if scale > 1 else None
    return width / drafted[1][2] if drafted else 1


def as_displayed(image: Image.Image) -> Image.Image:
    """A PIL image upright and in a mode that PNG has, its values understood as those of the file that it is from."""
    correct(image)
    image.load()
    return _turn_upright(in_png_mode(image), _orientation(image))


def upright(image: Image.Image) -> Image.Image:
    """A loaded picture as displayed."""
    return _turn_upright(image, _orientation(image))


def _turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_TO_UPRIGHT[orientation]) if orientation > 1 else image


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # broken metadata must not make a picture unusable
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1
