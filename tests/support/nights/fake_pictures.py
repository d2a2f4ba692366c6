"""Pictures that are never decoded: their bytes, and what rows say of them; and filters of these."""

import hashlib
from collections.abc import Callable
from typing import Any, Final

from tests.jobs.planning.decisions import Image, Keep

CONTENTS: Final = range(8)
BROKEN: Final = 7
"""The content that is no picture."""


def data_of(content: int) -> bytes:
    return str(content).encode().ljust(100 + 20 * (content // 4))


HASHES: Final = {content: hashlib.sha256(data_of(content)).hexdigest() for content in CONTENTS}


def facts_of(content: int) -> Image:
    """What is known once the file was read."""
    facts: Image = {"content_hash": HASHES[content], "size": len(data_of(content))}
    if content == BROKEN:
        return facts
    return facts | {"width": (16, 64)[content % 2], "height": 16, "format": "png", "brightness": content % 3 / 2}


def vector_of(content_hash: str, model: str) -> list[float]:
    """A made-up vector of a content by a model."""
    return [float(int(content_hash[:4], 16)), float(ord(model)), 0.0, 1.0]


def camera_of(content_hash: str) -> str:
    """A made-up value from EXIF."""
    return f"camera {content_hash[:4]}"


def _keeping(
    *conditions: tuple[str | None, Callable[[Image], bool]], measured: bool = False, mixed: bool = False
) -> Keep:
    """A filter of conditions, each with the fact or measure that it needs."""

    def judge(image: Image) -> tuple[bool, bool]:
        known = [test for fact, test in conditions if fact is None or image.get(fact) is not None]
        return not all(test(image) for test in known), len(known) == len(conditions)

    return Keep(judge=judge, measured=measured, mixed=mixed)


_WIDE: Final = ("width", lambda image: image["width"] >= 32)
_BRIGHT: Final = ("brightness", lambda image: image["brightness"] >= 0.5)
_WIDE_TEXT, _BRIGHT_TEXT = {"width": {"$gte": 32}}, {"brightness": {"$gte": 0.5}}
EVERYTHING: Final = (dict[str, Any](), Keep())
KEEPS: Final[list[tuple[dict[str, Any], Keep]]] = [
    ({"size": {"$gte": 110}}, _keeping(("size", lambda image: image["size"] >= 110))),
    ({"label": "cat"}, _keeping((None, lambda image: image["label"] == "cat"))),
    (_WIDE_TEXT, _keeping(_WIDE)),
    (_BRIGHT_TEXT, _keeping(_BRIGHT, measured=True)),
    (_WIDE_TEXT | _BRIGHT_TEXT, _keeping(_WIDE, _BRIGHT, measured=True)),
    (
        {"$or": [{"label": "cat"}, _BRIGHT_TEXT]},
        _keeping(
            ("brightness", lambda image: image["label"] == "cat" or image["brightness"] >= 0.5),
            measured=True,
            mixed=True,
        ),
    ),
]
"""Filters, each as an expression and as a function."""
