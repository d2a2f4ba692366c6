"""Documents that look alike from afar: pages, receipts, screenshots, charts, sheets, codes, boards.

`DOCUMENTS` draws them: `layout` decides what all documents of a series share, `content` what tells them apart, which
may be a single number.
"""

import string
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Numbers = np.random.Generator
Draw = Callable[[Numbers, Numbers], Image.Image]
_WORDS: Final = [
    "lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "do", "eiusmod", "tempor",
    "incididunt", "ut", "labore", "et", "dolore", "magna", "aliqua", "enim", "minim", "veniam", "quis", "nostrud",
]  # fmt: skip
_INK: Final = (25, 25, 25)


class _Sheet:
    """A picture with a pen."""

    def __init__(self, size: tuple[int, int], paper: Any = "white") -> None:
        self.picture = Image.new("RGB", size, paper)
        self.pen = ImageDraw.Draw(self.picture)

    def write(self, x: float, y: float, text: str, size: int = 20, ink: Any = _INK) -> None:
        self.pen.text((x, y), text, fill=ink, font=ImageFont.load_default(size=size))

    def box(self, x: float, y: float, across: float, down: float, **options: Any) -> None:
        self.pen.rectangle((x, y, x + across - 1, y + max(down, 1) - 1), **options)


def _words(numbers: Numbers, count: int) -> str:
    return " ".join(numbers.choice(_WORDS, count))


def _another(content: Numbers, digits: int) -> str:
    return "".join(map(str, content.integers(0, 10, digits)))


def page(layout: Numbers, content: Numbers) -> Image.Image:
    """Other text in the same form."""
    sheet = _Sheet((1240, 1754), (250, 250, 250))
    sheet.write(120, 60, _words(layout, 4), 36)
    for y in range(140, 1640, 34):
        sheet.write(120, y, _words(content, 13)[:80], 24)
    return sheet.picture


def page_with_one_word(layout: Numbers, content: Numbers) -> Image.Image:
    sheet = _Sheet((827, 1169), (252, 250, 244))
    changed = int(layout.integers(5, 40))
    for line in range(48):
        words = layout.choice(_WORDS, 11).tolist()
        if line == changed:
            words[4] = str(content.choice([word for word in _WORDS if word != words[4]]))
        sheet.write(70, 70 + line * 21, " ".join(words), 15)
    return sheet.picture


def receipt(layout: Numbers, content: Numbers) -> Image.Image:
    """Another total."""
    sheet = _Sheet((600, 1200))
    sheet.write(180, 40, "GREEN MARKET", 32)
    for line in range(20):
        sheet.write(60, 140 + 40 * line, _words(layout, 2), 24)
        sheet.write(460, 140 + 40 * line, f"{layout.integers(100, 2000) / 100:.2f}", 24)
    sheet.write(60, 1000, f"TOTAL   {_another(content, 3)}.{_another(content, 2)}", 30)
    return sheet.picture


def receipt_with_one_digit(layout: Numbers, content: Numbers) -> Image.Image:
    sheet = _Sheet((420, 760), (248, 246, 240))
    for line in range(22):
        sheet.write(30, 60 + 28 * line, _words(layout, 2), 17)
        sheet.write(320, 60 + 28 * line, f"{layout.integers(100, 2000) / 100:.2f}", 17)
    sheet.write(30, 700, f"TOTAL 4{_another(content, 1)}.50", 20)
    return sheet.picture


def screenshot(layout: Numbers, content: Numbers) -> Image.Image:
    """One row of a list."""
    sheet = _Sheet((1920, 1080), (245, 245, 245))
    sheet.box(0, 0, 1920, 60, fill=(40, 60, 120))
    sheet.write(30, 15, "Inventory", 28, "white")
    for line in range(24):
        sheet.box(40, 100 + 40 * line, 1840, 1, fill=(200, 200, 200))
        numbers = content if line == 11 else layout
        text = f"{numbers.integers(10**6):06d}   {_words(numbers, 2)}    {numbers.integers(1000)}"
        sheet.write(60, 106 + 40 * line, text, 22)
    return sheet.picture


def chat(layout: Numbers, content: Numbers) -> Image.Image:
    sheet = _Sheet((720, 1280), (18, 18, 22))
    for line in range(14):
        numbers, right = (content if line == 12 else layout), line % 3 == 0
        sheet.pen.rounded_rectangle((200 if right else 30, 30 + 88 * line, 690 if right else 520, 100 + 88 * line), 18,
                                    fill=(20, 90, 60) if right else (50, 52, 60))  # fmt: skip
        sheet.write(220 if right else 50, 48 + 88 * line, _words(numbers, 5), 22, "white")
    return sheet.picture


