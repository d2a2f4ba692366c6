"""Sources of images: what there is to embed, as one Arrow table with a row per image.

A source is a folder or bucket prefix, a list (Parquet, CSV, JSONL) with a `uri` or `url` column, Parquet files with a
column of image bytes, or WebDataset tars. Whatever it is, a listing begins with the columns of `LISTING`: a `uri` that
names the bytes by itself (a member of a tar or a cell of a Parquet file by a fragment, see `embedder.fetch`) and what
tells whether the image has changed. Every further column is metadata that goes with the image.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from index.storage import Storage
from jobs.errors import SourceError
from jobs.listing import IMAGE_EXTENSIONS, SourceFile, extension, listing_table
from jobs.tables import list_table_files
from jobs.tars import list_tars

TABLE_EXTENSIONS = ("parquet", "csv", "jsonl", "ndjson")


def list_images(location: str, *, extensions: Sequence[str] = IMAGE_EXTENSIONS) -> pa.Table:
    """List the images of a source: files by name, rows of tables and tars as they come.

    Returns the columns of `LISTING`, then metadata. Raises `SourceError` where the source is missing, empty or
    unreadable, or where one id stands for two images.
    """
    files = _files(location)
    of_kind = {
        "image": [f for f in files if extension(f.path) in extensions],
        "tar": [f for f in files if extension(f.path) == "tar"],
        "table": [f for f in files if extension(f.path) in TABLE_EXTENSIONS],
    }
    if of_kind["image"]:
        listing = _list_files(of_kind["image"])
    elif of_kind["tar"]:
        listing = list_tars(of_kind["tar"])
    elif of_kind["table"]:
        listing = list_table_files(of_kind["table"])
    else:
        raise SourceError(_nothing_found(location, files, extensions))
    if listing.num_rows == 0:
        raise SourceError(f"{location} lists no images: its tables or tars have no rows")
    return _unique(location, listing)


def _files(location: str) -> list[SourceFile]:
    """The files of a source: one, or all below a folder or prefix but for hidden ones."""
    if not location:
        raise SourceError("the source is empty: give a folder, a bucket prefix, a list of URLs, Parquet files or tars")
    if location.startswith(("http://", "https://")):
        raise SourceError(
            f"{location}: a source cannot be one web address. Put URLs in a list: a CSV with a column `url`"
        )
    try:
        storage = Storage.open(location)
        info = storage.filesystem.get_file_info(storage.root)
        if info.type == fs.FileType.File:
            name = PurePosixPath(storage.root).name
            return [SourceFile.of(storage, info, name)]
        if info.type == fs.FileType.NotFound:
            raise SourceError(_not_found(location))
        infos = storage.filesystem.get_file_info(fs.FileSelector(storage.root, recursive=True))
    except OSError as error:
        raise SourceError(f"cannot list {location}: {error}") from error
    prefix = len(storage.root.rstrip("/")) + 1
    named = [(info, info.path[prefix:]) for info in infos if info.type != fs.FileType.Directory]
    return [SourceFile.of(storage, info, name) for info, name in named if not _hidden(name)]


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def _list_files(files: list[SourceFile]) -> pa.Table:
    """One row per image file; the folder that holds it is its `label`."""
    files = sorted(files, key=lambda f: f.name)
    labels = [PurePosixPath(f.name).parent.name or None for f in files]
    return listing_table(
        {
            "image_id": [f.name for f in files],
            "uri": [f.uri for f in files],
            "size": [f.size for f in files],
            "modified": [f.modified for f in files],
        },
        {"label": pa.array(labels, pa.string())},
    )


def _unique(location: str, listing: pa.Table) -> pa.Table:
    """Drop rows that repeat an image; refuse an id that stands for two different ones."""
    counts = pc.value_counts(listing["image_id"])
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated) == 0:
        return listing
    again = listing.filter(pc.is_in(listing["image_id"], value_set=repeated))
    uris_of = again.group_by("image_id").aggregate([("uri", "count_distinct"), ("uri", "min"), ("uri", "max")])
    clashes = uris_of.filter(pc.greater(uris_of["uri_count_distinct"], 1))
    if clashes.num_rows:
        first = clashes.slice(0, 1).to_pylist()[0]
        raise SourceError(
            f"{location}: {clashes.num_rows} ids stand for more than one image, among them {first['image_id']!r} "
            f"({first['uri_min']} and {first['uri_max']}). Ids must be unique"
        )
    numbered = listing.append_column("_row", pa.array(range(listing.num_rows), pa.int64()))
    firsts = numbered.group_by("image_id").aggregate([("_row", "min")])["_row_min"]
    return listing.take(firsts.combine_chunks().sort())


def _not_found(location: str) -> str:
    if "://" in location:
        return f"{location} does not exist, or holds nothing. Check the bucket, the prefix and the credentials"
    path = Path(location).absolute()
    existing = next(parent for parent in path.parents if parent.exists())
    return f"{location} does not exist (nothing below {existing} by that name)"


def _nothing_found(location: str, files: list[SourceFile], extensions: Iterable[str]) -> str:
    wanted = f"images ({', '.join(extensions)}), tars or lists ({', '.join(TABLE_EXTENSIONS)})"
    if not files:
        return f"{location} is empty: expected {wanted}"
    seen = sorted({extension(f.path) or "no extension" for f in files})[:8]
    return (
        f"{location} holds {len(files)} files but none that can be embedded: expected {wanted}, found {', '.join(seen)}"
    )
