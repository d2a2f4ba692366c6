"""Sources of images: what there is to embed, as one Arrow table with a row per image.

A source is a folder or bucket prefix, a list (Parquet, CSV, JSONL) with a `uri` or `url` column, Parquet files with a
column of image bytes, or WebDataset tars. Whatever it is, a listing begins with the columns of `LISTING`: a `uri` that
names the bytes by itself (a member of a tar or a cell of a Parquet file by a fragment, see `embedder.fetch`) and what
tells whether the image has changed. Every further column is metadata that goes with the image.
"""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from index.clouds import without_secrets
from jobs.errors import EmptySourceError, SourceError
from jobs.files import SourceFile, extension, source_files
from jobs.listing import IMAGE_EXTENSIONS, listing_table
from jobs.tables import list_table_files
from jobs.tars import list_tars

TABLE_EXTENSIONS = ("parquet", "csv", "jsonl", "ndjson")


def list_images(location: str, *, extensions: Sequence[str] = IMAGE_EXTENSIONS) -> pa.Table:
    """List the images of a source: files by name, rows of tables and tars as they come.

    Returns the columns of `LISTING`, then metadata. Raises `EmptySourceError` where there are no images, and
    `SourceError` where the source is missing or unreadable, or one id stands for two images.
    """
    files = source_files(location)
    location = without_secrets(location)  # from here on it is only shown
    of_kind = {
        "image": [f for f in files if extension(f.path) in extensions],
        "tar": [f for f in files if extension(f.path) == "tar"],
        "table": [f for f in files if extension(f.path) in TABLE_EXTENSIONS],
    }
    if of_kind["image"]:
        listing = _list_files(of_kind["image"])
    elif of_kind["tar"]:
        listing = list_tars(of_kind["tar"], extensions)
    elif of_kind["table"]:
        listing = list_table_files(of_kind["table"])
    else:
        raise EmptySourceError(_nothing_found(location, files, extensions))
    if listing.num_rows == 0:
        raise EmptySourceError(f"{location} lists no images: its tables or tars have no rows")
    return _unique(location, listing)


def _list_files(files: list[SourceFile]) -> pa.Table:
    """One row per image file; the folder that holds it is its `label`."""
    labels = [PurePosixPath(f.name).parent.name or None for f in files]
    return listing_table(
        {
            "image_id": [f.name for f in files],
            "uri": [f.uri for f in files],
            "size": [f.size for f in files],
            "modified": [f.modified for f in files],
            "etag": [f.etag for f in files],
        },
        {"label": pa.array(labels, pa.string())},
    )


def _unique(location: str, listing: pa.Table) -> pa.Table:
    """Drop rows that repeat an image; refuse an id that stands for two different ones."""
    counts = pc.value_counts(listing["image_id"])
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), pa.scalar(1)))
    if len(repeated) == 0:
        return listing
    again = listing.select(["image_id", "uri"]).filter(pc.is_in(listing["image_id"], value_set=repeated))
    every = pc.CountOptions(mode="all")
    uris_of = again.group_by("image_id").aggregate([("uri", "distinct", every)])
    clashes = uris_of.filter(pc.greater(pc.list_value_length(uris_of["uri_distinct"]), pa.scalar(1)))
    if clashes.num_rows:
        first = clashes.slice(0, 1).to_pylist()[0]
        # Arrow's threads decide the order in which it finds them; missing ones come last.
        places = sorted(first["uri_distinct"], key=lambda uri: (uri is None, uri))
        one, other, *_ = (uri or "a row without a uri" for uri in places)
        raise SourceError(
            f"{location}: {clashes.num_rows} ids stand for more than one image, among them {first['image_id']!r} "
            f"({one} and {other}). Ids must be unique"
        )
    rows = pa.array(range(listing.num_rows), pa.int64())
    numbered = pa.Table.from_arrays([listing["image_id"], rows], names=["image_id", "row"])
    firsts = numbered.group_by("image_id").aggregate([("row", "min")])["row_min"]
    return listing.take(firsts.combine_chunks().sort())


def _nothing_found(location: str, files: list[SourceFile], extensions: Iterable[str]) -> str:
    wanted = f"images ({', '.join(extensions)}), uncompressed tars or lists ({', '.join(TABLE_EXTENSIONS)})"
    if not files:
        return f"{location} is empty: expected {wanted}"
    seen = sorted({extension(f.path) or "no extension" for f in files})[:8]
    number = f"{len(files)} files" if len(files) > 1 else "1 file"
    return f"{location} holds {number} and nothing that can be embedded: expected {wanted}, found {', '.join(seen)}"
