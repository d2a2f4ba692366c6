"""Pictures with words drawn on them, in five scripts: Latin, simplified and traditional Chinese, hiragana, katakana.

The fonts come with matplotlib and with matplotlib-fontja.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from embedder.ocr.line_reader import MAX_PIXELS

Numbers = np.random.Generator

_LATIN_FONTS: Final = [
    f"matplotlib/mpl-data/fonts/ttf/{name}.ttf"
    for name in ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral")
]
_EAST_ASIAN_FONTS: Final = ["matplotlib_fontja/fonts/ipaexg.ttf"]
_SIZES: Final = [
    (480, 360),
    (640, 480),
    (1024, 768),
    (1280, 720),
    (1920, 1080),
    (2400, 3200),
    (4000, 3000),
    (1080, 4000),
]
_MAX_ANGLE: Final = 15.0
_MIN_CONTRAST: Final = 90  # grey levels between paper and ink
_MAX_NOISE: Final = 20.0  # standard deviation in grey levels

_WORDS: Final = {
    "Latin": """
        invoice total receipt platform exit danger coffee bakery museum station ticket window welcome closed
        Monday October fragile handle bicycle harbour library pharmacy Straße Bäckerei Ausgang Übung façade
        château forêt élève señor mañana corazón łódka żółty gęś český příklad Århus smørrebrød København
        İstanbul güneş România știință Budapest könyvtár SALE MENU OPEN STOP HOTEL CAFÉ 2026 1984 42.50 07:30
    """,
    "simplified Chinese": """
        中国 北京 上海 天津 学校 大学 医院 出口 入口 公司 安全 小心 天气 早晨 朋友 水果 牛肉 火山 会社 来年 国宝
        中心 文化 体育 世界 人民 生活 友好
    """,
    "traditional Chinese": """
        電話 號碼 圖書館 臺灣 廣東 鐵路 學校 銀行 國家 歷史 醫學 會議 車站 飛機 動物園 藝術 漢字 機場 開門 經濟
        龍門 體育 廳堂 觀光 麵包 雞肉 樂園 營業
    """,
    "hiragana": """
        こんにちは ありがとう さようなら おはよう おいしい たのしい すばらしい さくら うみ やま かわ そら ひかり
        ともだち せんせい がっこう でんしゃ くるま りんご みかん たまご ごはん おちゃ ねこ いぬ とり
    """,
    "katakana": """
        コーヒー ホテル レストラン タクシー バス テレビ ラジオ カメラ ケーキ チーズ パン ミルク ジュース サラダ
        アイスクリーム スーパー デパート エレベーター コンピューター インターネット スポーツ サッカー テニス
        ギター
    """,
}
SCRIPTS: Final = tuple(_WORDS)


@dataclass(frozen=True, kw_only=True)
class DrawnWords:
    """A JPEG with `words` of a script on it.

    `read_height` is the font's size in pixels once the picture is reduced to what is read.
    """

    data: bytes
    script: str
    words: Sequence[str]
    read_height: float


def draw_words(number: int) -> DrawnWords:
    """The picture with this number: one to four lines of up to three words, of random size, colour, font and angle."""
    numbers = np.random.default_rng([36, number])
    script = SCRIPTS[number % len(SCRIPTS)]
    fonts = _LATIN_FONTS if script == "Latin" else _EAST_ASIAN_FONTS
    size = _SIZES[numbers.integers(len(_SIZES))]
    lines = [
        list(numbers.choice(_WORDS[script].split(), numbers.integers(1, 4))) for _ in range(numbers.integers(1, 5))
    ]
    angle = numbers.uniform(-_MAX_ANGLE, _MAX_ANGLE)
    height = round(np.exp(numbers.uniform(np.log(max(16, 0.012 * max(size))), np.log(0.12 * min(size)))))
    font = fonts[numbers.integers(len(fonts))]
    mask = _rotated_text(lines, font, height, angle)
    while mask.width > size[0] or mask.height > size[1]:
        height = int(height * 0.9)
        mask = _rotated_text(lines, font, height, angle)
    picture = _paper(size, numbers)
    left, top = (int(numbers.integers(0, room + 1)) for room in (size[0] - mask.width, size[1] - mask.height))
    picture.paste(_ink(picture, numbers), (left, top), mask)
    target = io.BytesIO()
    _noisy(picture, numbers).save(target, "JPEG", quality=int(numbers.integers(70, 96)))
    scale = min(1.0, (MAX_PIXELS / (size[0] * size[1])) ** 0.5)
    return DrawnWords(
        data=target.getvalue(),
        script=script,
        words=[str(word) for line in lines for word in line],
        read_height=height * scale,
    )


def _rotated_text(lines: Sequence[Sequence[str]], name: str, height: int, angle: float) -> Image.Image:
    text, font = "\n".join(" ".join(line) for line in lines), _font(name, height)
    left, top, right, bottom = ImageDraw.Draw(Image.new("L", (1, 1))).multiline_textbbox(
        (0, 0), text, font, spacing=height / 2
    )
    margin = height // 2
    mask = Image.new("L", (round(right - left) + 2 * margin, round(bottom - top) + 2 * margin))
    ImageDraw.Draw(mask).multiline_text((margin - left, margin - top), text, 255, font, spacing=height / 2)
    return mask.rotate(angle, Image.Resampling.BICUBIC, expand=True)


@cache
def _font(name: str, height: int) -> ImageFont.FreeTypeFont:
    package, _, path = name.partition("/")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no fonts to draw with: pip install {package.replace('_', '-')}")
    return ImageFont.truetype(Path(spec.origin).parent / path, height)


def _paper(size: tuple[int, int], numbers: Numbers) -> Image.Image:
    """A colour that changes gradually from corner to corner."""
    corners = numbers.integers(0, 256, 3) + numbers.integers(-30, 31, (2, 2, 3))
    small = Image.fromarray(np.clip(corners, 0, 255).astype(np.uint8))
    return small.resize(size, Image.Resampling.BILINEAR)


def _ink(paper: Image.Image, numbers: Numbers) -> tuple[int, ...]:
    """A colour that differs from the paper in luma."""
    luma = np.asarray(paper.convert("L").resize((8, 8)), np.float64)
    while True:
        ink = numbers.integers(0, 256, 3)
        if np.abs(luma - ink @ (0.299, 0.587, 0.114)).min() >= _MIN_CONTRAST:
            return tuple(ink.tolist())


def _noisy(picture: Image.Image, numbers: Numbers) -> Image.Image:
    tile = numbers.normal(0, numbers.uniform(0, _MAX_NOISE), (512, 512, 1)).round().astype(np.int16)
    repeats = -(-picture.height // 512), -(-picture.width // 512), 1
    noise = np.tile(tile, repeats)[: picture.height, : picture.width]
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))