def form(layout: Numbers, content: Numbers) -> Image.Image:
    """The same form, filled in by someone else."""
    sheet = _Sheet((1000, 1400))
    sheet.write(80, 50, "APPLICATION FORM 27-B", 34)
    for line in range(22):
        y = 140 + 54 * line
        sheet.write(80, y, _words(layout, 2), 20)
        sheet.box(360, y - 8, 560, 40, outline=(90, 90, 90))
        if line % 3 == 1:
            sheet.write(372, y, _words(content, 2), 22, (20, 40, 140))
    return sheet.picture


def ticked_form(layout: Numbers, content: Numbers) -> Image.Image:
    """Another box ticked."""
    sheet, ticked = _Sheet((800, 1100)), int(content.integers(0, 24))
    for line in range(24):
        y = 60 + 42 * line
        sheet.box(60, y, 24, 24, outline=_INK, width=2)
        sheet.write(110, y, _words(layout, 6), 19)
        if line == ticked:
            sheet.pen.line((64, y + 4, 79, y + 19), _INK, 3)
            sheet.pen.line((79, y + 4, 64, y + 19), _INK, 3)
    return sheet.picture


def music(_: Numbers, content: Numbers) -> Image.Image:
    sheet = _Sheet((1100, 1500), (253, 252, 246))
    for staff in range(9):
        top = 100 + 150 * staff
        for line in range(5):
            sheet.box(80, top + 14 * line, 940, 2, fill=_INK)
        for x in range(130, 1000, 44):
            y = top + 56 - 7 * int(content.integers(0, 9))
            sheet.pen.ellipse((x, y - 6, x + 17, y + 7), fill=_INK)
            sheet.box(x + 16, y - 46, 2, 46, fill=_INK)
    return sheet.picture


def _chart(layout: Numbers) -> _Sheet:
    sheet = _Sheet((900, 600))
    sheet.write(300, 12, f"{_words(layout, 3)}", 26)
    for line in range(6):
        sheet.box(80, 80 + 90 * line, 780, 1, fill=(215, 215, 215))
        sheet.write(20, 70 + 90 * line, f"{100 - 20 * line}", 18)
    return sheet


def line_chart(layout: Numbers, content: Numbers) -> Image.Image:
    sheet = _chart(layout)
    heights = 300 + np.cumsum(content.normal(0, 14, 60))
    sheet.pen.line([(80 + 13 * step, float(height)) for step, height in enumerate(heights)], (20, 80, 200), 3)
    return sheet.picture


def bar_chart(layout: Numbers, content: Numbers) -> Image.Image:
    """One bar is higher or lower."""
    sheet, changed = _chart(layout), int(layout.integers(0, 12))
    for bar in range(12):
        height = int(layout.integers(80, 400))
        height += int(content.choice([-44, -30, 30, 44])) if bar == changed else 0
        sheet.box(100 + 62 * bar, 530 - height, 40, height, fill=(60, 140, 90))
    return sheet.picture


def scatter(layout: Numbers, content: Numbers) -> Image.Image:
    sheet = _chart(layout)
    for x, y in content.normal((460, 300), (150, 80), (150, 2)):
        sheet.pen.ellipse((x - 4, y - 4, x + 4, y + 4), fill=(200, 60, 40))
    return sheet.picture


def table(layout: Numbers, content: Numbers) -> Image.Image:
    """Other numbers in the same table."""
    sheet = _Sheet((1000, 1200))
    for line in range(30):
        sheet.box(40, 60 + 36 * line, 920, 1, fill=(150, 150, 150))
        sheet.write(50, 66 + 36 * line, _words(layout, 2), 18)
        for column in range(5):
            sheet.write(340 + 124 * column, 66 + 36 * line, _another(content, 5), 18)
    return sheet.picture


def spreadsheet(layout: Numbers, content: Numbers) -> Image.Image:
    """One cell."""
    sheet, changed = _Sheet((1366, 768)), int(layout.integers(50, 300))
    for cell in range(336):
        row, column = divmod(cell, 12)
        sheet.box(30 + 110 * column, 40 + 26 * row, 111, 27, outline=(205, 205, 205))
        sheet.write(36 + 110 * column, 43 + 26 * row, _another(content if cell == changed else layout, 5), 15)
    return sheet.picture


