"""Runs the queries of a plan, and reads the pictures that they ask for."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.exif import EXIF_COLUMNS
from index.collection.catalog.catalog import FILE_BITS, Catalog, split_seq
from index.collection.collection import Snapshot
from index.collection.records.model_record import ModelRecord
from index.collection.rows import TEXT, is_filtered, metadata_columns
from jobs.addresses.check_listing import NONE_POSTPONED
from jobs.planning import plan_query as sql
from jobs.planning.content_hashes import content_hashes
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter
from jobs.planning.plan import Plan, next_attempt, unfinished_run
from jobs.planning.todo import Todo
from jobs.sources.listing import (
    COPIED,
    FILE_FACTS,
    REFUSAL,
    Column,
    with_columns,
    with_outcome,
)
from jobs.sources.stored_listing import Listing

_RUN_TYPES: dict[str, pa.DataType] = {
    **{"run": pa.int64(), "source": TEXT, "keep": TEXT, "differs": TEXT},
    **{"own": pa.bool_(), "same_model": pa.bool_()},
}
NONE_RELISTED: Final = 1 << 62


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
    """What happens to each image of a listing, and why. Those with the numbers from `relisted` on are rows."""

    def __init__(
        self, listing: Listing, snapshot: Snapshot, job: PlannedJob, rows: Catalog, relisted: int = NONE_RELISTED
    ) -> None:
        self._listing, self._snapshot, self._job, self._rows = listing, snapshot, job, rows
        self.source = job.source
        self._values: dict[str, object] = {
            **{"listing": listing.view, "postponed": job.postponed, "c": rows.name, "relisted": relisted},
            "verify_hash": job.verify_hash,
            "own": sql.numbers(number for number, run in enumerate(rows.runs) if run.source == job.source),
        }
        self._compare()
        self._judge()
        self._resume()
        self._verify()
        self._find_copies()
        self._create(sql.DECISIONS)

    # The steps

    def _compare(self) -> None:
        """Compare the images with their rows."""
        job, settings, rows = self._job, self._job.image_filter.settings, self._rows
        described = [
            {
                "run": number,
                "source": each.source,
                "own": each.source == job.source,
                "same_model": each.run.model.agrees_with(job.model),
                "keep": each.run.keep,
                "differs": next((name for name in settings.differing(each.run) if name != "keep"), None),
            }
            for number, each in enumerate(rows.runs)
            if each.run
        ]
        schema, unfinished = self._listing.schema, [n for n, run in enumerate(rows.runs) if not run.committed]
        known = metadata_columns(rows.schema_of([*rows.live_counts, *unfinished]))
        names = [name for name in dict.fromkeys([*metadata_columns(schema), *known]) if name not in EXIF_COLUMNS]
        # Values of runs whose text is of another type in the source now are written again.
        typed = [name for name in names if name in schema.names and schema.field(name).type not in (TEXT, pa.string())]
        columns = self._listing.catalog.shared_columns(rows, names)
        self._values |= {
            "l": sql.named("l", [listed for listed, _ in columns]),
            "r": sql.named("r", [known for _, known in columns]),
            "relabelled": sql.relabelled(len(names), {run for name in typed for run in rows.text_runs(name)}),
        }
        self._create(sql.COMPARED, described=pa.Table.from_pylist(described, pa.schema(_RUN_TYPES)))

    def _judge(self) -> None:
        """Find the images that the filter leaves out, and rows whose outcome it changes or cannot decide."""
        images = self._job.image_filter
        outcomes: Iterable[pa.Table] = ()
        if images.settings.keep is None:
            self._values["stale"] = self._filled(sql.WAS_LEFT_OUT)
        else:
            self._values["stale"] = "coalesce(outcomes.stale, false)"
            outcomes = (self._judged(images, *each) for each in self._with_listing(sql.TO_JUDGE))
        self._insert("outcomes", "number BIGINT, condition SMALLINT, stale BOOLEAN", outcomes)
        self._create(sql.JUDGED)

    def _judged(self, images: ImageFilter, known: pa.Table, listing: pa.Table) -> pa.Table:
        rows = known.select(["size", *FILE_FACTS.names, "error_reason"])
        covered: Any = known["covered"].cast(pa.bool_())
        left_out, judged = images.judge(with_outcome(listing, rows, FILE_FACTS.names))
        left_out = pc.if_else(pc.is_valid(listing["error_reason"]), pa.scalar(None, pa.int16()), left_out)
        out, before = pc.is_valid(left_out), is_filtered(rows)
        failed: Any = pc.and_not(pc.is_valid(rows["error_reason"]), before)
        same_filter: Any = pc.equal(known["keep"], pa.scalar(images.settings.keep, TEXT)).fill_null(False)
        certain: Any = pa.array(judged)
        good = pc.or_(pc.or_(same_filter, failed), pc.and_not(certain, before))
        stale = pc.and_not(covered, pc.if_else(out, before, good))
        outcomes = pa.table({"number": known["number"], "condition": left_out, "stale": stale})
        return outcomes.filter(pc.or_(out, stale))

    def _resume(self) -> None:
        """Take over what counts of the unfinished run, if there is one, and something is to do."""
        job, resumed = self._job, None
        if self._row("SELECT count(*) AS images FROM undecided WHERE NOT stays")["images"]:
            run = unfinished_run(self._snapshot, job.source, job.model, job.image_filter)
            resumed = next((n for n, each in enumerate(self._rows.runs) if run and each.run_id == run.run_id), None)
        self._resumed = resumed
        self._values["resumed"] = resumed
        self._create((sql.NOTHING_RESUMED if resumed is None else sql.RESUMED) + sql.SETTLED)

    def _verify(self) -> None:
        """Find images that seem unchanged, and have other bytes."""
        read = self._read(sql.TO_VERIFY) if self._job.verify_hash else ()
        altered = (each.filter(pc.not_equal(each["known_hash"], each["content_hash"])) for each in read)
        self._insert("altered", "number BIGINT", (each.select(["number"]) for each in altered))
        self._create(sql.TODO)

    def _find_copies(self) -> None:
        """Find images whose outcome is known: by id or address if nothing indicates a change, else by their bytes."""
        job, counts = self._job, self._row(sql.TODO_COUNTS)
        usable = [
            number
            for number, each in enumerate(self._rows.runs)
            if each.run and each.run.model.agrees_with(job.model) and job.image_filter.can_reuse(each.run)
        ]
        if not counts["todo"] or not usable:
            return
        self._values["usable"] = sql.numbers(usable)
        self._create(sql.COPIES)
        # If no image is missing, none has moved, and reading all new ones to look for copies costs more than it saves.
        if job.may_delete or counts["stay"] or job.verify_hash:
            found = (each.select(["number", "content_hash"]) for each in self._read(sql.TO_READ))
            self._insert("found", "number BIGINT, content_hash VARCHAR", found)
            self._create(sql.SAME_CONTENT)
        if job.image_filter.conditions:
            self._drop_undecided_copies()

    def _drop_undecided_copies(self) -> None:
        """Leave only copies that are rejects, or of which the filter is known to keep the image."""
        images = self._job.image_filter

        def undecided(rows: pa.Table, listed: pa.Table) -> pa.Table:
            failed, judged = images.judge(with_outcome(listed, rows, FILE_FACTS.names))
            judged |= bool(images.measures)  # all rows that it may be judged by are of jobs with the same expression
            usable = pc.and_(pc.is_null(failed), pc.or_(pc.is_valid(rows["error_reason"]), pa.array(judged)))
            return rows.select(["number"]).filter(pc.invert(usable))

        self._insert("dropped", "number BIGINT", (undecided(*each) for each in self._with_listing(sql.OUTCOMES)))
        self._create("DELETE FROM copies WHERE number IN (FROM dropped)")

    def _read(self, text: str) -> Iterator[pa.Table]:
        """The answer to a query of images, with the `content_hash` of each, whose file is read."""
        with self._listing.catalog.query(text) as batches:
            for images in map(pa.Table.from_batches, ([batch] for batch in batches)):
                yield with_columns(images, {"content_hash": content_hashes(images["uri"].to_pylist())})

    # The results

    @cached_property
    def counts(self) -> list[dict[str, Any]]:
        """How many `images` have each `action`, `why` and `status`."""
        found = list(self._listing.catalog.rows(sql.COUNTS))
        unchanged = self._listing.num_rows - sum(row["images"] for row in found)
        return [*found, {"action": "keep", "why": "unchanged", "status": "unchanged", "images": unchanged}]

    def replaced(self) -> list[dict[str, Any]]:
        """Of each other source, how many `images` lose their ids to other images of the listing, and the first."""
        return list(self._listing.catalog.rows(self._filled(sql.REPLACED)))

    def planned(self) -> Plan:
        """The run to write."""
        catalog, counts = self._listing.catalog, Counter[str]()
        for row in self.counts:
            counts.update({row["action"]: row["images"], row["why"]: row["images"], "listed": row["images"]})
        actions = [action for action in ("copy", "refuse", "embed") if counts[action]]
        every = Todo(itertools.chain.from_iterable(map(self._to_do, actions)))
        names = [name for name in every.schema.names if name not in (*REFUSAL.names, *FILE_FACTS.names)]
        resumed = None if self._resumed is None else self._rows.runs[self._resumed]
        written = resumed.files if resumed else []
        counting = np.asarray(catalog.table("FROM resumed_files")["file"] if resumed else [], np.int64)
        return Plan(
            source=self._job.source,
            model=self._job.model,
            listed=counts["listed"],
            todo=every.slice(counts["copy"] + counts["refuse"]).select(name for name in names if name != COPIED),
            copies=every.slice(0, counts["copy"]).select(names) if counts["copy"] else None,
            catalog=self._rows,
            refused=every.slice(counts["copy"], counts["copy"] + counts["refuse"]) if counts["refuse"] else None,
            filtered=counts["filtered"],
            rejects=catalog.store(sql.REJECTS),
            run=resumed.run if resumed else None,
            files=[written[number] for number in sorted(split_seq(counting << FILE_BITS)[1])],
            attempt=next_attempt(written),
            image_filter=self._job.image_filter,
        )

    def _to_do(self, action: str) -> Iterator[pa.Table]:
        """The images that get an action, with the place `COPIED`."""
        for rows, listed in self._with_listing(sql.TO_DO.replace("{action}", action)):
            condition = rows["condition"]
            if condition.null_count < len(condition):
                facts = {name: where(rows["covered"].cast(pa.bool_()), rows[name]) for name in FILE_FACTS.names}
                more = {name: rows[name] for name in ("size", "content_hash")}
                listed = self._job.image_filter.leave_out(with_columns(listed, facts | more), condition)
            yield listed.add_column(0, COPIED, rows["seq"])

    def _with_listing(self, text: str) -> Iterator[tuple[pa.Table, pa.Table]]:
        return self._listing.beside(self._filled(text))

    def _row(self, text: str) -> dict[str, Any]:
        return next(self._listing.catalog.rows(self._filled(text)))

    def _insert(self, name: str, columns: str, rows: Iterable[pa.Table]) -> None:
        """Create a table of rows that come while others are read: DuckDB may write it to disk."""
        self._create(f"CREATE OR REPLACE TABLE {name} ({columns})")
        for each in rows:
            self._create(f"INSERT INTO {name} FROM given", given=each)

    def _create(self, text: str, **tables: pa.Table) -> None:
        self._listing.catalog.create(self._filled(text), **tables)

    def _filled(self, text: str) -> str:
        return sql.filled(text, self._values)


def where(mask: Column, values: Column) -> Column:
    """The values where a mask is true, elsewhere null."""
    return pc.if_else(mask, values, pa.scalar(None, values.type))  # type: ignore[no-any-return]
