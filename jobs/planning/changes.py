"""Compares a source with its rows, and plans the runs that bring the collection up to date."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections import Counter
from dataclasses import dataclass

from index.collection.collection import Snapshot
from jobs.errors import TooManyMissingError
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

    def check_limits(self, source: str, max_missing: float, *, delete: bool) -> None:
        """Raise `TooManyMissingError` if too many images would be deleted or replaced, or none would be left."""
        gone = self.counts.missing - self.counts.moved
        if delete and self.counts.listed == self.others == 0:
            # An index cannot be empty, so the current one would stay live and still find the deleted images.
            raise TooManyMissingError(
                f"{gone:,} of the {self.rows:,} images of {source} are no longer there, and the collection has no "
                "others, so nothing was changed: an index cannot be empty. Is a disk not mounted, or the address "
                "wrong? If the images are really gone, remove the collection, or embed other images into it first"
            )
        if delete:
            missing = f"{source} are no longer there"
            remedy = "Is a disk not mounted, or the address wrong? If the images are really gone"
            _check_share(gone, self.rows, missing, remedy, max_missing)
        for other in self.replaced:
            replaced = f"{other.source} would be replaced by images with the same ids in {source}"
            remedy = "Is the address wrong? To keep both, use a collection for each source. If you mean to replace them"
            _check_share(other.images, other.rows, replaced, remedy, max_missing)


def _check_share(count: int, rows: int, problem: str, remedy: str, max_missing: float) -> None:
    if count <= max_missing * rows:
        return
    share = count / rows
    raise TooManyMissingError(
        f"{count:,} of the {rows:,} images of {problem} ({share:.1%}, over the {max_missing:.0%} of --max-missing), so "
        f"nothing was changed. {remedy}, use --max-missing {min(1.0, share + 0.01):.2f}"
    )


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