def source_code(layout: Numbers, content: Numbers) -> Image.Image:
    """One name and one number in the same code, light on dark."""
    sheet, changed = _Sheet((1200, 900), (30, 30, 36)), int(layout.integers(4, 36))
    for line in range(40):
        numbers = content if line == changed else layout
        sheet.write(14, 14 + 22 * line, f"{line + 1:3}", 15, (110, 110, 120))
        sheet.write(60 + 28 * int(layout.integers(0, 4)), 14 + 22 * line, f"{_words(numbers, 1)} =", 15, (220, 180, 90))
        sheet.write(330, 14 + 22 * line, f"{_words(numbers, 2)}({_another(numbers, 3)})", 15, (190, 220, 240))
    return sheet.picture


def hex_dump(_: Numbers, content: Numbers) -> Image.Image:
    sheet = _Sheet((900, 800))
    for line in range(38):
        for column in range(16):
            sheet.write(20 + 54 * column, 14 + 20 * line, f"{content.integers(256):02x}", 14)
    return sheet.picture


def crossword(layout: Numbers, content: Numbers) -> Image.Image:
    """The same grid with other letters."""
    sheet = _Sheet((640, 640))
    for cell, black in enumerate(layout.random(225) < 0.2):
        y, x = divmod(cell, 15)
        sheet.box(20 + 40 * x, 20 + 40 * y, 41, 41, outline=_INK, fill=_INK if black else "white")
        if not black:
            sheet.write(33 + 40 * x, 26 + 40 * y, str(content.choice(list(string.ascii_uppercase))), 22)
    return sheet.picture


def sudoku(layout: Numbers, content: Numbers) -> Image.Image:
    """One number."""
    sheet, changed = _Sheet((540, 540)), int(layout.integers(0, 81))
    for cell in range(81):
        y, x = divmod(cell, 9)
        sheet.box(60 * x, 60 * y, 61, 61, outline=_INK)
        digit, other, shown = int(layout.integers(1, 10)), int(content.integers(1, 9)), layout.random() < 0.4
        if shown or cell == changed:
            sheet.write(22 + 60 * x, 14 + 60 * y, str((digit + other) % 9 + 1 if cell == changed else digit), 30)
    return sheet.picture


def chess(layout: Numbers, content: Numbers) -> Image.Image:
    """One piece stands elsewhere."""
    sheet, squares = _Sheet((640, 640)), layout.permutation(64)
    places = [*squares[:16], content.choice(squares[16:])]
    for square in range(64):
        y, x = divmod(square, 8)
        sheet.box(80 * x, 80 * y, 80, 80, fill=(240, 217, 181) if (x + y) % 2 == 0 else (181, 136, 99))
        if square in places:
            ink = "white" if places.index(square) % 2 else "black"
            sheet.pen.ellipse((80 * x + 20, 80 * y + 20, 80 * x + 60, 80 * y + 60), fill=ink, outline="grey")
    return sheet.picture


