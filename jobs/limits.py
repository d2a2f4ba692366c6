"""Refuses a run that would delete, replace or reject more images than its job allows."""

from collections import Counter

from jobs.errors import TooManyMissingError, TooManyRejectsError
from jobs.planning.changes import SourceChange
from jobs.planning.rejects import format_reasons
from jobs.spec import JobSpec


def check_limits(change: SourceChange, spec: JobSpec, source: str, *, delete: bool) -> None:
    """Raise `TooManyMissingError` if too many images would be deleted or replaced, or none would be left."""
    counts, rows = change.counts, change.rows
    gone = counts.missing - counts.moved
    if delete and counts.listed == change.others == 0:
        # An index cannot be empty, so the current one would stay live and still find the deleted images.
        raise TooManyMissingError(
            f"{gone:,} of the {rows:,} images of {source} are no longer there, and the collection has no others, so "
            "nothing was changed: an index cannot be empty. Is a disk not mounted, or the address wrong? If the images "
            "are really gone, remove the collection, or embed other images into it first"
        )
    if delete:
        missing = f"{source} are no longer there"
        remedy = "Is a disk not mounted, or the address wrong? If the images are really gone"
        _check_share(gone, rows, missing, remedy, spec.max_missing)
    for other in change.replaced:
        replaced = f"{other.source} would be replaced by images with the same ids in {source}"
        remedy = "Is the address wrong? To keep both, use a collection for each source. If you mean to replace them"
        _check_share(other.images, other.rows, replaced, remedy, spec.max_missing)


def _check_share(count: int, rows: int, problem: str, remedy: str, max_missing: float) -> None:
    if count <= max_missing * rows:
        return
    share = count / rows
    raise TooManyMissingError(
        f"{count:,} of the {rows:,} images of {problem} ({share:.1%}, over the {max_missing:.0%} of --max-missing), so "
        f"nothing was changed. {remedy}, use --max-missing {min(1.0, share + 0.01):.2f}"
    )


def require_few_rejects(reasons: Counter[str], count: int, allowed: float, again: str) -> None:
    """Raise TooManyRejectsError if more than this share of `count` images was rejected; `again` says how to go on."""
    rejected = reasons.total()
    if rejected > allowed * count:
        raise TooManyRejectsError(
            f"{rejected} of {count} images were rejected ({rejected / count:.1%}; mostly "
            f"{format_reasons(reasons, 3)}), more than the {allowed:.1%} allowed, so nothing was published. Fix the "
            f"source, or raise --max-reject-rate (max_reject_rate in a job's file), and {again}. `likeness rejects` "
            "lists the rejects"
        )
