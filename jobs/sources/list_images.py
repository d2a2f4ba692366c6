"""Lists the images of a folder or bucket prefix: pictures, WebDataset tars, Parquet files with a column of image bytes,
lists (Parquet, CSV, TSV, JSONL) with a column of addresses, and frames of videos. A source may mix them.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.formats import IMAGE_EXTENSIONS
from index.collection.rows import TEXT
from index.storage.bucket_address import without_secrets
from jobs.errors import EmptySourceError, SourceError
from jobs.exclusions import HIDDEN, Exclusions
from jobs.file_extensions import PACKED_TARS, TABLE_EXTENSIONS, VIDEO_EXTENSIONS, is_packed, may_be_pictures
from jobs.sources.beside import join_lists, with_captions, without_id
from jobs.sources.column_types import with_types
from jobs.sources.files import SourceFile, source_files
from jobs.sources.list_columns import ListColumns
from jobs.sources.list_videos import ListedFrames, list_videos
from jobs.sources.listing import LISTING, UNREADABLE, Listed, Refused, concat_listings, refused_listing, with_columns
from jobs.sources.sorted_files import SortedFiles
from jobs.sources.tables import ListReader
from jobs.sources.tars import list_tar
from jobs.values import ColumnType

_DUPLICATE = "#duplicate="
_SHOWN_KINDS = 8


def list_images(
    location: str,
    *,
    extensions: Sequence[str] = IMAGE_EXTENSIONS,
    uri_column: str | None = None,
    exclude: Sequence[str] = (),
    id_column: str | None = None,
    column_types: Mapping[str, ColumnType] | None = None,
    notes: dict[str, list[str]] | None = None,
    left_out: Counter[str] | None = None,
    listed_frames: ListedFrames = dict,
) -> pa.Table:
    """List the images of a source: files by name, then members of tars and rows of tables in their own order.

    Returns the columns of `LISTING`, then metadata, and `REFUSAL` if some rows are already rejects. Raises
    `EmptySourceError` if there are no images, and `SourceError` if the source is missing or unreadable. `uri_column` is
    the column of addresses in lists, by default `uri`, `url` or `file_name`, `id_column` that of ids, by default `id`;
    `column_types` are the types of others. `exclude` are patterns as in a .gitignore. `notes` gets the names of lists
    and captions by what to say about them. `left_out` gets the number of files, and of members of tars, that are not
    read, by kind. `listed_frames` returns the frames of videos that are already known.
    """
    exclusions = Exclusions(exclude)
    found = source_files(location, partial(SortedFiles.of, extensions=extensions), exclusions)
    location = without_secrets(location)  # from here on only for messages
    columns = ListColumns(uri=uri_column, id=id_column, types=column_types or {})
    named = {"--uri-column": uri_column, "--id-column": id_column, "--column-types": column_types}
    if not found.tables and (option := next((name for name, value in named.items() if value), None)):
        raise SourceError(f"{location} has no lists, but {option} names a column of a list: omit {option}")
    notes = {} if notes is None else notes
    pictures = with_captions(found.images, found.texts, notes)
    frames = list_videos(found.videos, listed_frames)
    in_tars = [kind for kind in extensions if kind not in VIDEO_EXTENSIONS]
    tars = _read_each(found.tars, lambda tar: list_tar(tar, in_tars, exclusions, notes))
    reader = ListReader(
        columns=columns,
        exclusions=exclusions,
        notes=notes,
        pictures=pictures.images,
        containers=found.containers,
    )
    lists = _read_each(found.tables, reader.read, columns.types)
    parts = (pictures, frames, tars, lists)
    counts = sum((part.left_out for part in parts), found.left_out)
    _refuse_packed(location, counts, tars=tars, lists=lists)
    if left_out is not None:
        left_out.update(counts)
    images, rows = join_lists(pictures.images, lists.images)
    files = [images, frames.images, tars.images]
    may_number = np.zeros(sum(map(len, files)) + len(rows), bool)
    may_number[len(may_number) - len(rows) :] = without_id(lists.images)
    listing, repeated = _unique(_concat([*files, rows]), may_number)
    refused = [*found.refused, *(each for part in parts for each in part.refused), *repeated]
    if listing.num_rows:
        return concat_listings([listing, refused_listing(refused)]) if refused else listing
    if refused:
        raise SourceError(f"{location} lists no images: {refused[0].message}")
    if found.tars or found.tables:
        raise EmptySourceError(f"{location} lists no images: its tables or tars have no rows")
    raise EmptySourceError(_nothing_found(location, counts, extensions))


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Empty tables are left out, because their columns would decide about types."""
    return concat_listings([LISTING.empty_table(), *(table for table in tables if table.num_rows)])


def _read_each(
    files: Sequence[SourceFile],
    read: Callable[[SourceFile], Listed],
    types: Mapping[str, ColumnType] | None = None,
) -> Listed:
    """What tars or tables list. One that cannot be read is refused."""
    parts = list[Listed]()
    for file in files:
        try:
            parts.append(read(file))
        except SourceError as error:
            refused = [file.refused(UNREADABLE, str(error))]
            parts.append(Listed(images=LISTING.empty_table(), refused=refused))
    return Listed(
        images=_concat(with_types([part.images for part in parts], types or {})),
        refused=[each for part in parts for each in part.refused],
        left_out=sum((part.left_out for part in parts), Counter[str]()),
    )


def _refuse_packed(location: str, counts: Counter[str], *, tars: Listed, lists: Listed) -> None:
    """Raise `SourceError` if a part of the source's tars or lists is compressed: it would be missing silently."""
    packed = sorted(filter(is_packed, counts))
    missing = [kind for kind in packed if (tars if kind in PACKED_TARS else lists).images.num_rows]
    if missing:
        shown = ", ".join(f"{counts[kind]:,} {kind}" for kind in missing)
        raise SourceError(
            f"{location} has compressed files beside others of their kind, and they cannot be read: {shown}. "
            f"Decompress them, or leave them out with --exclude '*{missing[0]}'"
        )


def left_out_warning(left_out: Counter[str]) -> str | None:
    """A warning about files that may be pictures, but were left out; the most frequent kinds first."""
    kinds = Counter({kind: count for kind, count in left_out.items() if may_be_pictures(kind)})
    if not kinds:
        return None
    shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(_SHOWN_KINDS))
    videos = any(kind[1:] in VIDEO_EXTENSIONS for kind in kinds)
    return (
        f"{kinds.total():,} files of other kinds are left out: {shown}{', …' if len(kinds) > _SHOWN_KINDS else ''}. "
        "Convert any pictures among them to JPEG or PNG, and unpack archives"
        f"{'; --extensions images,videos embeds frames of videos' if videos else ''}"
    )


def _unique(listing: pa.Table, may_number: npt.NDArray[np.bool_]) -> tuple[pa.Table, list[Refused]]:
    """Give each row an id of its own. Rows of lists without an id have the address, or the id of the picture there:
    those that share it are numbered. Another row that repeats the id of an earlier one is refused, under another id.
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
        if may_number[row]:
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
    if not found.keys() - {HIDDEN}:
        return f"{location} is empty: expected {expected}"
    number = f"{found.total():,} files" if found.total() > 1 else "1 file"
    seen = ", ".join(sorted(found)[:_SHOWN_KINDS])
    return f"{location} has {number}, but nothing that can be embedded: expected {expected}, got {seen}"