def code(_: Numbers, content: Numbers) -> Image.Image:
    """A square code, such as QR."""
    sheet, side, cell = _Sheet((476, 476)), 33, 12
    for at in np.flatnonzero(content.random(side * side) < 0.5).tolist():
        sheet.box(40 + at % side * cell, 40 + at // side * cell, cell, cell, fill=0)
    for x, y in ((0, 0), (side - 7, 0), (0, side - 7)):
        for inset, fill in enumerate(("black", "white", "black")):
            cells = 7 - 2 * inset
            sheet.box(40 + (x + inset) * cell, 40 + (y + inset) * cell, cells * cell, cells * cell, fill=fill)
    return sheet.picture


def barcode(_: Numbers, content: Numbers) -> Image.Image:
    sheet, x = _Sheet((700, 320)), 40
    while x < 640:
        width = int(content.integers(1, 5)) * 3
        sheet.box(x, 30, width, 220, fill=0)
        x += width + int(content.integers(1, 5)) * 3
    return sheet.picture


def ticket(layout: Numbers, content: Numbers) -> Image.Image:
    """Another number on a coloured ticket."""
    sheet = _Sheet((700, 300), (236, 196, 64))
    sheet.write(40, 30, _words(layout, 3).upper(), 40, (120, 20, 30))
    sheet.box(40, 100, 620, 4, fill=(120, 20, 30))
    sheet.write(40, 220, f"No. 00{_another(content, 4)}", 26)
    return sheet.picture


def x_ray(layout: Numbers, content: Numbers) -> Image.Image:
    """Other noise over the same shadow."""
    y, x = np.mgrid[0:512, 0:512] / 512
    shadow = 90 + 80 * np.exp(-((x - layout.uniform(0.3, 0.7)) ** 2 + (y - 0.5) ** 2) * 6)
    return Image.fromarray(np.clip(shadow + content.normal(0, 28, shadow.shape), 0, 255).astype(np.uint8)).convert(
        "RGB"
    )


def calendar(layout: Numbers, content: Numbers) -> Image.Image:
    """One entry on another day."""
    sheet, day = _Sheet((980, 760)), int(content.integers(0, 35))
    sheet.write(30, 14, _words(layout, 1).upper(), 30)
    for cell in range(35):
        y, x = divmod(cell, 7)
        sheet.box(10 + 137 * x, 60 + 138 * y, 138, 139, outline=(160, 160, 160))
        sheet.write(18 + 137 * x, 64 + 138 * y, str(cell + 1), 20)
        if cell == day:
            sheet.write(22 + 137 * x, 124 + 138 * y, "dentist 9:30", 18, (180, 30, 30))
    return sheet.picture


def clock(_: Numbers, content: Numbers) -> Image.Image:
    """Another time."""
    sheet, hand = _Sheet((400, 400), (230, 234, 240)), int(content.integers(0, 60))
    sheet.pen.ellipse((20, 20, 380, 380), fill="white", outline=_INK, width=6)
    for length, turns in ((150, hand / 60), (90, hand / 720 + 0.3)):
        x, y = np.sin(2 * np.pi * turns) * length, -np.cos(2 * np.pi * turns) * length
        sheet.pen.line((200, 200, 200 + float(x), 200 + float(y)), _INK, 7)
    return sheet.picture


def maze(_: Numbers, content: Numbers) -> Image.Image:
    sheet = _Sheet((600, 600))
    for cell, falling in enumerate(content.random(900) < 0.5):
        y, x = divmod(cell, 30)
        ends = ((0, 0, 20, 20) if falling else (20, 0, 0, 20)) + np.array((x, y, x, y)) * 20
        sheet.pen.line(tuple(ends.tolist()), _INK, 3)
    return sheet.picture


def handwriting(_: Numbers, content: Numbers) -> Image.Image:
    sheet = _Sheet((1000, 1300), (247, 244, 232))
    for line in range(20):
        steps = np.cumsum(np.column_stack([content.uniform(2, 9, 130), content.normal(0, 7, 130)]), axis=0)
        steps[:, 1] = 90 + 58 * line + np.clip(steps[:, 1] - steps[:, 1].mean(), -18, 18)
        sheet.pen.line([(70 + float(x), float(y)) for x, y in steps], (30, 40, 110), 3)
    return sheet.picture


def slide(layout: Numbers, content: Numbers) -> Image.Image:
    """One bullet point."""
    sheet = _Sheet((1280, 720), (24, 44, 84))
    sheet.write(80, 60, _words(layout, 4), 54, "white")
    for line in range(6):
        sheet.write(120, 190 + 80 * line, f"- {_words(content if line == 3 else layout, 5)}", 34, (210, 225, 250))
    return sheet.picture


def street_map(layout: Numbers, content: Numbers) -> Image.Image:
    """The same streets with other names."""
    sheet = _Sheet((1000, 800), (238, 236, 228))
    for _ in range(22):
        x, y = layout.uniform(0, 1000), layout.uniform(0, 800)
        sheet.pen.line((x, 0, layout.uniform(0, 1000), 800), "white", 12)
        sheet.pen.line((0, y, 1000, layout.uniform(0, 800)), (250, 220, 140), 9)
    for _ in range(40):
        sheet.write(layout.uniform(0, 880), layout.uniform(0, 780), str(content.choice(_WORDS)), 16, (90, 90, 100))
    return sheet.picture


DOCUMENTS: Final[dict[str, Draw]] = {
    draw.__name__: draw
    for draw in (
        page, page_with_one_word, receipt, receipt_with_one_digit, screenshot, chat, form, ticked_form, music,
        line_chart, bar_chart, scatter, table, spreadsheet, source_code, hex_dump, crossword, sudoku, chess, code,
        barcode, ticket, x_ray, calendar, clock, maze, handwriting, slide, street_map,
    )
}  # fmt: skip
