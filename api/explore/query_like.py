"""Determines the kind of a query without a keyword, as in `likeness.search("a red star")`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from api.client.query import Example, ImageLike, is_binary_file, vector_of
from embedder.fetch.uris import scheme_of
from embedder.images.formats import IMAGE_EXTENSIONS
from index.matches import Match
from index.search import Searcher

if TYPE_CHECKING:
    from PIL.Image import Image

_SEPARATOR = re.compile(r"[/\\]")
_PATH = re.compile(r"(~|\.{0,2})[/\\]|[A-Za-z]:[/\\]|.*[/\\]$")

BareQuery: TypeAlias = (
    "str | PathLike[str] | bytes | IO[bytes] | Image | npt.NDArray[np.generic] | Sequence[float] | Match"
)
"""A URL, id, path or words; a picture's file, as its bytes or opened in binary mode; a PIL image; pixels; a vector; a
match.
"""


def example_of(query: BareQuery, searcher: Searcher) -> Example:
    """The example that a bare query stands for.

    A string is a URL if it has a scheme, an id if the index has it, a path if the file exists, otherwise words. Raises
    FileNotFoundError for words that look like a path or end like a picture's file name, IsADirectoryError for the path
    of a folder, and TypeError for anything that cannot be a query.
    """
    match query:
        case Match():
            return {"id": query.image_id}
        case str():
            return _of_text(query, searcher)
        case np.ndarray() if query.ndim == 3 or (query.ndim == 2 and query.dtype.kind in "bui"):
            return {"image": _picture(query)}
        case np.ndarray() | list() | tuple():
            numeric = (int, float, np.number, np.ndarray, list, tuple)
            if not isinstance(query, np.ndarray) and len(query) and not isinstance(query[0], numeric):
                raise TypeError(
                    f"got a list of {type(query[0]).__name__}: expected one query, or a vector, a list of numbers; use "
                    'search_batch(…) for a result for each query, and queries=[{"image": path}, …] for a mix'
                )
            return {"embedding": vector_of(query)}
        case bytes() | PathLike():
            return {"image": query}
        case _ if is_binary_file(query):
            return {"image": query.read()}  # now, because it may be searched for again
        case _ if hasattr(query, "getexif"):
            return {"image": cast(ImageLike, query)}
    raise TypeError(
        f"got a query of type {type(query).__name__}: expected a string (URL, id, path or words), a path, a picture "
        "(its file, as bytes or opened in binary mode, a PIL image, or pixels of shape (height, width, 3)), a vector "
        "or a match"
    )


def _of_text(query: str, searcher: Searcher) -> Example:
    if scheme_of(query) != "file" or query.startswith("file:"):
        return {"url": query}
    if searcher.row(query) is not None:
        return {"id": query}
    if _is(Path.is_file, query):
        return {"image": query}
    if _SEPARATOR.search(query) and _is(Path.is_dir, query):  # a word is not a path, even if a folder has its name
        raise IsADirectoryError(f"{query!r} is a folder: expected a picture in it, an id, a URL or words")
    if _PATH.match(query) or Path(query).suffix.lower().lstrip(".") in IMAGE_EXTENSIONS:
        raise FileNotFoundError(
            f"{query!r} is neither a file nor an image of index version {searcher.version}: expected a path, an id, a "
            "URL or words; use text=… for words that look like a path"
        )
    return {"text": query}


def _is(kind: Callable[[Path], bool], path: str) -> bool:
    try:
        return kind(Path(path))
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return False


def _picture(pixels: npt.NDArray[np.generic]) -> Image:
    from embedder.images.deep_pixels import image_of

    if pixels.dtype.kind not in "bui" or pixels.shape[2:] not in ((), (3,), (4,)) or not pixels.size:
        raise TypeError(
            f"got pixels as {pixels.dtype} {pixels.shape}: expected uint8 (height, width) or (height, width, 3 or 4), "
            "or other whole numbers, which are taken as the same values in a file would be"
        )
    return image_of(pixels, alpha="straight" if pixels.shape[2:] == (4,) else None)
