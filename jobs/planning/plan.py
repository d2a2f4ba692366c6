"""What is left to do: the listing, minus what live rows cover, minus what an unfinished run has already written."""

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
from index.collection.rows import STATE_COLUMNS, TEXT, newest_positions
from index.storage.picture_reader import PictureReader
from index.versions.servable import live_or_last_good_manifest
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter
from jobs.planning.record_checks import web_mask
from jobs.sources.listing import REFUSED_STAGE, Column, refused_mask, with_columns

NEVER_READABLE: Final = ""
"""Stands for the hash of a picture that will never be readable; no content has this hash."""

NO_IDS: Final[pa.ChunkedArray[Any]] = pa.chunked_array([], TEXT)

_THREADS = 16  # reading waits for disks and networks, and hashing lets other threads run


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`todo` is the part of `listing` to embed. `run` is the unfinished run to resume, `files` those of its files that
    count. `attempt` numbers the tries at a run: rows of later ones win, so the names of their files sort later.

    `live` has the `STATE_COLUMNS` of the model's live rows. `deletes` are ids that the run will record as deleted.
    `refused` counts the rows that were written as rejects because the listing refuses them; `image_filter` leaves out
    `filtered` of these.
    """

    source: str
    model: ModelRecord
    listing: pa.Table
    todo: pa.Table
    live: pa.Table
    run: RunStart | None
    files: list[RowFile]
    attempt: int = 1
    deletes: pa.ChunkedArray[Any] = field(default_factory=lambda: NO_IDS)
    refused: int = 0
    filtered: int = 0
    image_filter: ImageFilter = EVERY_IMAGE

    @property
    def done(self) -> bool:
        """Whether there is nothing to embed and nothing to commit."""
        return self.todo.num_rows == 0 and self.run is None and len(self.deletes) == 0

    @property
    def already_there(self) -> int:
        return self.listing.num_rows - self.todo.num_rows - self.refused

    def start(self, collection: Collection) -> RunStart:
        """The run to resume, or a new one."""
        keep, exif = self.image_filter.key, self.image_filter.exif
        return self.run or collection.start_run(self.source, self.model, keep=keep, exif=exif)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Images of the source, compared with their rows.

    `listed` = `unchanged` + `new` + `changed` + `retried` + `other_model`; an image also counts as changed if its
    metadata or the outcome of the filter changed. Of those that are not unchanged, `resumed` were written by an
    unfinished run, `reused` take the vector of the same content (they were moved, copied, touched or relabelled),
    `refused` are rejected by the listing itself (an unreadable line, a repeated id), `filtered` are left out without
    reading them, and `to_embed` need the model unless they are left out after reading. `replaced` take the ids of other
    sources' images. `missing` have a row but are not listed; of these, `moved` are listed under another id, and
    `deleted` lose their row.
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
    select_files: Callable[[list[RowFile]], list[RowFile]] = list,
    find_unchanged: Callable[[pa.Table, pa.Table], Column] | None = None,
    verify_hash: bool = False,
    image_filter: ImageFilter = EVERY_IMAGE,
    postponed: Column = NO_IDS,
) -> Plan:
    """The plan that resumes the unfinished run or starts a new one.

    `live` has the `STATE_COLUMNS` of the model's live rows. `select_files` picks the files of the unfinished run that
    count. `find_unchanged` masks the part of a listing that some rows cover, by default `unchanged_mask`. With
    `verify_hash`, the bytes of images that seem unchanged are read. `postponed` are ids of rejects that are not tried
    again yet.
    """
    find_unchanged = find_unchanged or unchanged_mask
    unchanged = find_unchanged(listing, live)
    # With nothing to do, the files of a stopped run are not needed.
    run = _unfinished_run(snapshot, source, model, image_filter) if pc.all(unchanged).as_py() is False else None
    written = snapshot.collection.written_files(run) if run else []
    files = select_files(written)
    rows = live
    if files:
        # Once the run is committed its rows are the newest, so only they decide whether their images are covered.
        rows = newest_rows([live, retry_fetch_failures(read_state(snapshot.collection, files))])
        rows = postpone(rows, postponed)
        unchanged = find_unchanged(listing, rows)
    if verify_hash:
        unchanged = _verify_hashes(listing, rows, unchanged)
    return Plan(
        source=source,
        model=model,
        listing=listing,
        todo=listing.filter(pc.invert(unchanged)),
        live=live,
        run=run,
        files=files,
        attempt=1 + max((int(file.path.rpartition("/")[2].split("-")[0]) for file in written), default=0),
        image_filter=image_filter,
    )


def _unfinished_run(snapshot: Snapshot, source: str, model: ModelRecord, image_filter: ImageFilter) -> RunStart | None:
    """The newest run of a source, a model and a filter that was started and not committed."""
    # A newer committed run would hide an older one's rows of the same ids; `reuse` copies these instead.
    newer = (run for run in snapshot.unfinished if run.run_id > snapshot.last_run)
    same = (source, image_filter.key, image_filter.exif)
    started = [run for run in newer if (run.source, run.keep, run.exif) == same and run.model.agrees_with(model)]
    if not started:
        return None
    # A run that is in the live version has lost its manifest. If it were resumed, its new rows would seem indexed.
    live = live_or_last_good_manifest(snapshot.collection)
    return None if live and started[-1].run_id in live.runs else started[-1]


def read_state(collection: Collection, files: Sequence[RowFile]) -> pa.Table:
    """The `STATE_COLUMNS` of the newest row of each id in these files, which come oldest first."""
    return newest_rows([LiveRows.of_files(collection.storage, files).read(STATE_COLUMNS)])


def retry_fetch_failures(rows: pa.Table) -> pa.Table:
    """The rows of an uncommitted run, with all fetch failures retryable, as the source may have been fixed."""
    again = pc.or_(_fill(rows["retryable"], False), _fill(pc.equal(rows["error_stage"], pa.scalar("fetch")), False))
    return with_columns(rows, {"retryable": again})


def postpone(rows: pa.Table, ids: Column) -> pa.Table:
    """The rows, of which those with these ids are not retryable now."""
    if not len(ids):
        return rows
    return with_columns(rows, {"retryable": pc.and_not(rows["retryable"], pc.is_in(rows["image_id"], ids))})


def newest_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """The newest row of each id in these tables, which come oldest first."""
    rows = pa.concat_tables(tables)
    return rows.take(newest_positions([rows["image_id"]])[0])


def write_block(collection: Collection, run_id: str, attempt: int, rows: pa.Table) -> RowFile:
    """Write a block of a run's rows as one file."""
    ids = [str(image_id) for image_id in rows["image_id"].to_pylist()]
    return collection.write_rows(run_id, block_name(attempt, ids), rows)


