"""Turns the queries of LikenessClient into bodies of requests."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from typing_extensions import TypedDict, TypeIs
from urllib3.filepost import encode_multipart_formdata

from api.documents import SOURCE_FIELDS, decode_base64
from api.search.query import QueryOptions, Weighted
from index.filters.plain import json_value

if TYPE_CHECKING:
    from PIL.Image import Image

ImageLike: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes] | Image"
"""A path, a `data:` URL in base64, a file's bytes, a file opened in binary mode, or a PIL image, which is sent upright
as PNG.
"""
_A_PICTURE: Final = "expected a picture as a path, a file's bytes, a file opened in binary mode or a PIL image"

UNUSABLE: Final = (OSError, TypeError, ValueError)
"""What a search raises that is wrong before it is sent, for example because its picture's file is not there."""


class _Source(TypedDict, total=False):
    url: str | None
    image: ImageLike | None
    text: str | None
    id: str | None
    embedding: npt.ArrayLike | None
    crop: Sequence[float] | None


class Example(_Source, Weighted, total=False):
    """One part of a mix: exactly one of the first five fields. A negative `weight` (default 1) means unlike it.

    `crop` selects a part of the picture: x, y, width and height, as fractions of the upright picture.
    """


class Sources(_Source, total=False):
    queries: Sequence[Example] | None


class Search(Sources, QueryOptions, total=False):
    """At most one of `url`, `image`, `text`, `id`, `embedding` and `queries` (a mix), and options.

    `id` is the id of an indexed image, `embedding` is `(dim,)` with any norm except zero, and `crop` is as in Example.
    None counts as absent.
    """


def with_options(search: Search, options: QueryOptions) -> Search:
    """The search, with those of the options that it does not set. Raises TypeError if it is not a mapping."""
    if not isinstance(search, Mapping):
        raise TypeError(f'got {search!r:.80}: expected a search, such as {{"text": "a red star"}}')
    return cast(Search, {**options, **set_fields(Search, search)})


def check_known(keywords: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError, which names the keywords that would have no effect, such as misspelt ones."""
    unknown = sorted({*keywords} - {*known})
    if unknown:
        raise TypeError(f"got {', '.join(unknown)}: expected keywords among {', '.join(known)}")


def set_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None. TypeError for one that `kind`, a TypedDict, does not have."""
    check_known(values, kind.__annotations__)
    return {name: value for name, value in values.items() if value is not None}


def items_of(given: Any, one: str, expected: str) -> Iterable[Any]:
    """The items of a list, an iterator or a column. TypeError for one thing where a list is `expected`, because its
    letters, bytes or keys would pass for items, and for a table, whose items are the names of its columns.
    """
    if hasattr(given, "columns"):
        raise TypeError(f"got a table, a {type(given).__name__}, not one of its columns: expected {expected}")
    one_thing = isinstance(given, str | bytes | bytearray | memoryview | os.PathLike | Mapping)
    if one_thing or is_binary_file(given) or _is_pil_image(given) or not isinstance(given, Iterable):
        raise TypeError(f"got one {one}, {given!r:.60}: expected {expected}")
    return given.to_pylist() if hasattr(given, "to_pylist") else given  # Arrow's items are not Python's


def checked_id(image_id: object) -> str:
    if not isinstance(image_id, str):
        raise TypeError(f"got id {image_id!r:.80}: expected text")
    return image_id


@dataclass(frozen=True, kw_only=True)
class Body:
    data: bytes
    media_type: str

    @classmethod
    def json(cls, text: str) -> Self:
        return cls(data=text.encode(), media_type="application/json")


def search_body(search: Search) -> Body:
    """The body of a search. A single picture is sent as multipart, because base64 would make it a third larger."""
    fields = set_fields(Search, search)
    if fields.keys() & {*SOURCE_FIELDS, "queries"} != {"image"}:
        return Body.json(search_json(search))
    picture: Any = fields.pop("image")
    texts = {name: value if isinstance(value, str) else to_json(value) for name, value in fields.items()}
    # The server says what is wrong with text that is not UTF-8.
    parts = [(name, text.encode(errors="surrogatepass")) for name, text in texts.items()]
    data, media_type = encode_multipart_formdata(
        [*parts, ("image", ("image", image_bytes(picture), "application/octet-stream"))]
    )
    return Body(data=data, media_type=media_type)


def search_json(search: Search, **others: object) -> str:
    document = _json_fields(Search, search) | others
    if "queries" in document:
        document["queries"] = [_json_fields(Example, example) for example in examples_in(document["queries"])]
    return to_json(document)


def examples_in(queries: object) -> Sequence[Example]:
    """The examples of a mix. TypeError for anything but a list of mappings, such as a data frame."""
    if isinstance(queries, Sequence) and all(isinstance(example, Mapping) for example in queries):
        return queries
    raise TypeError(f'got {queries!r:.80} in queries: expected a list of examples, such as [{{"id": "a.jpg"}}]')


def to_json(value: object) -> str:
    """A value as JSON, with NaN and infinity, which the server refuses by the name of their field or column. Raises
    TypeError for other values that JSON cannot represent.
    """
    return json.dumps(value, default=json_value)


def image_base64(image: ImageLike) -> str:
    return base64.b64encode(image_bytes(image)).decode("ascii")


def image_bytes(image: ImageLike) -> bytes:
    """The bytes of a picture's file. Raises OSError if it cannot be read, ValueError for a `data:` URL that is not in
    base64 and for other URLs, TypeError for anything else.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if is_binary_file(image):
        return image.read()
    if isinstance(image, str) and image[:5].lower() == "data:":
        return decode_base64(image)
    if isinstance(image, str) and re.match(r"[a-z][a-z\d+.-]+://", image, re.IGNORECASE):
        raise ValueError(f"{_A_PICTURE}, got {image!r:.80}: in a search use url=…, elsewhere download it first")
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    return _png(image)


def is_binary_file(value: object) -> TypeIs[IO[bytes]]:
    """Whether a value is an open file of bytes: of `open`, `tempfile`, an upload or a file system in the cloud."""
    return hasattr(value, "read") and not isinstance(value, io.TextIOBase)


def _png(image: Image) -> bytes:
    if not _is_pil_image(image):
        raise TypeError(f"{_A_PICTURE}, got {type(image).__name__}")
    from embedder.images.decode import as_displayed  # a caller with a PIL image has pillow

    target = io.BytesIO()
    as_displayed(image).save(target, "PNG", compress_level=1, exif=b"")
    return target.getvalue()


def _is_pil_image(value: object) -> bool:
    return hasattr(value, "getexif")  # Pillow may not be installed


def _json_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None, with a picture as base64 and a vector as a list."""
    document = set_fields(kind, values)
    if "image" in document:
        document["image"] = image_base64(document["image"])
    if "embedding" in document:
        document["embedding"] = vector_of(document["embedding"]).tolist()
    return document


def vector_of(embedding: object) -> npt.NDArray[np.float64]:
    """Raises TypeError for anything but one list of numbers."""
    try:
        vector = np.asarray(embedding)
    except ValueError as error:
        raise TypeError(f"expected a vector, got lists of different lengths ({error})") from error
    if vector.dtype.kind not in "iuf":
        raise TypeError(f"expected a vector, a list of numbers, got {embedding!r:.80}")
    if vector.ndim != 1:
        advice = ": give one row of it" if vector.ndim > 1 else ""
        raise TypeError(f"expected a vector, (dim,), got {vector.shape}{advice}")
    return vector.astype(np.float64)
