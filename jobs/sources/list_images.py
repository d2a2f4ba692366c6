"""Lists the images of a folder or bucket prefix: pictures, WebDataset tars, Parquet files with a column of image bytes,
lists (Parquet, CSV, TSV, JSONL) with a column of addresses, and frames of videos. A source may mix them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from threading import Event
from typing import Any, Final

import numpy as np
import pyarrow as pa

from embedder.images.formats import IMAGE_EXTENSIONS
from index.collection.catalog.catalog import FIRST_SEQ
from index.collection.row_files import BYTES_AHEAD, read_ahead
from index.storage import Storage
from index.storage.bucket_address import without_secrets
from jobs.errors import EmptySourceError, SourceError
from jobs.exclusions import HIDDEN, Exclusions
from jobs.file_extensions import PACKED_TARS, TABLE_EXTENSIONS, VIDEO_EXTENSIONS, is_packed, may_be_pictures
from jobs.sources.beside import Pictures, with_captions, without_id
from jobs.sources.column_types import TypedLists
from jobs.sources.files import SourceFile, open_source, source_files
from jobs.sources.list_columns import ListColumns
from jobs.sources.list_tables import ListReader
from jobs.sources.list_tars import list_tar
from jobs.sources.list_videos import ListedFrames, list_videos
from jobs.sources.listing import LISTING, UNREADABLE, Column, Listed, Refused, refused_listing
from jobs.sources.sorted_files import SortedFiles
from jobs.sources.stored_listing import Listing, ListingWriter, StoredTables
from jobs.values import ColumnType

_DUPLICATE = "#duplicate="
_REFUSED = 4096  # in memory
_TAR_BYTES = BYTES_AHEAD // 8  # in memory, of the list of a tar
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
) -> Listing:
    """List the images of a source: files by name, then members of tars and rows of tables in their own order, and rows
    that are already rejects.

    Raises `EmptySourceError` if there are no images, and `SourceError` if the source is missing or unreadable.
    `uri_column` is the column of addresses in lists, by default `uri`, `url` or `file_name`, `id_column` that of ids,
    by default `id`; `column_types` are the types of others. `exclude` are patterns as in a .gitignore. `notes` gets the
    names of lists and captions by what to say about them. `left_out` gets the number of files, and of members of tars,
    that are not read, by kind. `listed_frames` returns the frames of videos that are already known.
    """
    exclusions = Exclusions(exclude)
    found = SortedFiles.of(source_files(location, exclusions), extensions)
    storage = open_source(location)
    location = without_secrets(location)  # from here on only for messages
    columns = ListColumns(uri=uri_column, id=id_column, types=column_types or {})
    _require_lists(location, found, columns)
    notes = {} if notes is None else notes
    counts, refused = Counter(found.left_out), list(found.refused)
    videos = list_videos(found.videos, listed_frames)
    refused += videos.refused
    pictures = chain(with_captions(found.images, found.texts, notes, counts), [videos.images])
    lists, stopped = _Lists(found, pictures, columns, exclusions, storage), Event()
    writer = ListingWriter()
    for table in lists.pictures:
        writer.add(table)
    kinds, ends = [kind for kind in extensions if kind not in VIDEO_EXTENSIONS], [writer.rows]
    tars = _read_each(found.tars, lambda tar: list_tar(tar, kinds, exclusions, stopped), lambda _: _TAR_BYTES)
    try:
        for parts in (tars, lists.parts):
            for part in parts:
                writer.add(part.images)
                counts.update(part.left_out)
                refused += part.refused
                for note, names in part.notes.items():
                    notes.setdefault(note, []).extend(names)
            ends.append(writer.rows)
    finally:
        stopped.set()
    for table in lists.rows():
        writer.add(table)
    _refuse_packed(location, counts, tars=ends[1] > ends[0], lists=writer.rows > ends[1])
    if left_out is not None:
        left_out.update(+counts)
    if listing := writer.listing() if writer.rows else None:
        return _with_refused(listing, writer, refused, lists.have_no_id, FIRST_SEQ + ends[1])
    if refused:
        raise SourceError(f"{location} lists no images: {refused[0].message}")
    has_lists = bool(found.tars or found.tables)
    raise EmptySourceError(_nothing_found(location, counts, extensions, has_lists=has_lists))


def _require_lists(location: str, found: SortedFiles, columns: ListColumns) -> None:
    """Raise `SourceError` if options name columns of lists, but there are none."""
    named = {"--uri-column": columns.uri, "--id-column": columns.id, "--column-types": columns.types}
    if not found.tables and (option := next((name for name, value in named.items() if value), None)):
        raise SourceError(f"{location} has no lists, but {option} names a column of a list: omit {option}")


class _Lists:
    """The lists of a source, of which a few at a time are in memory; `parts` are what they list, without the images,
    and `pictures` those of the source, with frames, that no list names.
    """

    _beside: Pictures

    def __init__(
        self,
        found: SortedFiles,
        pictures: Iterator[pa.Table],
        columns: ListColumns,
        exclusions: Exclusions,
        storage: Storage,
    ) -> None:
        self.pictures, self.parts, stored = pictures, list[Listed](), StoredTables()
        if found.tables:
            self._beside = Pictures(Listing.of(pictures), storage.root if storage.is_local else None)
            reader = ListReader(
                columns=columns,
                exclusions=exclusions,
                pictures=self._beside,
                containers=found.containers,
            )
            for part in _read_each(found.tables, reader.read, lambda table: table.size or 0):
                stored.add(part.images)
                self.parts.append(replace(part, images=LISTING.empty_table()))
            self.pictures = self._beside.others(stored.columns("uri"))
        self._typed = TypedLists(stored, columns.types)
        self.have_no_id = list[Column]()
        """Masks, a bit for each, of the `rows` so far, see `without_id`."""

    def rows(self) -> Iterator[pa.Table]:
        """What the lists list, with what is known of the pictures beside them."""
        for table in self._typed:
            self.have_no_id.append(without_id(table))
            yield self._beside.join(table)


def _read_each(
    files: Sequence[SourceFile], read: Callable[[SourceFile], Listed], size_of: Callable[[SourceFile], int]
) -> Iterator[Listed]:
    """What tars or tables list, in order; several of a bucket are read at once. One that cannot be read is refused."""

    def read_one(file: SourceFile) -> Listed:
        try:
            return read(file)
        except SourceError as error:
            return Listed(images=LISTING.empty_table(), refused=[file.refused(UNREADABLE, str(error))])

    # Of local files, threads would only share the processor.
    return read_ahead(read_one, files, size_of) if files and files[0].storage.bucket else map(read_one, files)


def _refuse_packed(location: str, counts: Counter[str], *, tars: bool, lists: bool) -> None:
    """Raise `SourceError` if a part of the source's tars or lists is compressed: it would be missing silently."""
    packed = sorted(filter(is_packed, counts))
    missing = [kind for kind in packed if (tars if kind in PACKED_TARS else lists)]
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


