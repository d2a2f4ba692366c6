"""Sources of images: what there is to embed, as one Arrow table with a row per image.

A source is a folder or bucket prefix, a list (Parquet, CSV, JSONL) with a `uri` or `url` column, Parquet files with a
column of image bytes, or WebDataset tars. Whatever it is, a listing begins with the columns of `LISTING`: a `uri` that
names the bytes by itself (a member of a tar or a cell of a Parquet file by a fragment, see `embedder.fetch`) and what
tells whether the image has changed. Every further column is metadata that goes with the image.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
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
_BATCH = 2**15
_COMPANIONS = frozenset(
    {*IMAGE_EXTENSIONS, *TABLE_EXTENSIONS, "tsv", "txt", "md", "json", "xml", "xmp", "yaml", "yml", "html"}
    | {"ini", "db", "log", "aae"}
)
"""Nobody misses these where there are pictures; images are among them because --extensions may leave them out."""


def list_images(
    location: str, *, extensions: Sequence[str] = IMAGE_EXTENSIONS, left_out: Counter[str] | None = None
) -> pa.Table:
    """List the images of a source: files by name, rows of tables and tars as they come.

    Returns the columns of `LISTING`, then metadata. Raises `EmptySourceError` where there are no images, and
    `SourceError` where the source is missing or unreadable, or one id stands for two images. `left_out` counts, by
    extension, the files beside images that may be pictures of kinds that are not read.
    """
    found = source_files(location, partial(_Found.of, extensions=extensions))
    location = without_secrets(location)  # from here on it is only shown
    if found.images.num_rows:
        listing = found.images
        if left_out is not None:
            others = found.extensions.keys() - {*extensions, *_COMPANIONS}
            left_out.update({kind: found.extensions[kind] for kind in sorted(others)})
    elif found.tars:
        listing = list_tars(found.tars, extensions)
    elif found.tables:
        listing = list_table_files(found.tables)
    else:
        raise EmptySourceError(_nothing_found(location, found.extensions, extensions))
    if listing.num_rows == 0:
        raise EmptySourceError(f"{location} lists no images: its tables or tars have no rows")
    return _unique(location, listing)


def left_out_warning(left_out: Counter[str]) -> str:
    """What is said of the files that `list_images` left out, the most frequent kinds first."""
    shown = ", ".join(f"{count:,} {kind or 'without an extension'}" for kind, count in left_out.most_common(8))
    return (
        f"files of other kinds are left out, {left_out.total():,} in all: {shown}{', …' if len(left_out) > 8 else ''}. "
        "Pictures among them have to be converted first, to JPEG or PNG"
    )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The files of a source by name: a row for each image; tars and tables; how many there are of each extension."""

    images: pa.Table
    tars: list[SourceFile]
    tables: list[SourceFile]
    extensions: Counter[str]

    @classmethod
    def of(cls, files: Iterable[SourceFile], extensions: Sequence[str]) -> "_Found":
        """No more than `_BATCH` images are held as objects: there may be millions."""
        batches, images = [_listed([])], list[SourceFile]()
        tars, tables = list[SourceFile](), list[SourceFile]()
        counts = Counter[str]()
        for file in files:
            kind = extension(file.path)
            counts[kind] += 1
            if kind in extensions:
                images.append(file)
                if len(images) == _BATCH:
                    batches.append(_listed(images))
                    images = []
            elif kind == "tar":
                tars.append(file)
            elif kind in TABLE_EXTENSIONS:
                tables.append(file)
        listed = pa.concat_tables([*batches, _listed(images)])
        return cls(
            images=listed.take(pc.sort_indices(listed["image_id"])),
            tars=sorted(tars, key=lambda file: file.name),
            tables=sorted(tables, key=lambda file: file.name),
            extensions=counts,
        )


def _listed(files: list[SourceFile]) -> pa.Table:
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


def _nothing_found(location: str, found: Counter[str], extensions: Iterable[str]) -> str:
    wanted = f"images ({', '.join(extensions)}), uncompressed tars or lists ({', '.join(TABLE_EXTENSIONS)})"
    if not found:
        return f"{location} is empty: expected {wanted}"
    seen = sorted(kind or "no extension" for kind in found)[:8]
    number = f"{found.total()} files" if found.total() > 1 else "1 file"
    return f"{location} holds {number} and nothing that can be embedded: expected {wanted}, found {', '.join(seen)}"
