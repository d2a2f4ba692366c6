"""What is left to do: the listing, less what live rows cover, less what an unfinished run has already written."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from embedder.errors import Rejected
from embedder.fetch import Fetcher
from index.collection.collection import Collection, Snapshot
from index.collection.live_rows import LiveRows
from index.collection.records import ModelRecord, RowFile, RunStart
from index.collection.row_files import map_in_threads
from index.collection.rows import STATE_COLUMNS, TEXT, newest_positions
from index.errors import DamagedRunError
from index.storage.picture_reader import PictureReader
from index.versions.servable import live_or_last_good_manifest
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter
from jobs.sources.listing import Column, refused_mask, with_columns

NEVER_READABLE: Final = ""
"""In place of a hash for a picture that will not be there at the next attempt either; no content has it."""

_THREADS = 16  # reading waits for disks and networks, and hashing lets other threads run


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`todo` is what to embed of `listing`. `run` is the unfinished run to go on with, `files` what it has written.

    `live` has the model's live rows with `STATE_COLUMNS`. `images` says which images are embedded. `deletes` are ids to
    record as gone with the run. `refused` counts the rows that were written as the rejects that the listing says they
    are; of these, `filtered` are left out by `images`.
    """

    source: str
    model: ModelRecord
    listing: pa.Table
    todo: pa.Table
    live: pa.Table
    run: RunStart | None
    files: list[RowFile]
    deletes: pa.ChunkedArray[Any] = field(default_factory=lambda: pa.chunked_array([], TEXT))
    refused: int = 0
    filtered: int = 0
    images: ImageFilter = EVERY_IMAGE

    @property
    def done(self) -> bool:
        """Whether there is nothing to embed and nothing to commit."""
        return self.todo.num_rows == 0 and self.run is None and len(self.deletes) == 0

    @property
    def already_there(self) -> int:
        return self.listing.num_rows - self.todo.num_rows - self.refused

    def start(self, collection: Collection) -> RunStart:
        """The run to go on with, or else a new one."""
        keep, exif = self.images.key, self.images.exif
        return self.run or collection.start_run(self.source, self.model, keep=keep, exif=exif)

    @property
    def attempt(self) -> int:
        """Number of this attempt at the run. Later attempts' rows win, so their files must sort later."""
        names = [file.path.rpartition("/")[2] for file in self.files]
        return 1 + max((int(name.split("-")[0]) for name in names), default=0)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Images of the source, compared with their rows.

    `listed` = `unchanged` + `new` + `changed` + `retried` + `other_model`; changed metadata counts as changed, and so
    does another outcome of the filter. Of the images that are not unchanged, `resumed` were written by a run that did
    not end, `reused` take the vector of the same content (they were moved, copied, touched or relabelled), `refused`
    are rejects by the listing itself (a line that cannot be read, a repeated id), `filtered` are left out by what is
    known of them unread, and `to_embed` need the model, unless they are left out once they are read. `replaced` take
    the ids of other sources' images. `missing` have a row and are not listed; of these, `moved` are listed elsewhere,
    and `deleted` lose their row.
    """

    listed: int = 0
    unchanged: int = 0
    new: int = 0
    changed: int = 0
    retried: int = 0
    other_model: int = 0
    resumed: int = 0
    reused: int = 0
    refused: int = 0
    filtered: int = 0
    to_embed: int = 0
    replaced: int = 0
    missing: int = 0
    moved: int = 0
    deleted: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, others = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + others[name] for name in mine})


def plan_run(
    listing: pa.Table,
    snapshot: Snapshot,
    source: str,
    model: ModelRecord,
    live: pa.Table,
    *,
    keep: Callable[[list[RowFile]], list[RowFile]] = list,
    unchanged: Callable[[pa.Table, pa.Table], Column] | None = None,
    verify_hash: bool = False,
    images: ImageFilter = EVERY_IMAGE,
) -> Plan:
    """The plan that goes on with the unfinished run, of whose files those count that `keep` returns, or begins one.

    `live` has `STATE_COLUMNS` of the model's live rows. `unchanged` says which of the listing some rows cover; default:
    `unchanged_mask`. With `verify_hash` the bytes of what seems unchanged are read.
    """
    unchanged = unchanged or unchanged_mask
    there = unchanged(listing, live)
    # With nothing to do, the files of a stopped run are not needed.
    run = unfinished_run(snapshot, source, model, images) if pc.all(there).as_py() is False else None
    files = keep(written_files(snapshot.collection, run)) if run else []
    if files:
        # Once the run is committed its rows are the newest, so they alone say whether their images are covered.
        newest_rows = _fold([live, retry_fetch_failures(fold(snapshot.collection, files))])
        there = unchanged(listing, newest_rows)
    else:
        newest_rows = live
    if verify_hash:
        there = _unaltered(listing, newest_rows, there)
    todo = listing.filter(pc.invert(there))
    return Plan(source=source, model=model, listing=listing, todo=todo, live=live, run=run, files=files, images=images)


def unfinished_run(
    snapshot: Snapshot, source: str, model: ModelRecord, images: ImageFilter = EVERY_IMAGE
) -> RunStart | None:
    """The newest run of a source, a model and a filter that was begun and not committed."""
    # One that is older than a committed run would be hidden by it where they overlap: `reuse` takes its rows.
    newer = (run for run in snapshot.unfinished if run.run_id > snapshot.last_run)
    same = (source, images.key, images.exif)
    started = [run for run in newer if (run.source, run.keep, run.exif) == same and run.model.agrees_with(model)]
    if not started:
        return None
    # One that the live version was built from has lost its manifest: with other rows it would be taken for indexed.
    live = live_or_last_good_manifest(snapshot.collection)
    return None if live and started[-1].run_id in live.runs else started[-1]


def fold(collection: Collection, files: Sequence[RowFile]) -> pa.Table:
    """`STATE_COLUMNS` of row files, oldest first, with the newest row of each id."""
    return _fold([LiveRows.of_files(collection.storage, files).read(STATE_COLUMNS)])


def retry_fetch_failures(rows: pa.Table) -> pa.Table:
    """The rows of a run that is not committed: what it could not fetch is tried again, as its source may be mended."""
    again = pc.or_(_fill(rows["retryable"], False), _fill(pc.equal(rows["error_stage"], pa.scalar("fetch")), False))
    return with_columns(rows, {"retryable": again})


def _fold(tables: Sequence[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(tables)
    return rows.take(newest_positions([rows["image_id"]])[0])


def written_files(collection: Collection, run: RunStart) -> list[RowFile]:
    """The complete row files of an unfinished run, one of each block, those of earlier attempts first."""
    paths = collection.row_files(run.run_id)
    ours = [path for path in paths if path.rpartition("/")[2].split("-")[0].isdigit()]

    def read(path: str) -> RowFile | None:
        try:
            return collection.row_file(path)
        except DamagedRunError:
            return None  # no file of ours is ever half written under its name: its disk is bad

    # A block that was tried again may have been written by both tries.
    return list({block_of(file.path): file for file in map_in_threads(read, ours) if file}.values())


def write_block(collection: Collection, run_id: str, attempt: int, rows: pa.Table) -> RowFile:
    """Write a block of a run's rows as one file."""
    ids = [str(image_id) for image_id in rows["image_id"].to_pylist()]
    return collection.write_rows(run_id, block_name(attempt, ids), rows)