# Rows that repeat the id of an earlier one, each with a free id: numbered from the one after the last that is taken.
_REPEATS: Final = f"""
WITH given AS (
    SELECT seq, image_id, uri, may_number.seq IS NOT NULL AS may, row_number() OVER same AS nth,
           first_value(nullif(uri, '')) OVER same AS first_uri
    FROM {{listing}} SEMI JOIN repeated USING (image_id) LEFT JOIN may_number USING (seq)
    WINDOW same AS (PARTITION BY image_id ORDER BY seq)
), again AS (
    SELECT *, CASE WHEN may THEN '#' ELSE '{_DUPLICATE}' END AS mark,
           row_number() OVER (PARTITION BY image_id, may ORDER BY seq) AS number
    FROM given WHERE nth > 1
), taken AS (
    SELECT part.image_id, part.mark, max(try_cast(part.number AS INTEGER)) AS number
    FROM (SELECT regexp_extract(image_id, '(?s)^(.*)(#|{_DUPLICATE})([0-9]+)$', ['image_id', 'mark', 'number']) AS part
          FROM {{listing}} WHERE contains(image_id, '#'))
    WHERE part.image_id IN (SELECT image_id FROM repeated) GROUP BY ALL
)
SELECT seq, image_id, uri, may, first_uri,
       image_id || mark || (again.number + greatest(taken.number, 1)) AS new_id
FROM again LEFT JOIN taken USING (image_id, mark)
"""


def _with_refused(
    listing: Listing, writer: ListingWriter, refused: Sequence[Refused], have_no_id: Sequence[Column], first: int
) -> Listing:
    """The listing with an id of its own for each row, and with the `refused` rows. Rows of lists that `have_no_id`, the
    first of which is at `first`, have the address, or the id of the picture there: those that share it are numbered.
    Another row that repeats the id of an earlier one is refused, under another id.
    """
    catalog, view = listing.catalog, listing.view
    ids = f"SELECT image_id FROM {view}"
    repeated_ids = catalog.group("repeated", "image_id", ids, "image_id", having="count(*) > 1")
    rows, repeats = writer.rows, None
    writer.add(refused_listing(refused))
    if repeated_ids:  # mostly not, and what follows reads all ids again
        seqs = first + np.flatnonzero(np.concatenate([np.zeros(0, bool), *map(np.asarray, have_no_id)]))
        repeats = catalog.store(_REPEATS.format(listing=view), may_number=pa.table({"seq": seqs}))
        repeated = catalog.rows(f"FROM {repeats.sql} WHERE NOT may ORDER BY seq")
        while part := list(map(_repeated, islice(repeated, _REFUSED))):
            writer.add(refused_listing(part))
    if writer.rows > rows:
        listing = writer.listing()
    if repeats is None:
        return listing
    new_ids = listing.catalog.store(f"SELECT seq, CASE WHEN may THEN new_id END AS new_id FROM {repeats.sql}")
    return listing.changed(
        "SELECT image.* REPLACE (coalesce(new_id, image_id) AS image_id) FROM {listing} AS image "
        f"LEFT JOIN {new_ids.sql} AS other USING (seq) WHERE other.seq IS NULL OR new_id IS NOT NULL"
    )


def _repeated(row: Mapping[str, Any]) -> Refused:
    first, uri = row["first_uri"], row["uri"]
    again = f"already that of {first or 'a row without a uri'}"
    if first and uri == first:
        again = "the same picture, listed again"
    message = f"its id {row['image_id']!r} is {again}: give each row an id of its own, or remove it"
    return Refused(image_id=row["new_id"], uri=uri, reason="duplicate_id", message=message)


def _nothing_found(location: str, found: Counter[str], extensions: Iterable[str], *, has_lists: bool) -> str:
    if has_lists:
        shown = ", ".join(f"{count:,} {kind}" for kind, count in found.most_common(_SHOWN_KINDS) if count)
        why = f"all that it has is left out ({shown})" if shown else "its tables or tars have no rows"
        return f"{location} lists no images: {why}"
    expected = f"images ({', '.join(extensions)}), uncompressed tars or lists ({', '.join(TABLE_EXTENSIONS)})"
    if not found.keys() - {HIDDEN}:
        return f"{location} is empty: expected {expected}"
    number = f"{found.total():,} files" if found.total() > 1 else "1 file"
    seen = ", ".join(sorted(found)[:_SHOWN_KINDS])
    return f"{location} has {number}, but nothing that can be embedded: expected {expected}, got {seen}"
