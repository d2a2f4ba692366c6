"""Which of several pictures is the best to keep."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

_REASONS: Final = ("more pixels", "lossless format", "larger file", "has EXIF", "older file", "first by name")
_LOSSLESS: Final = frozenset({"png", "gif", "bmp", "tiff", "raw"})
_NO_DATE: Final = datetime.max.replace(tzinfo=UTC)
PREFERRED_FIRST: Final = f"""
SELECT number FROM pictures
ORDER BY coalesce(width, 0)::BIGINT * coalesce(height, 0) DESC,
         coalesce(format, '') NOT IN {(*sorted(_LOSSLESS),)}, coalesce(size, 0) DESC, modified NULLS LAST, image_id
"""
"""SQL that sorts a table `pictures` like `preference`, as far as rows tell; gives their column `number`."""


def preference(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """A sort key, best picture first. `facts` are a row's columns, and `lossless` and `exif` if the file was read."""
    lossless = facts.get("lossless")
    return (
        -(facts["width"] or 0) * (facts["height"] or 0),
        not (facts["format"] in _LOSSLESS if lossless is None else lossless),
        -(facts["size"] or 0),
        not facts.get("exif"),
        facts["modified"] or _NO_DATE,
        facts["image_id"],
    )


def reason(kept: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why `kept` is preferred to `other`: the first criterion in which they differ."""
    pairs = zip(_REASONS, preference(kept), preference(other), strict=True)
    return next(name for name, one, two in pairs if one != two)
