"""Compares a source with its rows, and plans the runs that bring the collection up to date."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.exif import EXIF_COLUMNS
from index.collection.catalog.catalog import FIRST_SEQ, Catalog
from index.collection.collection import Snapshot
from index.collection.records.model_record import ModelRecord
from index.collection.rows import in_memory, is_filtered, metadata_columns
from jobs.planning import plan_query as sql
from jobs.planning.decide import NONE_RELISTED, Decisions, PlannedJob, where
from jobs.planning.plan import Counts, Plan, last_filter
from jobs.sources.listing import FILE_FACTS, LISTING, REFUSAL, REFUSED_STAGE, with_columns
from jobs.sources.stored_listing import ROWS, Listing


@dataclass(frozen=True, kw_only=True)
class ReplacedImages:
    """Ids of `images` of another source, out of its `rows`, that the listing gives to images elsewhere."""

    source: str
    rows: int
    images: int
    first_id: str
    first_uri: str

    @property
    def warning(self) -> str:
        """A warning that other images will take these ids."""
        return (
            f"{self.images:,} ids belong to images elsewhere, which will be replaced; the first is "
            f"{self.first_id}, now {self.first_uri}. To keep both, use a collection for each source"
        )


@dataclass(frozen=True, kw_only=True)
class SourceChange:
    """What changed in a source, and the plans of the runs to write.

    `rows` counts the source's live rows, `others` those of other sources, `kept` the missing images that searches will
    still find. The listed source comes first; other sources follow if they have rows of another model, which are
    embedded again.
    """

    plans: list[Plan]
    rows: int
    others: int
    kept: int
    counts: Counts
    replaced: list[ReplacedImages]


def compare(listing: Listing, snapshot: Snapshot, job: PlannedJob) -> SourceChange:
    """Compare a listing with the rows, without writing anything."""
    catalog = snapshot.live.catalog
    decisions, missing = _decide(listing, snapshot, job, catalog)
    sources = [each.source for each in decisions]
    usable = [run for run in snapshot.unfinished if run.source in sources and run.model.agrees_with(job.model)]
    if usable and any(row["action"] != "keep" for each in decisions for row in each.counts):
        # The files of unfinished runs are read as a whole, so only if something is to do.
        catalog = snapshot.everything(usable)
        decisions, missing = _decide(listing, snapshot, job, catalog)
    first, *others = (each.planned() for each in decisions)
    gone = catalog.store("SELECT seq, image_id FROM missing WHERE gone")
    plans = [replace(first, deletes=gone, moved=_has_moved(snapshot, job.model)), *others]
    rows = Counter[str]()
    for number, count in catalog.live_counts.items():
        rows[catalog.runs[number].source] += count
    # Rows of the source alone replace none of another.
    replaced = [] if plans[0].done or rows.total() == rows[job.source] else decisions[0].replaced()
    return SourceChange(
        plans=plans,
        rows=rows[job.source],
        others=rows.total() - rows[job.source],
        kept=missing.pop("kept"),
        counts=_counts(decisions, **missing, replaced=sum(each["images"] for each in replaced)),
        replaced=[ReplacedImages(**each, rows=rows[each["source"]]) for each in replaced],
    )


def _has_moved(snapshot: Snapshot, model: ModelRecord) -> bool:
    """Whether the newest run names a folder for this model that is no longer there."""
    if not snapshot.committed or not (known := snapshot.committed[-1].model).agrees_with(model):
        return False
    return known.id != model.id and Path(known.id).is_absolute() and not Path(known.id).is_dir()


def _decide(
    listing: Listing, snapshot: Snapshot, job: PlannedJob, rows: Catalog
) -> tuple[list[Decisions], dict[str, int]]:
    """What happens to the images of a listing, and then to those of other sources with rows of another model; and the
    `MISSING_COUNTS`.

    An index has one model's vectors, so rows of such sources that are not listed are embedded again as well.
    """
    own = [number for number, run in enumerate(rows.runs) if run.source == job.source]
    same = [number for number, run in enumerate(rows.runs) if run.run and run.model.agrees_with(job.model)]
    values = {"listing": listing.view, "may_delete": job.may_delete, "own": sql.numbers(own), "same": sql.numbers(same)}
    rows.create(sql.filled(sql.MISSING, values))
    runs = rows.rows("SELECT DISTINCT run FROM others")
    sources, first = sorted({rows.runs[row["run"]].source for row in runs}), NONE_RELISTED
    others = {source: Listing.of(_relisted(rows, source, listing)) for source in sources if source != job.source}
    [missing] = rows.rows(sql.MISSING_COUNTS)
    if job.source in sources and missing["missing"] > missing["deleted"]:
        first = FIRST_SEQ + listing.num_rows
        listing = Listing.of(itertools.chain(listing.tables(), _relisted(rows, job.source, listing)))
    decisions = [Decisions(listing, snapshot, job, rows, first)]
    for source, relisted in others.items():
        other = replace(job, source=source, image_filter=last_filter(snapshot, source))
        decisions.append(Decisions(relisted, snapshot, other, rows, FIRST_SEQ))
    return decisions, missing


def _relisted(rows: Catalog, source: str, listing: Listing) -> Iterator[pa.Table]:
    """The rows of a source that are not listed, as images. Rejects that are not refused are tried again, as another
    model may accept them.
    """
    runs = [number for number, run in enumerate(rows.runs) if run.committed and run.source == source]
    schema = in_memory(rows.schema_of(runs))
    metadata = [name for name in metadata_columns(schema) if name not in EXIF_COLUMNS]
    names = [*LISTING.names, *REFUSAL.names, *FILE_FACTS.names, *metadata]
    found = f"""(FROM live_rows WHERE run IN ({sql.numbers(runs)}))
    ANTI JOIN {listing.view} USING (image_id) ANTI JOIN (FROM missing WHERE gone) AS gone USING (seq) ORDER BY seq"""
    for images in rows.read(pa.schema([schema.field(name) for name in names]), found, ROWS // 2):
        refused = pc.or_(pc.equal(images["error_stage"], pa.scalar(REFUSED_STAGE)), is_filtered(images))
        yield with_columns(images, {name: where(refused, images[name]) for name in REFUSAL.names})


def _counts(decisions: Sequence[Decisions], **others: int) -> Counts:
    counted = Counter[str]()
    for row in (row for each in decisions for row in each.counts):
        resumed = row["why"] if row["why"] in ("resumed", "moved", "refused", "filtered") else ""
        for name in ("listed", row["status"], _ACTIONS.get(row["action"], ""), resumed):
            counted[name] += row["images"]
    known = {name: counted[name] for name in Counts.__dataclass_fields__ if name not in others}
    return Counts(**known, **others)


_ACTIONS = {"copy": "reused", "embed": "to_embed"}
