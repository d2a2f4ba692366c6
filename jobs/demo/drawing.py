"""Pictures drawn by the project: one patterned, coloured shape on a varied background, at any size.

Everything is decided by a `numpy.random.Generator`, so the same seed draws the same picture. Distances are
fractions of the shorter side, so a picture looks alike at 64 and at 3,000 pixels. The shape always lies within the
central square: the centre crop that CLIP's preprocessing takes cannot cut it off.
"""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

Point = tuple[float, float]
Colour = tuple[int, int, int]

COLOURS: dict[str, Colour] = {
    "red": (214, 32, 38),
    "orange": (246, 134, 24),
    "yellow": (247, 214, 36),
    "green": (44, 150, 58),
    "teal": (28, 172, 172),
    "blue": (32, 84, 208),
    "purple": (122, 46, 172),
    "pink": (244, 122, 178),
    "brown": (120, 74, 36),
    "grey": (122, 124, 128),
}
PATTERNS = ("plain", "striped", "dotted", "checked")
BACKGROUNDS = ("light", "dark", "gradient", "speckled", "lined", "blotched")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a picture shows, in the words of its caption."""

    shape: str
    colour: str
    pattern: str
    background: str


def _polygon(radii_and_angles: list[tuple[float, float]]) -> list[Point]:
    return [(r * math.sin(a), -r * math.cos(a)) for r, a in radii_and_angles]


def _circle(radius: float) -> list[Point]:
    return _polygon([(radius, 2 * math.pi * i / 72) for i in range(72)])


def _heart() -> list[Point]:
    points = []
    for i in range(72):
        t = 2 * math.pi * i / 72
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((x / 16.5, -(y + 2) / 16.5))
    return points


def _cross() -> list[Point]:
    corner = [(-0.34, -1.0), (0.34, -1.0), (0.34, -0.34)]
    right = [(-y, x) for x, y in corner]
    return [*corner, *right, *((-x, -y) for x, y in [*corner, *right])]


@dataclass(frozen=True)
class _Shape:
    """Outline in units of the shape's radius, what is cut out of it, and how far it may be turned (radians)."""

    outline: list[Point]
    hole: list[Point] | None = None
    turn: float = 0.4


_SHAPES: dict[str, _Shape] = {
    "circle": _Shape(_circle(0.95)),
    "square": _Shape([(-0.82, -0.82), (0.82, -0.82), (0.82, 0.82), (-0.82, 0.82)]),
    "triangle": _Shape([(0.0, -0.95), (1.0, 0.8), (-1.0, 0.8)]),
    "star": _Shape(_polygon([(1.08 if i % 2 == 0 else 0.47, math.pi * i / 5) for i in range(10)])),
    "heart": _Shape(_heart()),
    "cross": _Shape(_cross(), turn=0.3),
    "ring": _Shape(_circle(1.0), _circle(0.5)),
    "moon": _Shape(_circle(1.0), [(x + 0.52, y - 0.12) for x, y in _circle(0.78)]),
}
SHAPES = tuple(_SHAPES)


def random_subject(rng: np.random.Generator) -> Subject:
    """A subject with each attribute drawn uniformly."""
    return Subject(
        shape=SHAPES[rng.integers(len(SHAPES))],
        colour=tuple(COLOURS)[rng.integers(len(COLOURS))],
        pattern=PATTERNS[rng.integers(len(PATTERNS))],
        background=BACKGROUNDS[rng.integers(len(BACKGROUNDS))],
    )


@dataclass(frozen=True, kw_only=True)
class _Pose:
    """Where a shape or a pattern lies: its centre and unit in pixels, its turn in radians."""

    centre: Point
    unit: float
    angle: float

    def place(self, points: list[Point], scale: float = 1) -> list[Point]:
        """Pixels of points in units, in a picture that is drawn `scale` times as large."""
        c, s = math.cos(self.angle) * self.unit * scale, math.sin(self.angle) * self.unit * scale
        return [(self.centre[0] * scale + x * c - y * s, self.centre[1] * scale + x * s + y * c) for x, y in points]