def block_name(attempt: int, image_ids: list[str]) -> str:
    """The block's name in those of its files, by which later attempts sort later. `write_rows` adds a token.

    An actor that seems dead may write the block long after Ray has had it embedded again, perhaps on another device:
    the token prevents its file from replacing the one that counts.
    """
    digest = hashlib.sha256("\n".join(image_ids).encode()).hexdigest()
    return f"{attempt:04}-{digest[:20]}"


def block_of(path: str) -> str:
    """What the files of one block have in common, however often it was tried: all but the token of their names."""
    return path.partition(".")[0]


def unchanged_mask(listing: pa.Table, rows: pa.Table) -> Column:
    """A mask over the listing: a row of that id is there, nothing says that the image changed, and it need not be
    tried again. What one side does not know (a list has no sizes) is no evidence of a change.
    """
    if rows.num_rows == 0:
        return pa.array([False] * listing.num_rows, pa.bool_())
    at = pc.index_in(listing["image_id"], rows["image_id"])
    found = rows.select(["uri", "size", "modified", "etag", "error_reason", "retryable"]).take(at)
    unchanged: Column = pc.and_(pc.is_valid(at), pc.invert(_fill(found["retryable"], False)))
    # An image always has a uri: one that was missing and is there now is a change.
    no_uri = pc.and_(pc.is_null(listing["uri"]), pc.is_null(found["uri"]))
    unchanged = pc.and_(unchanged, pc.or_(no_uri, _fill(pc.equal(listing["uri"], found["uri"]), False)))
    # An object that was written anew as it was has another time: where both ETags are known they say it.
    same_etag: Column = pc.equal(listing["etag"], found["etag"])
    unchanged = pc.and_(unchanged, _fill(same_etag, True))
    rejected = pc.is_valid(found["error_reason"])
    for name in ("size", "modified"):
        same: Column = _fill(pc.equal(listing[name], found[name]), True)
        unchanged = pc.and_(unchanged, pc.or_(same, _fill(same_etag, False)) if name == "modified" else same)
        # A link that led nowhere had neither size nor time: to have one now is a change.
        known_now = pc.and_(pc.is_valid(listing[name]), pc.is_null(found[name]))
        unchanged = pc.and_not(unchanged, pc.and_(rejected, known_now))
    return unchanged


def _unaltered(listing: pa.Table, rows: pa.Table, there: Column) -> Column:
    """`there` without those images whose bytes are others than the rows say; what cannot be read now stays."""
    same = listing.filter(pc.and_not(there, refused_mask(listing)))
    recorded = rows["content_hash"].take(pc.index_in(same["image_id"], rows["image_id"]))
    altered = same["image_id"].filter(pc.not_equal(recorded, content_hashes(same["uri"].to_pylist())))
    return pc.and_(there, pc.invert(pc.is_in(listing["image_id"], altered)))


def content_hashes(uris: Sequence[str | None]) -> pa.Array[Any]:
    """SHA-256 of each picture's bytes in hex; null if they cannot be read now, `NEVER_READABLE` if never."""
    fetcher = Fetcher(buckets=PictureReader())  # the operator's own sources are trusted

    def hash_of(uri: str | None) -> str | None:
        if uri is None:
            return NEVER_READABLE
        try:
            return hashlib.sha256(fetcher.fetch(uri)).hexdigest()
        except Rejected as error:
            return None if error.retryable else NEVER_READABLE

    with ThreadPoolExecutor(_THREADS) as pool:
        return pa.array(pool.map(hash_of, uris), TEXT)


def _fill(mask: Column, value: bool) -> Column:
    return pc.if_else(pc.is_valid(mask), mask, pa.scalar(value))  # type: ignore[no-any-return]
