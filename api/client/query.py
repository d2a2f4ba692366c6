"""The queries of LikenessClient as the bytes of requests."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
from urllib3.filepost import encode_multipart_formdata

if TYPE_CHECKING:
    from PIL.Image import Image

ImageLike: TypeAlias = "str | os.PathLike[str] | bytes | Image"
"""A path, the bytes of a file, or a PIL image, which is sent upright and as PNG."""

EXAMPLE_FIELDS: Final = ("url", "image", "text", "id", "embedding")
_PNG_MODES: Final = frozenset({"1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"})


class Example(TypedDict, total=False):
    """One part of a mix: exactly one of the first five. A negative `weight` (default 1) means unlike it.

    `crop` takes a part of the picture: x, y, width and height, as shares of the upright picture.
    """

    url: str
    image: ImageLike
    text: str
    id: str
    embedding: npt.ArrayLike
    crop: Sequence[float] | None
    weight: float


class Search(TypedDict, total=False):
    """Exactly one of `url`, `image`, `text`, `id`, `embedding` and `queries` (a mix); others are the server's options.

    `id` is of an image of the index, `embedding` is `(dim,)` of any length but zero, and `crop` as in Example. `filter`
    names columns and conditions (see `index.filters`); `distinct` folds images whose cosine with a better match reaches
    it (True: 0.98); `diversity`, 0 to 1, prefers images unlike those before them; `fields` are the metadata columns to
    return; with `allow_partial` a part of the index that does not answer is left out (see `SearchResult.searched`).
    None counts as not given.
    """

    url: str | None
    image: ImageLike | None
    text: str | None
    id: str | None
    embedding: npt.ArrayLike | None
    queries: Sequence[Example] | None
    crop: Sequence[float] | None
    k: int
    offset: int
    min_score: float | None
    min_percentile: float | None
    filter: Mapping[str, Any] | None
    distinct: float | bool | None
    diversity: float | None
    fields: Sequence[str] | None
    allow_partial: bool | None


@dataclass(frozen=True, kw_only=True)
class Body:
    data: bytes
    media_type: str

    @classmethod
    def json(cls, text: str) -> Self:
        return cls(data=text.encode(), media_type="application/json")


def search_body(search: Search) -> Body:
    """The body of a search. A single picture is sent by multipart: base64 would make it a third larger."""
    given = {name: value for name, value in search.items() if value is not None}
    if given.keys() & {*EXAMPLE_FIELDS, "queries"} != {"image"}:
        return Body.json(search_text(search))
    picture: Any = given.pop("image")
    parts = [(name, value if isinstance(value, str) else json_text(value)) for name, value in given.items()]
    data, media_type = encode_multipart_formdata(
        [*parts, ("image", ("image", image_bytes(picture), "application/octet-stream"))]
    )
    return Body(data=data, media_type=media_type)


def search_text(search: Search) -> str:
    document = _plain_example(search)
    if "queries" in document:
        document["queries"] = [_plain_example(example) for example in document["queries"]]
    return json_text(document)


def json_text(value: object) -> str:
    """A value as JSON. ValueError for a number that JSON does not have, TypeError for any other such object."""
    return json.dumps(value, default=_plain, allow_nan=False)


def image_text(image: ImageLike) -> str:
    return base64.b64encode(image_bytes(image)).decode("ascii")


def image_bytes(image: ImageLike) -> bytes:
    """The bytes of a picture's file. OSError when it cannot be read, TypeError for anything but a picture."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    return _png(image)


def _png(image: Image) -> bytes:
    if not hasattr(image, "getexif"):
        raise TypeError(f"got a picture as {type(image).__name__}: expected a path, the bytes of a file or a PIL image")
    from PIL import ImageOps  # a caller with such an image has pillow

    # Rotated like the server would rotate the file that it comes from.
    upright = ImageOps.exif_transpose(image)
    target = io.BytesIO()
    (upright if upright.mode in _PNG_MODES else upright.convert("RGB")).save(target, "PNG", compress_level=1)
    return target.getvalue()


def _plain_example(example: Example | Search) -> dict[str, Any]:
    """The given fields, with a picture as text and a vector as a list."""
    plain: dict[str, Any] = {name: value for name, value in example.items() if value is not None}
    if "image" in plain:
        plain["image"] = image_text(plain["image"])
    if "embedding" in plain:
        plain["embedding"] = np.asarray(plain["embedding"], np.float32).tolist()
    return plain


def _plain(value: object) -> object:
    """A filter's value for JSON: filters may hold a column's values, such as times and numpy's numbers."""
    match value:
        case np.generic() | np.ndarray():
            return value.tolist()
        case date():  # a datetime is a date too
            return value.isoformat()
        case Mapping():
            return dict(value)
        case Sequence() | set() | frozenset():
            return list(value)
        case _:
            raise TypeError(f"got {value!r}: expected what JSON can hold, a time or a number of numpy")