def block_name(attempt: int, image_ids: list[str]) -> str:
    """The start of the names of a block's files; later attempts sort later. `write_rows` adds a token.

    An actor that seemed dead may write the block long after Ray had it embedded again, perhaps on another device. The
    token prevents its file from replacing the one that counts.
    """
    digest = hashlib.sha256("\n".join(image_ids).encode()).hexdigest()
    return f"{attempt:04}-{digest[:20]}"


def unchanged_mask(listing: pa.Table, rows: pa.Table) -> Column:
    """A mask over the listing: the id has a row that is not retryable, and nothing indicates that the image changed. A
    value that one side lacks (a list has no sizes) indicates nothing. The content that was last found at a web address
    decides. If the listing refuses a row, or has refused it before, it must do so again, for the same reason.
    """
    if rows.num_rows == 0:
        return pa.array([False] * listing.num_rows, pa.bool_())
    at = pc.index_in(listing["image_id"], rows["image_id"])
    found = rows.select(["uri", "size", "modified", "etag", "error_stage", "error_reason", "retryable"]).take(at)
    unchanged: Column = pc.and_(pc.is_valid(at), pc.invert(_fill(found["retryable"], False)))
    # Images always have a uri, so one that was missing before and is present now is a change.
    no_uri = pc.and_(pc.is_null(listing["uri"]), pc.is_null(found["uri"]))
    unchanged = pc.and_(unchanged, pc.or_(no_uri, _fill(pc.equal(listing["uri"], found["uri"]), False)))
    # An object that was rewritten with the same content has a new time, so if both ETags are known they decide.
    same_etag: Column = pc.equal(listing["etag"], found["etag"])
    unchanged = pc.and_(unchanged, _fill(same_etag, True))
    rejected = pc.is_valid(found["error_reason"])
    for name in ("size", "modified"):
        same: Column = _fill(pc.equal(listing[name], found[name]), True)
        unchanged = pc.and_(unchanged, pc.or_(same, _fill(same_etag, False)) if name == "modified" else same)
        # A broken link had neither size nor time, so having them now is a change.
        known_now = pc.and_(pc.is_valid(listing[name]), pc.is_null(found[name]))
        unchanged = pc.and_not(unchanged, pc.and_(rejected, known_now))
    unchanged = pc.and_(unchanged, pc.equal(_refusals(listing), _refusals(found)))
    if "content_hash" in listing.column_names:
        same = _fill(pc.equal(listing["content_hash"], rows["content_hash"].take(at)), False)
        unchanged = pc.and_(unchanged, pc.or_(same, pc.is_null(listing["content_hash"])))
    return unchanged


def _refusals(rows: pa.Table) -> Column:
    """The reasons for which a listing refuses rows; empty for others."""
    if "error_stage" not in rows.column_names:
        return pa.array([""] * rows.num_rows, TEXT)
    refused = pc.equal(rows["error_stage"], pa.scalar(REFUSED_STAGE, TEXT))
    reasons: Column = pc.if_else(refused, rows["error_reason"], pa.scalar("", TEXT)).fill_null("")
    return reasons


def _verify_hashes(listing: pa.Table, rows: pa.Table, unchanged: Column) -> Column:
    """`unchanged` without the images whose bytes differ from their rows; those that cannot be read now stay."""
    # Web addresses have been read already (`addresses.py`).
    same = listing.filter(pc.and_not(pc.and_not(unchanged, refused_mask(listing)), web_mask(listing["uri"])))
    recorded = rows["content_hash"].take(pc.index_in(same["image_id"], rows["image_id"]))
    altered = same["image_id"].filter(pc.not_equal(recorded, content_hashes(same["uri"].to_pylist())))
    return pc.and_(unchanged, pc.invert(pc.is_in(listing["image_id"], altered)))


def content_hashes(uris: Sequence[str | None]) -> pa.Array[Any]:
    """SHA-256 of each picture's bytes in hex; null if it cannot be read now, `NEVER_READABLE` if it never will be."""
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
