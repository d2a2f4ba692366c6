"""Runs the queries of a plan, and reads the pictures that they ask for."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.exif import EXIF_COLUMNS
from index.collection.catalog.catalog import FILE_BITS, Catalog, StoredAnswer, split_seq
from index.collection.catalog.sql import quoted
from index.collection.collection import Snapshot
from index.collection.live_rows import LiveRows
from index.collection.records import ModelRecord, RunStart
from index.collection.rows import TEXT, conform, is_filtered, metadata_columns
from index.storage.storage import canonical_address
from index.versions.servable import live_or_last_good_manifest
from jobs.addresses.check_listing import NONE_POSTPONED
from jobs.planning import plan_query as sql
from jobs.planning.content_hashes import content_hashes
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter, leave_out
from jobs.planning.plan import Plan, next_attempt
from jobs.planning.todo import IN_MEMORY, Todo
from jobs.sources.listing import (
    COPIED,
    FILE_FACTS,
    LISTING,
    REFUSAL,
    REFUSED_STAGE,
    Column,
    concat_listings,
    refused_mask,
    with_columns,
    with_outcome,
)
from jobs.sources.stored_listing import Listing

Seqs = npt.NDArray[np.int64]

_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("run", "number"), pa.int64()),
    **dict.fromkeys(("source", "keep", "differs", "message"), TEXT),
    **dict.fromkeys(("own", "same_model", "stale"), pa.bool_()),
}
_RUNS, _SOURCE_RUNS, _OUTCOMES = (
    pa.schema({name: _TYPES[name] for name in names.split()})
    for names in ("run source own same_model keep differs", "source run", "number message stale")
)


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """What a plan depends on beside listing and rows. Rejects of the ids `postponed`, in SQL, have to wait; images that
    are gone lose their rows if they `may_delete`; with `verify_hash` the bytes of all images are read.
    """

    source: str
    model: ModelRecord
    image_filter: ImageFilter = EVERY_IMAGE
    may_delete: bool = False
    verify_hash: bool = False
    postponed: str = NONE_POSTPONED


class Decisions:
    """What happens to each image of a listing, and why."""

    def __init__(self, listing: Listing, snapshot: Snapshot, job: PlannedJob, rows: Catalog) -> None:
        self._listing, self._snapshot, self._job, self.rows = listing, snapshot, job, rows
        self._create(f"CREATE OR REPLACE VIEW listing AS FROM {listing.view}")
        columns = self._compare()
        self._judge()
        self.resumed = self._resume(columns)
        self._verify()
        self._find_copies()
        self._create(sql.DECISIONS)

    # The steps

    def _compare(self) -> list[str]:
        """Compare the images with their rows; returns the metadata of rows in SQL."""
        job, settings = self._job, self._job.image_filter.settings
        described = [
            {
                "run": number,
                "source": each.source,
                "own": each.source == job.source,
                "same_model": each.run.model.agrees_with(job.model),
                "keep": each.run.keep,
                "differs": next((name for name in settings.differing(each.run) if name != "keep"), None),
            }
            for number, each in enumerate(self.rows.runs)
            if each.run
        ]
        names = self._metadata
        columns = self._listing.catalog.shared_columns(self.rows, names)
        known = [column for _, column in columns]
        self._create(
            f"CREATE OR REPLACE TABLE postponed AS FROM {job.postponed};"
            + "CREATE OR REPLACE TABLE runs AS FROM described;"
            + sql.known(known)
            + sql.MISSING,
            described=pa.Table.from_pylist(described, _RUNS),
        )
        self._create(
            "CREATE OR REPLACE TABLE retyped AS FROM given;"
            + sql.images([listed for listed, _ in columns], self._mixed)
            + sql.compared(len(names)),
            given=self._retyped(names),
        )
        return known

    @property
    def _metadata(self) -> list[str]:
        """The columns that the source gives."""
        unfinished = [number for number, run in enumerate(self.rows.runs) if not run.committed]
        known = self.rows.schema_of([*self.rows.live_counts, *unfinished])
        names = dict.fromkeys([*metadata_columns(self._listing.schema), *metadata_columns(known)])
        return [name for name in names if name not in EXIF_COLUMNS]

    def _retyped(self, names: Sequence[str]) -> pa.Table:
        """Runs whose text is of another type in a source now, so that its values are written again."""
        found = {
            (source, run)
            for source, schema in self._schemas_of_sources()
            for name in names
            if name in schema.names and schema.field(name).type not in (TEXT, pa.string())
            for run in self.rows.text_runs(name)
        }
        return pa.Table.from_pylist([{"source": source, "run": run} for source, run in sorted(found)], _SOURCE_RUNS)

    def _schemas_of_sources(self) -> Iterator[tuple[str, pa.Schema]]:
        yield self._job.source, self._listing.schema
        for source in self.sources[1:]:
            runs = [number for number, run in enumerate(self.rows.runs) if run.committed and run.source == source]
            yield source, self.rows.schema_of(runs)

    @cached_property
    def sources(self) -> list[str]:
        """The source of the listing; and those with rows of another model, as an index has one model's vectors."""
        return [self._job.source, *(source for source in self._mixed if source != self._job.source)]

    @cached_property
    def _mixed(self) -> list[str]:
        return list(map(str, self._table("SELECT DISTINCT source FROM others ORDER BY source")["source"].to_pylist()))

    def _judge(self) -> None:
        """Find the images that the filter leaves out, and rows whose outcome it changes or cannot decide."""
        images = self._job.image_filter
        if images.settings.keep is None:
            outcomes, judged = _OUTCOMES.empty_table(), sql.judged(sql.WAS_LEFT_OUT)
        else:
            outcomes, judged = pa.concat_tables(self._judged(images)), sql.judged("coalesce(outcomes.stale, false)")
        self._create("CREATE OR REPLACE TABLE outcomes AS FROM given;" + judged, given=outcomes)

    def _judged(self, images: ImageFilter) -> Iterator[pa.Table]:
        yield _OUTCOMES.empty_table()
        for known, listing in self._with_listing(sql.TO_JUDGE):
            rows = known.select(["size", *FILE_FACTS.names, "error_reason"])
            covered: Any = known["covered"].cast(pa.bool_())
            reasons, judged = images.judge(with_outcome(listing, rows, FILE_FACTS.names))
            reasons = pc.if_else(refused_mask(listing), pa.scalar(None, TEXT), reasons)
            out, before = pc.is_valid(reasons), is_filtered(rows)
            failed: Any = pc.and_not(pc.is_valid(rows["error_reason"]), before)
            same_filter: Any = pc.equal(known["keep"], pa.scalar(images.settings.keep, TEXT)).fill_null(False)
            certain: Any = pa.array(judged)
            good = pc.or_(pc.or_(same_filter, failed), pc.and_not(certain, before))
            stale = pc.and_not(covered, pc.if_else(out, before, good))
            outcomes = pa.table([known["number"], reasons, stale], schema=_OUTCOMES)
            yield outcomes.filter(pc.or_(out, stale))

    def _resume(self, columns: Sequence[str]) -> dict[str, int]:
        """Take over what counts of the unfinished runs; returns their numbers by source."""
        numbers = {run.run.run_id: number for number, run in enumerate(self.rows.runs) if run.run}
        started = self._table("SELECT DISTINCT source FROM undecided WHERE NOT stays ORDER BY source")["source"]
        resumed = dict[str, int]()
        for source in map(str, started.to_pylist()):
            run = unfinished_run(self._snapshot, source, self._job.model, self.filter_of(source))
            if run and run.run_id in numbers:
                resumed[source] = numbers[run.run_id]
        pairs = [{"source": source, "run": run} for source, run in resumed.items()]
        files = sql.resumed_files(columns) + sql.RESUMED if pairs else sql.NOTHING_RESUMED
        self._create(
            "CREATE OR REPLACE TABLE resumable AS FROM given;" + files + sql.SETTLED,
            given=pa.Table.from_pylist(pairs, _SOURCE_RUNS),
        )
        return resumed

    def _verify(self) -> None:
        """Find images that seem unchanged, and have other bytes."""
        altered: list[Any] = [pa.array([], pa.int64())]
        if self._job.verify_hash:
            with self._listing.catalog.query(sql.TO_VERIFY) as batches:
                for batch in batches:
                    differs = pc.not_equal(batch["known_hash"], content_hashes(batch["uri"].to_pylist()))
                    altered.append(batch["number"].filter(differs))
        given = pa.table({"number": pa.chunked_array(altered)})
        self._create("CREATE OR REPLACE TABLE altered AS FROM given;" + sql.TODO, given=given)

    def _find_copies(self) -> None:
        """Find images whose outcome is known: by id or address if nothing indicates a change, else by their bytes."""
        job = self._job
        [counts] = self._table(sql.TODO_COUNTS).to_pylist()
        usable = [
            {"source": source, "run": number}
            for source in self.sources
            for number, run in enumerate(self.rows.runs)
            if run.run and run.run.model.agrees_with(job.model) and self.filter_of(source).can_reuse(run.run)
        ]
        if not counts["todo"] or not usable:
            self._create(sql.NO_COPIES)
            return
        given = pa.Table.from_pylist(usable, _SOURCE_RUNS)
        self._create("CREATE OR REPLACE TABLE usable AS FROM given;" + sql.POOL + sql.COPIES, given=given)
        # If no image is missing, none has moved, and reading all new ones to look for copies costs more than it saves.
        if job.may_delete or counts["stay"] or job.verify_hash:
            self._read_likely_copies()
        if job.image_filter.conditions:
            self._drop_undecided_copies()

    def _read_likely_copies(self) -> None:
        found = [pa.table({"number": pa.array([], pa.int64()), "content_hash": pa.array([], TEXT)})]
        with self._listing.catalog.query(sql.TO_READ) as batches:
            for batch in batches:
                hashes = content_hashes(batch["uri"].to_pylist())
                found.append(pa.table({"number": batch["number"], "content_hash": hashes}))
        self._create(sql.SAME_CONTENT, found=pa.concat_tables(found))

    def _drop_undecided_copies(self) -> None:
        """Leave only copies that are rejects, or of which the filter is known to keep the image."""
        images = self._job.image_filter
        unusable = [pa.table({"number": pa.array([], pa.int64())})]
        for rows, listed in self._with_listing(sql.OUTCOMES):
            reasons, judged = images.judge(with_outcome(listed, rows, FILE_FACTS.names))
            judged |= bool(images.measures)  # all rows that it may be judged by are of jobs with the same expression
            usable = pc.and_(pc.is_null(reasons), pc.or_(pc.is_valid(rows["error_reason"]), pa.array(judged)))
            unusable.append(rows.select(["number"]).filter(pc.invert(usable)))
        self._create("DELETE FROM copies WHERE number IN (FROM given)", given=pa.concat_tables(unusable))

    # The results

    @cached_property
    def counts(self) -> list[dict[str, Any]]:
        """How many `images` of each `source` have each `action`, `why` and `status`."""
        found = self._table(sql.COUNTS).to_pylist()
        unchanged = Counter({self._job.source: self._listing.num_rows})
        if self._mixed:
            unchanged += Counter({row["source"]: row["images"] for row in self._table(sql.RELISTED_COUNTS).to_pylist()})
        for row in found:
            unchanged[row["source"]] -= row["images"]
        rest = {"action": "keep", "why": "unchanged", "status": "unchanged"}
        return [*found, *({**rest, "source": source, "images": images} for source, images in unchanged.items())]

    def missing(self) -> dict[str, Any]:
        """How many rows of the source have no image; `kept` counts those that searches will still find."""
        [counts] = self._table(sql.MISSING_COUNTS).to_pylist()
        return counts

    def replaced(self) -> list[dict[str, Any]]:
        """Of each other source, how many `images` lose their ids to other images of the listing, and the first."""
        return self._table(sql.REPLACED).to_pylist()

    def planned(self, source: str) -> Plan:
        """The run to write for a source."""
        wanted = quoted(source)
        written = self.rows.runs[self.resumed[source]].files if source in self.resumed else []
        counting = self._table(f"SELECT file FROM resumed_files WHERE source = {wanted}")["file"]
        numbers = set(split_seq(np.asarray(counting, np.int64) << FILE_BITS)[1])
        own, counts = source == self._job.source, Counter[str]()
        for row in self.counts:
            if row["source"] == source:
                counts.update({row["action"]: row["images"], row["why"]: row["images"], "listed": row["images"]})
        actions = [action for action in ("copy", "refuse", "embed") if counts[action]]
        every = Todo(itertools.chain.from_iterable(self._to_do(wanted, action) for action in actions))
        names = [name for name in every.schema.names if name not in (*REFUSAL.names, *FILE_FACTS.names)]
        return Plan(
            source=source,
            model=self._job.model,
            listed=counts["listed"],
            todo=every.slice(counts["copy"] + counts["refuse"]).select(name for name in names if name != COPIED),
            copies=every.slice(0, counts["copy"]).select(names) if counts["copy"] else None,
            catalog=self.rows,
            refused=every.slice(counts["copy"], counts["copy"] + counts["refuse"]) if counts["refuse"] else None,
            filtered=counts["filtered"],
            rejects=self._store(sql.REJECTS.replace("{wanted}", wanted)),
            run=self.rows.runs[self.resumed[source]].run if source in self.resumed else None,
            files=[file for number, file in enumerate(written) if number in numbers],
            attempt=next_attempt(written),
            deletes=self._store("SELECT seq, image_id FROM missing WHERE gone") if own else None,
            image_filter=self.filter_of(source),
        )

    def _to_do(self, wanted: str, action: str) -> Iterator[pa.Table]:
        """The images of a source that get an action, with the place `COPIED`."""
        for rows, listed in self._with_listing(sql.TO_DO.replace("{wanted}", wanted).replace("{action}", action)):
            numbers, message = np.asarray(rows["number"], np.int64), rows["message"]
            is_listed = numbers < sql.RELISTED
            if not is_listed.all():
                relisted = self._relisted(numbers[~is_listed])
                listed = (
                    concat_listings([listed.filter(pa.array(is_listed)), relisted]) if is_listed.any() else relisted
                )
            if message.null_count < len(message):
                facts = {name: _where(rows["covered"].cast(pa.bool_()), rows[name]) for name in FILE_FACTS.names}
                more = {name: rows[name] for name in ("size", "content_hash")}
                listed = leave_out(with_columns(listed, facts | more), message)
            yield listed.add_column(0, COPIED, rows["seq"])

    def _with_listing(self, text: str) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The answer to a query, by `number`, and beside it the images as they are listed, with what refuses them."""
        names, schema = [*LISTING.names, *REFUSAL.names, *FILE_FACTS.names], self._listing.whole_schema
        images = f"(SELECT seq, {self._listing.catalog.columns(names)} FROM listing) AS image"
        text = f"SELECT answer.*, image.* EXCLUDE (seq) FROM ({text}) AS answer LEFT JOIN {images}"
        text = self._filled(f"{text} ON image.seq = number ORDER BY number")
        with self._listing.catalog.query(text, IN_MEMORY) as batches:
            for batch in batches:
                found = pa.Table.from_batches([batch])
                first = found.num_columns - len(names)
                for part in self._listing.with_metadata(found, np.asarray(found["number"], np.int64)):
                    listed = part.select(range(first, part.num_columns))
                    listed = listed.rename_columns([*names, *listed.column_names[len(names) :]])
                    yield part.select(range(first)), conform(listed, schema)

    def _relisted(self, numbers: Seqs) -> pa.Table:
        """The images of these numbers, which are ascending, as their rows say."""
        live = LiveRows.at(self.rows, numbers - sql.RELISTED)
        metadata = [name for name in live.metadata if name not in EXIF_COLUMNS]
        rows = live.read([*LISTING.names, *REFUSAL.names, *FILE_FACTS.names, *metadata])
        refused = pc.or_(pc.equal(rows["error_stage"], pa.scalar(REFUSED_STAGE)), is_filtered(rows))
        return with_columns(rows, {name: _where(refused, rows[name]) for name in REFUSAL.names})

    def filter_of(self, source: str) -> ImageFilter:
        """The filter of a source: of others as their last job left them."""
        return self._job.image_filter if source == self._job.source else last_filter(self._snapshot, source)

    def _filled(self, text: str) -> str:
        """A statement with what the job says: constants, as queries of them would become joins."""
        job = self._job
        values: dict[str, object] = {"source": quoted(job.source), "c": self.rows.name}
        values |= {"may_delete": job.may_delete, "verify_hash": job.verify_hash}
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def _create(self, text: str, **tables: pa.Table) -> None:
        self._listing.catalog.create(self._filled(text), **tables)

    def _store(self, text: str) -> StoredAnswer:
        return self._listing.catalog.store(self._filled(text))

    def _table(self, text: str) -> pa.Table:
        return self._listing.catalog.table(self._filled(text))


def _where(mask: Column, values: Column) -> Column:
    """The values where a mask is true, elsewhere null."""
    return pc.if_else(mask, values, pa.scalar(None, values.type))  # type: ignore[no-any-return]


def unfinished_run(snapshot: Snapshot, source: str, model: ModelRecord, image_filter: ImageFilter) -> RunStart | None:
    """The newest run of a source, a model and a filter that was started and not committed."""
    # A newer committed run would hide an older one's rows of the same ids; a new run copies these instead.
    newer = (run for run in snapshot.unfinished if run.run_id > snapshot.last_run)
    same = [run for run in newer if run.source == source and not image_filter.settings.differing(run)]
    started = [run for run in same if run.model.agrees_with(model)]
    if not started:
        return None
    # A run that is in the live version has lost its manifest. If it were resumed, its new rows would seem indexed.
    live = live_or_last_good_manifest(snapshot.collection)
    return None if live and started[-1].run_id in live.runs else started[-1]


def last_filter(snapshot: Snapshot, source: str) -> ImageFilter:
    """The filter of the source's last run, as recorded there: its settings, so it cannot judge images."""
    runs = (run for run in reversed(snapshot.committed) if canonical_address(run.source) == source)
    return next((ImageFilter(settings=run) for run in runs), EVERY_IMAGE)