def draw(subject: Subject, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """Draw `subject` as an RGB picture of `size` = (width, height); place, scale, turn and tint vary with `rng`."""
    width, height = size
    side = min(size)
    picture = _background(subject.background, size, rng)
    shape = _SHAPES[subject.shape]
    radius = side * rng.uniform(0.30, 0.45)
    slack = max(0.0, side / 2 - radius * 1.1)
    pose = _Pose(
        centre=(width / 2 + rng.uniform(-slack, slack), height / 2 + rng.uniform(-slack, slack)),
        unit=radius,
        angle=rng.uniform(-shape.turn, shape.turn),
    )
    picture.paste(_surface(subject, size, pose, rng), (0, 0), _mask(shape, size, pose))
    return picture


def _jitter(colour: Colour, amount: float, rng: np.random.Generator) -> Colour:
    """`colour` made up to `amount` darker or lighter, with a little noise in each channel."""
    scale = 1 + rng.uniform(-amount, amount)
    r, g, b = (int(np.clip(c * scale + n, 0, 255)) for c, n in zip(colour, rng.uniform(-6, 6, 3), strict=True))
    return r, g, b


def _mask(shape: _Shape, size: tuple[int, int], pose: _Pose) -> Image.Image:
    scale = 2 if max(size) <= 512 else 1  # drawn twice as large and reduced: smooth edges
    mask = Image.new("L", (size[0] * scale, size[1] * scale), 0)
    pen = ImageDraw.Draw(mask)
    pen.polygon(pose.place(shape.outline, scale), fill=255)
    if shape.hole is not None:
        pen.polygon(pose.place(shape.hole, scale), fill=0)
    return mask if scale == 1 else mask.reduce(scale)


def _surface(subject: Subject, size: tuple[int, int], pose: _Pose, rng: np.random.Generator) -> Image.Image:
    """The shape's colour, crossed by stripes, dots or checks in cream or near black, with a rim of the colour.

    The rim keeps the outline visible where the pattern's ink resembles the background.
    """
    colour = _jitter(COLOURS[subject.colour], 0.10, rng)
    surface = Image.new("RGB", size, colour)
    if subject.pattern == "plain":
        return surface
    ink = _jitter((250, 248, 240), 0.03, rng) if rng.random() < 0.65 else _jitter((28, 26, 30), 0.2, rng)
    pen = ImageDraw.Draw(surface)
    _paint_pattern(subject.pattern, pen, ink, pose, rng)
    shape = _SHAPES[subject.shape]
    rim = max(1, round(pose.unit * 0.14))  # half of it falls outside the mask
    for outline in (shape.outline, shape.hole):
        if outline is not None:
            points = pose.place(outline)
            pen.line([*points, points[0], points[1]], fill=colour, width=rim)
    return surface


def _paint_pattern(pattern: str, pen: ImageDraw.ImageDraw, ink: Colour, shape: _Pose, rng: np.random.Generator) -> None:
    """Stripes, dots or checks on a square grid that covers the shape, with a period, turn and offset of its own."""
    period = shape.unit * rng.uniform(0.36, 0.5)
    left, top = rng.uniform(0, 1, 2).tolist()
    grid = _Pose(centre=shape.centre, unit=period, angle=rng.uniform(0, math.pi))
    reach = math.ceil(1.6 * shape.unit / period) + 1
    steps = range(-reach, reach + 1)
    cells = [(i, j) for i in steps for j in steps]

    def paint(x: float, y: float, width: float, height: float) -> None:
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        pen.polygon(grid.place([(u + left, v + top) for u, v in corners]), fill=ink)

    if pattern == "striped":
        for i in steps:
            paint(i, -reach, 0.45, 2 * reach)
    elif pattern == "dotted":
        radius = period * 0.29
        for x, y in grid.place([(i + left, j + top) for i, j in cells]):
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)
    else:
        for i, j in cells:
            if (i + j) % 2 == 0:
                paint(i * 0.8, j * 0.8, 0.8, 0.8)


def _tint(rng: np.random.Generator, dark: bool) -> Colour:
    """A weak tint, near white or near black, so that a background never passes for the subject's colour."""
    base = rng.uniform(24, 70) if dark else rng.uniform(196, 244)
    r, g, b = (int(np.clip(base + n, 0, 255)) for n in rng.uniform(-14, 14, 3))
    return r, g, b


def _background(kind: str, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    dark = kind == "dark" or (kind != "light" and rng.random() < 0.35)
    first, second = _tint(rng, dark), _tint(rng, dark)
    picture = Image.new("RGB", size, first)
    side = min(size)
    if kind == "gradient":
        ramp = Image.linear_gradient("L").rotate(90 * int(rng.integers(4))).resize(size)
        picture = Image.composite(Image.new("RGB", size, second), picture, ramp)
    elif kind == "speckled":
        grain = rng.normal(0, 1, (48, 48)).astype(np.float32)
        cells = Image.fromarray(np.clip(128 + grain * 60, 0, 255).astype(np.uint8))
        noise = cells.resize(size, Image.Resampling.BILINEAR)
        picture = Image.composite(Image.new("RGB", size, second), picture, noise)
    elif kind == "lined":
        pen = ImageDraw.Draw(picture)
        step = side * rng.uniform(0.12, 0.3)
        lean = rng.uniform(-0.6, 0.6) * side
        for i in range(-4, int(max(size) / step) + 5):
            pen.line([(i * step, 0), (i * step + lean, size[1])], fill=second, width=max(1, round(side * 0.012)))
    elif kind == "blotched":
        pen = ImageDraw.Draw(picture)
        for _ in range(int(rng.integers(3, 8))):
            x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
            r = rng.uniform(0.06, 0.25) * side
            pen.ellipse((x - r, y - r, x + r, y + r), fill=_tint(rng, dark))
        picture = picture.filter(ImageFilter.GaussianBlur(side * 0.02))
    return picture
