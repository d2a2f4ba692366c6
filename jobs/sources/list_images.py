"""Lists the images of a folder or bucket prefix, a list (Parquet, CSV, TSV, JSONL) with a column of addresses, Parquet
files with a column of image bytes, or WebDataset tars; and the frames of videos.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.formats import IMAGE_EXTENSIONS
from index.collection.rows import TEXT
from index.storage.bucket_address import without_secrets
from jobs.errors import EmptySourceError, SourceError
from jobs.file_extensions import COMPANION_EXTENSIONS, TABLE_EXTENSIONS, VIDEO_EXTENSIONS
from jobs.sources.column_types import with_types
from jobs.sources.files import SourceFile, extension, file_listing, source_files
from jobs.sources.list_columns import ListColumns
from jobs.sources.list_videos import ListedFrames, list_videos
from jobs.sources.listing import LISTING, UNREADABLE, Refused, concat_listings, refused_listing, with_columns
from jobs.sources.tables import list_table
from jobs.sources.tars import list_tar
from jobs.values import ColumnType

_BATCH = 2**15
_DUPLICATE = "#duplicate="


def list_images(
    location: str,
    *,
    extensions: Sequence[str] = IMAGE_EXTENSIONS,
    uri_column: str | None = None,
    id_column: str | None = None,
    column_types: Mapping[str, ColumnType] | None = None,
    notes: dict[str, list[str]] | None = None,
    left_out: Counter[str] | None = None,
    listed_frames: ListedFrames = dict,
) -> pa.Table:
    """List the images of a source: files by name, rows of tables and tars in their own order.

    Returns the columns of `LISTING`, then metadata, and `REFUSAL` if some rows are already rejects. Raises
    `EmptySourceError` if there are no images, and `SourceError` if the source is missing or unreadable. `uri_column` is
    the column of addresses in a list, by default `uri` or `url`, `id_column` that of ids, by default `id`;
    `column_types` are the types of others. `notes` gets the names of lists by what to say about them. `left_out` gets
    the number of files, by extension, that may be pictures in unsupported formats. `listed_frames` returns the frames
    of videos that are already known.
    """
    found = source_files(location, partial(_SourceFiles.of, extensions=extensions))
    location = without_secrets(location)  # from here on only for messages
    frames, unread = list_videos(found.videos, listed_frames)
    listing = concat_listings([found.images, *frames]) if frames else found.images
    named = {"--uri-column": uri_column, "--id-column": id_column, "--column-types": column_types}
    option = next((name for name, value in named.items() if value), None)
    if option and (listing.num_rows or found.tars):
        raise SourceError(
            f"{location} has {'images' if listing.num_rows else 'tars'}, but {option} names a column of a list: "
            f"give the list itself as the source, or omit {option}"
        )
    if listing.num_rows:
        if left_out is not None:
            others = found.extensions.keys() - {*extensions, *COMPANION_EXTENSIONS}
            left_out.update({kind: found.extensions[kind] for kind in sorted(others)})
    elif found.tars:
        in_tars = [kind for kind in extensions if kind not in VIDEO_EXTENSIONS]
        listing, unread = _read_each(found.tars, lambda tar: (list_tar(tar, in_tars), []))
    elif found.tables:
        columns = ListColumns(uri=uri_column, id=id_column, types=column_types or {})
        notes = {} if notes is None else notes
        listing, unread = _read_each(found.tables, lambda table: list_table(table, columns, notes), columns.types)
    listing, repeated = _unique(listing)
    refused = [*found.refused, *unread, *repeated]
    if listing.num_rows:
        return concat_listings([listing, refused_listing(refused)]) if refused else listing
    if refused:
        raise SourceError(f"{location} lists no images: {refused[0].message}")
    if found.tars or found.tables:
        raise EmptySourceError(f"{location} lists no images: its tables or tars have no rows")
    raise EmptySourceError(_nothing_found(location, found.extensions, extensions))


def _read_each(
    files: Sequence[SourceFile],
    read: Callable[[SourceFile], tuple[pa.Table, list[Refused]]],
    types: Mapping[str, ColumnType] | None = None,
) -> tuple[pa.Table, list[Refused]]:
    """The images of tars or tables, and the parts that cannot be read. A bad file fails only if it is the only one."""
    tables, refused = [], list[Refused]()
    for file in files:
        try:
            table, parts = read(file)
            tables.append(table)
            refused += parts
        except SourceError as error:
            if len(files) == 1:
                raise
            refused.append(file.refused(UNREADABLE, str(error)))
    return concat_listings([LISTING.empty_table(), *with_types(tables, types or {})]), refused


def left_out_warning(left_out: Counter[str]) -> str:
    """A warning about the files that `list_images` left out, the most frequent kinds first."""
    shown = ", ".join(f"{count:,} {kind or 'without an extension'}" for kind, count in left_out.most_common(8))
    videos = "; --extensions images,videos embeds frames of videos" if left_out.keys() & {*VIDEO_EXTENSIONS} else ""
    return (
        f"{left_out.total():,} files of other kinds are left out: {shown}{', …' if len(left_out) > 8 else ''}. "
        f"Convert any pictures among them to JPEG or PNG{videos}"
    )


@dataclass(frozen=True, kw_only=True)
class _SourceFiles:
    """The files of a source by kind; the number of files by extension; and the folders that cannot be listed."""

    images: pa.Table
    videos: list[SourceFile]
    tars: list[SourceFile]
    tables: list[SourceFile]
    extensions: Counter[str]
    refused: list[Refused]

    @classmethod
    def of(cls, files: Iterable[SourceFile], extensions: Sequence[str]) -> "_SourceFiles":
        """At most `_BATCH` images are in memory as objects, because there may be millions."""
        batches, images = [file_listing([])], list[SourceFile]()
        videos, tars, tables = list[SourceFile](), list[SourceFile](), list[SourceFile]()
        counts, refused = Counter[str](), list[Refused]()
        for file in files:
            if file.problem:
                refused.append(file.refused(UNREADABLE, file.problem))
                continue
            kind = extension(file.name)
            counts[kind] += 1
            if kind in extensions:
                (videos if kind in VIDEO_EXTENSIONS else images).append(file)
            elif kind == "tar":
                tars.append(file)
            elif kind in TABLE_EXTENSIONS:
                tables.append(file)
            if len(images) == _BATCH:
                batches.append(file_listing(images))
                images = []
        found = pa.concat_tables([*batches, file_listing(images)])
        return cls(
            videos=sorted(videos, key=lambda file: file.name),
            images=found.take(pc.sort_indices(found["image_id"])),
            tars=sorted(tars, key=lambda file: file.name),
            tables=sorted(tables, key=lambda file: file.name),
            extensions=counts,
            refused=refused,
        )


def _unique(listing: pa.Table) -> tuple[pa.Table, list[Refused]]:
    """Give each row an id of its own. Rows of lists without an id have their address as id: those that share it are
    numbered. A row that repeats the id of an earlier one is refused, under another id.
    """
    counts = pc.value_counts(listing["image_id"])
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), pa.scalar(1)))
    if len(repeated) == 0:
        return listing, []
    positions = np.flatnonzero(pc.is_in(listing["image_id"], value_set=repeated).to_numpy())
    numbered = pc.match_substring_regex(listing["image_id"], rf"(#|{_DUPLICATE})[0-9]+$")
    taken: set[Any] = set(listing["image_id"].filter(numbered).to_pylist())
    first, seen, renamed, refused = dict[str, str](), Counter[str](), dict[int, str](), dict[int, Refused]()
    rows = listing.select(["image_id", "uri"]).take(positions)
    for row, image_id, uri in zip(positions.tolist(), *(column.to_pylist() for column in rows.columns), strict=True):
        if image_id not in first:
            first[image_id] = uri or "a row without a uri"
            continue
        if image_id == uri:
            renamed[row] = _numbered(f"{image_id}#", seen, taken)
            continue
        again = "the same picture, listed again" if uri == first[image_id] else f"already that of {first[image_id]}"
        message = f"its id {image_id!r} is {again}: give each row an id of its own, or remove it"
        name = _numbered(f"{image_id}{_DUPLICATE}", seen, taken)
        refused[row] = Refused(image_id=name, uri=uri, reason="duplicate_id", message=message)
    if renamed:
        mask = np.zeros(listing.num_rows, bool)
        mask[list(renamed)] = True
        ids = pc.replace_with_mask(
            listing["image_id"].combine_chunks(), pa.array(mask), pa.array(renamed.values(), TEXT)
        )
        listing = with_columns(listing, {"image_id": ids})
    keep = np.ones(listing.num_rows, bool)
    keep[list(refused)] = False
    return listing.filter(pa.array(keep)), list(refused.values())


def _numbered(start: str, seen: Counter[str], taken: Container[str]) -> str:
    """The next free id that begins with `start`: with 2 for the second row, and so on."""
    seen[start] += 1
    while (name := f"{start}{seen[start] + 1}") in taken:
        seen[start] += 1
    return name


def _nothing_found(location: str, found: Counter[str], extensions: Iterable[str]) -> str:
    expected = f"images ({', '.join(extensions)}), uncompressed tars or lists ({', '.join(TABLE_EXTENSIONS)})"
    if not found:
        return f"{location} is empty: expected {expected}"
    seen = sorted(kind or "no extension" for kind in found)[:8]
    number = f"{found.total()} files" if found.total() > 1 else "1 file"
    return f"{location} has {number}, but nothing that can be embedded: expected {expected}, got {', '.join(seen)}"
