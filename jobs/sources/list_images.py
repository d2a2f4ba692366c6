"""Lists the images of a folder or bucket prefix: pictures, WebDataset tars, Parquet files with a column of image bytes,
lists (Parquet, CSV, TSV, JSONL) with a column of addresses, and frames of videos. A source may mix them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.formats import IMAGE_EXTENSIONS
from index.storage.bucket_address import without_secrets
from jobs.errors import EmptySourceError, NotAListError, SourceError
from jobs.exclusions import EXCLUDED, HIDDEN, Exclusions
from jobs.file_extensions import PACKED_TARS, TABLE_EXTENSIONS, VIDEO_EXTENSIONS, is_packed, may_be_pictures
from jobs.sources.beside import join_lists, place, with_captions
from jobs.sources.files import SourceFile, extension, source_files
from jobs.sources.list_videos import ListedFrames, list_videos
from jobs.sources.listing import LISTING, UNREADABLE, Listed, Refused, concat_listings, refused_listing
from jobs.sources.sorted_files import SortedFiles
from jobs.sources.tables import URI_COLUMNS, list_table
from jobs.sources.tars import list_tar

_DUPLICATE = "#duplicate="
_SHOWN_KINDS = 8


def list_images(
    location: str,
    *,
    extensions: Sequence[str] = IMAGE_EXTENSIONS,
    uri_column: str | None = None,
    exclude: Sequence[str] = (),
    left_out: Counter[str] | None = None,
    listed_frames: ListedFrames = dict,
) -> pa.Table:
    """List the images of a source: files by name, then members of tars and rows of tables in their own order.

    Returns the columns of `LISTING`, then metadata, and `REFUSAL` if some rows are already rejects. Raises
    `EmptySourceError` if there are no images, and `SourceError` if the source is missing or unreadable. `uri_column` is
    the column of addresses in lists, by default one of `URI_COLUMNS`. `exclude` are patterns as in a .gitignore.
    `left_out` gets the number of files, and of members of tars, that are not read, by kind. `listed_frames` returns the
    frames of videos that are already known.
    """
    exclusions = Exclusions(exclude)
    found = source_files(location, partial(SortedFiles.of, extensions=extensions), exclusions)
    location = without_secrets(location)  # from here on only for messages
    if uri_column and not found.tables:
        raise SourceError(f"{location} has no lists, but --uri-column names a column of a list: omit --uri-column")
    pictures = with_captions(found.images, found.texts)
    frames = list_videos(found.videos, listed_frames)
    in_tars = [kind for kind in extensions if kind not in VIDEO_EXTENSIONS]
    tars = _read_each(found.tars, lambda tar: list_tar(tar, in_tars, exclusions))
    are_beside = bool(pictures.images.num_rows or found.videos or found.tars)
    lists = _read_each(found.tables, lambda table: _list_rows(table, uri_column, exclusions, are_beside=are_beside))
    parts = (pictures, frames, tars, lists)
    counts = sum((part.left_out for part in parts), found.left_out)
    _refuse_packed(location, counts, tars=tars, lists=lists)
    if left_out is not None:
        left_out.update(counts)
    images, rows = join_lists(pictures.images, lists.images)
    listing, repeated = _unique(_concat([images, frames.images, tars.images, rows]))
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


def _read_each(files: Sequence[SourceFile], read: Callable[[SourceFile], Listed]) -> Listed:
    """What tars or tables list. One that cannot be read is refused."""
    parts = list[Listed]()
    for file in files:
        try:
            parts.append(read(file))
        except SourceError as error:
            refused = [file.refused(UNREADABLE, str(error))]
            parts.append(Listed(images=LISTING.empty_table(), refused=refused))
    return Listed(
        images=_concat([part.images for part in parts]),
        refused=[each for part in parts for each in part.refused],
        left_out=sum((part.left_out for part in parts), Counter[str]()),
    )


def _list_rows(table: SourceFile, uri_column: str | None, exclusions: Exclusions, *, are_beside: bool) -> Listed:
    """The rows of a table. Beside pictures, it need not be a list of pictures."""
    try:
        images, refused = list_table(table, (uri_column,) if uri_column else URI_COLUMNS)
    except NotAListError:
        if uri_column or not are_beside:
            raise
        kind = f".{extension(table.name)} without addresses or pictures"
        return Listed(images=LISTING.empty_table(), left_out=Counter([kind]))
    if not exclusions.has_patterns:
        return Listed(images=images, refused=refused)
    root = f"{place(table.uri.removesuffix(table.name))}/"
    addresses = ["" if uri is None else place(uri).removeprefix(root) for uri in images["uri"].to_pylist()]
    is_excluded = [exclusions.excludes(address.rpartition("://")[2]) for address in addresses]
    kept = images.filter(pa.array([not each for each in is_excluded], pa.bool_()))
    return Listed(images=kept, refused=refused, left_out=+Counter({EXCLUDED: sum(is_excluded)}))


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


def _unique(listing: pa.Table) -> tuple[pa.Table, list[Refused]]:
    """Drop rows that repeat an image. A different image with the id of an earlier one is refused, under another id."""
    counts = pc.value_counts(listing["image_id"])
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), pa.scalar(1)))
    if len(repeated) == 0:
        return listing, []
    again = pc.is_in(listing["image_id"], value_set=repeated)
    rows = listing.select(["image_id", "uri"]).append_column("row", pa.array(np.arange(listing.num_rows)))
    images = rows.filter(again).group_by(["image_id", "uri"]).aggregate([("row", "min")]).sort_by("row_min")
    keep = pc.invert(again).to_numpy().copy()
    taken = set(listing["image_id"].filter(pc.match_substring(listing["image_id"], _DUPLICATE)).to_pylist())
    seen, first, refused = Counter[str](), dict[str, str](), list[Refused]()
    for image_id, uri, row in zip(*(images[name].to_pylist() for name in ("image_id", "uri", "row_min")), strict=True):
        seen[image_id] += 1
        if seen[image_id] == 1:
            keep[row] = True
            first[image_id] = uri or "a row without a uri"
            continue
        message = f"its id {image_id!r} is already that of {first[image_id]}: give it another one"
        while (name := f"{image_id}{_DUPLICATE}{seen[image_id]}") in taken:
            seen[image_id] += 1
        refused.append(Refused(image_id=name, uri=uri, reason="duplicate_id", message=message))
    return listing.filter(pa.array(keep)), refused


def _nothing_found(location: str, found: Counter[str], extensions: Iterable[str]) -> str:
    expected = f"images ({', '.join(extensions)}), uncompressed tars or lists ({', '.join(TABLE_EXTENSIONS)})"
    if not found.keys() - {HIDDEN}:
        return f"{location} is empty: expected {expected}"
    number = f"{found.total():,} files" if found.total() > 1 else "1 file"
    seen = ", ".join(sorted(found)[:_SHOWN_KINDS])
    return f"{location} has {number}, but nothing that can be embedded: expected {expected}, got {seen}"
