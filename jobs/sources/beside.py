"""Joins what lies beside the pictures of a folder to them: captions in .txt files, and lists that name the pictures."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from embedder.errors import FetchError
from embedder.fetch import Fetcher
from embedder.fetch.policy import FetchPolicy
from index.collection.rows import TEXT
from index.storage.picture_reader import PictureReader
from jobs.sources.listing import LISTING, Column, Listed, escaped, with_columns
from jobs.sources.text_encoding import captions

MAX_SIDECAR_BYTES = 1_000_000
_THREADS = 16


def with_captions(images: pa.Table, texts: pa.Table, notes: dict[str, list[str]]) -> Listed:
    """The images with a column `txt` of the texts in `a.txt` or `a.jpg.txt`, if there are any. Texts without an image
    are left out. `notes` gets the names of texts by what to say about them.
    """
    names = _without_extension(texts["image_id"])
    found = pc.coalesce(
        pc.index_in(images["image_id"], value_set=names),
        pc.index_in(_without_extension(images["image_id"]), value_set=names),
    )
    used = pc.unique(found.drop_null())
    left_out = Counter({".txt": len(texts) - len(used)})
    if not len(used):
        return Listed(images=images, left_out=+left_out)
    contents = _read(texts.take(used), notes)
    left_out[".txt that cannot be read, or of more than 1 MB"] = contents.count(None)
    column = pa.array(contents, TEXT).take(pc.index_in(found, value_set=used))
    return Listed(images=with_columns(images, {"txt": column}), left_out=+left_out)


def _without_extension(names: Column) -> Column:
    stems: Column = pc.replace_substring_regex(names, r"\.[^./]*$", "")
    return stems


def _read(texts: pa.Table, notes: dict[str, list[str]]) -> list[str | None]:
    fetcher = Fetcher(FetchPolicy(max_bytes=MAX_SIDECAR_BYTES), buckets=PictureReader())

    def read(uri: str) -> bytes | None:
        try:
            return fetcher.fetch(uri)
        except FetchError:
            return None

    with ThreadPoolExecutor(_THREADS) as pool:
        contents = list(pool.map(read, texts["uri"].to_pylist()))
    names: list[Any] = texts["image_id"].to_pylist()
    return captions(contents, names, notes)


def join_lists(images: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The images that no row of a list names; and the rows, with the facts of those images that they name.

    A row `without_id` gets that of its image, and the columns of both; the list's take precedence.
    """
    if not (images.num_rows and rows.num_rows):
        return images, rows
    at = pc.index_in(places(rows["uri"]), value_set=places(images["uri"]))
    facts = images.take(at)
    joined = {name: pc.coalesce(rows[name], facts[name]) for name in ("size", "modified", "etag")}
    names = pc.if_else(without_id(rows), facts["image_id"], pa.scalar(None, TEXT))
    joined["image_id"] = pc.coalesce(names, rows["image_id"])
    joined["uri"] = pc.coalesce(facts["uri"], rows["uri"])
    metadata = images.column_names[len(LISTING) :]
    joined |= {name: facts[name] for name in metadata if name not in rows.column_names}
    others = pc.invert(pc.is_in(pa.array(range(len(images)), pa.int32()), value_set=at.drop_null()))
    return images.filter(others), with_columns(rows, joined)


def without_id(rows: pa.Table) -> Column:
    """A mask of the rows of lists that have no id of their own, but their address."""
    mask: Column = pc.equal(rows["image_id"], rows["uri"]).fill_null(False)
    return mask


def places(uris: Column) -> Column:
    """`place` of each address."""
    return pa.array([None if uri is None else place(uri) for uri in uris.to_pylist()], TEXT)


def place(uri: str) -> str:
    """An address in one spelling: a path without `.` and `..`, of a local file without file://."""
    scheme, mark, path = uri.partition("://")
    if scheme == "file" and mark:
        return escaped(os.path.normpath(unquote(path, errors="surrogateescape")))
    return f"{scheme}{mark}{os.path.normpath(path)}" if mark else os.path.normpath(uri)
