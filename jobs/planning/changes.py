"""Compares a source with its rows, and plans the runs that bring the collection up to date."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections import Counter
from dataclasses import dataclass

from index.collection.collection import Snapshot
from jobs.planning.decide import Decisions, PlannedJob
from jobs.planning.plan import Counts, Plan
from jobs.sources.stored_listing import Listing


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
    decisions = Decisions(listing, snapshot, job, snapshot.live().catalog)
    if snapshot.unfinished and any(row["action"] != "keep" for row in decisions.counts):
        # The files of unfinished runs are read as a whole, so only if something is to do.
        decisions = Decisions(listing, snapshot, job, snapshot.everything())
    plans = [decisions.planned(name) for name in decisions.sources]
    rows = Counter[str]()
    for number, count in decisions.rows.live_counts.items():
        rows[decisions.rows.runs[number].source] += count
    # Rows of the source alone replace none of another.
    replaced = [] if plans[0].done or rows.total() == rows[job.source] else decisions.replaced()
    missing = decisions.missing()
    return SourceChange(
        plans=plans,
        rows=rows[job.source],
        others=rows.total() - rows[job.source],
        kept=missing.pop("kept"),
        counts=_counts(decisions, **missing, replaced=sum(each["images"] for each in replaced)),
        replaced=[ReplacedImages(**each, rows=rows[each["source"]]) for each in replaced],
    )


def _counts(decisions: Decisions, **others: int) -> Counts:
    counted, rows = Counter[str](), decisions.counts
    for row in rows:
        resumed = row["why"] if row["why"] in ("resumed", "moved", "refused", "filtered") else ""
        for name in ("listed", row["status"], _ACTIONS.get(row["action"], ""), resumed):
            counted[name] += row["images"]
    known = {name: counted[name] for name in Counts.__dataclass_fields__ if name not in others}
    return Counts(**known, **others)


_ACTIONS = {"copy": "reused", "embed": "to_embed"}
