"""Brings a collection up to date with its source: new and changed images are embedded, moved ones keep their vectors,
missing ones are recorded as deleted, and the index follows. It costs what the change costs, and may run at any time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pyarrow as pa
from rich.console import Console
from rich.markup import escape

from index.clouds import without_secrets
from index.collection import Collection
from index.lease import writing
from index.live import LiveRows
from index.records import ModelRecord
from index.storage import Storage, place
from jobs.carry_out import carry_out
from jobs.commit import Written, commit
from jobs.errors import EmptySourceError
from jobs.files import require_place
from jobs.listing import LISTING
from jobs.plan import Plan, replaced_warning
from jobs.reembed_index import IndexOutcome, bring_index_up_to_date
from jobs.reembed_model import crop_of, wanted_model
from jobs.reembed_plan import Change, compare
from jobs.reembed_report import ReembedReport, Stopwatch
from jobs.request import JobRequest, ModelSource
from jobs.reuse import write_known
from jobs.sources import left_out_warning, list_images

CarryOut = Callable[[Sequence[Plan], Collection], list[Written]]
"""Writes the rows of plans, with the model if there are images to embed."""


@dataclass(frozen=True, kw_only=True)
class ReembedSettings(JobRequest):
    """What to bring up to date, and how.

    `model` None: that of the live index. `index` has the `IndexSettings` to change, by name. `missing` says what
    happens to rows whose images are not listed any more; if they are more than `max_missing` of the source's rows,
    nothing is done. `verify_hash` reads the bytes of every image.
    """

    model: str | None = None
    revision: str | None = None
    device: str | None = None
    batch_size: int = 64
    index: Mapping[str, Any] = field(default_factory=dict)
    missing: Literal["keep", "delete"] = "delete"
    max_missing: float = 0.2
    verify_hash: bool = False
    dry_run: bool = False

    def load(self, model: str, revision: str | None) -> ModelSource:
        """How workers load a model."""
        return ModelSource(model=model, revision=revision, device=self.device, batch_size=self.batch_size)


def reembed(settings: ReembedSettings, console: Console, clock: Stopwatch | None = None) -> ReembedReport:
    """Bring the collection and its index up to date; with `dry_run` only plan. `clock` records the stages.

    Raises `TooManyMissingError` with nothing changed, `TooManyRejectsError` and `RecallTooLowError` with nothing
    published, `SourceError` when the source cannot be listed, and what loading, embedding and indexing raise. After
    any of them, and after a crash, the same call goes on.
    """
    try:
        require_place(settings.source)
    except EmptySourceError:
        if not _known(settings):
            raise
    if settings.model is None:
        collection = Collection.open(settings.collection)
    elif settings.dry_run:
        collection = Collection.planned(settings.collection)
    else:
        collection = Collection.create_or_open(settings.collection)
    if settings.dry_run:
        return _bring_up_to_date(settings, collection, clock or Stopwatch(), console)
    with writing(collection, "reembed") as held:
        return _bring_up_to_date(settings, held, clock or Stopwatch(), console)


def _bring_up_to_date(
    settings: ReembedSettings, collection: Collection, clock: Stopwatch, console: Console
) -> ReembedReport:
    # Under the lease: images that another job embedded after the listing would otherwise seem to be gone.
    with clock("list"), console.status(f"listing {without_secrets(settings.source)}"):
        listing = list_source(settings, clock)
    if clock.left_out:
        console.print(f"[yellow]{escape(left_out_warning(clock.left_out))}", soft_wrap=True)
    named = settings.load(settings.model, settings.revision) if settings.model else None
    model = wanted_model(collection, named)
    return bring_up_to_date(
        settings, listing, collection, model, partial(_carry_out, settings, model, console), clock, console
    )


def bring_up_to_date(
    settings: ReembedSettings,
    listing: pa.Table,
    collection: Collection,
    model: ModelRecord,
    write: CarryOut,
    clock: Stopwatch,
    console: Console,
) -> ReembedReport:
    """`reembed`, once the source is listed and the model is known."""
    source, delete = _address(settings.source), settings.missing == "delete"
    with clock("compare"), console.status("comparing"):
        change = compare(listing, collection, source, model, delete=delete, verify_hash=settings.verify_hash)
        clock.counts = change.counts
        change.require_few_missing(without_secrets(settings.source), settings.max_missing, delete=delete)
        change.require_few_replaced(without_secrets(settings.source), settings.max_missing)
    for replaced in change.replaced:
        console.print(f"[yellow]{escape(replaced_warning(replaced.images))}")
    if settings.dry_run:
        return _report(settings, model, change, [], [], IndexOutcome.untouched(collection), clock)
    with clock("reuse"):
        plans = [write_known(known, collection) for known in change.known]
    with clock("embed"):
        written = write([plan for plan in plans if not plan.done], collection)
    with clock("commit"):
        runs = commit(collection, written, settings.options.max_reject_rate)
    with clock("index"), console.status("bringing the index up to date"):
        outcome = bring_index_up_to_date(collection, settings.index, settings.address, console)
    return _report(settings, model, change, written, runs, outcome, clock)


def list_source(settings: ReembedSettings, clock: Stopwatch) -> pa.Table:
    """The listing; `clock` gets what it leaves out. It may be empty if the collection has rows of the source;
    `max_missing` then decides.
    """
    try:
        return list_images(settings.source, extensions=settings.extensions, left_out=clock.left_out)
    except EmptySourceError:
        if not _known(settings):
            raise
        return LISTING.empty_table()


def _known(settings: ReembedSettings) -> bool:
    """Whether the collection has rows of the source."""
    collection = Collection.planned(settings.collection)
    return _address(settings.source) in LiveRows.of_runs(collection.storage, collection.runs()).sources


def _address(source: str) -> str:
    """The source's address as runs record it: absolute, in one spelling, without credentials."""
    return place(Storage.open(source).location)


def _carry_out(
    settings: ReembedSettings, model: ModelRecord, console: Console, plans: Sequence[Plan], collection: Collection
) -> list[Written]:
    load = settings.load(model.id, model.revision)
    crop = crop_of(model, load) if any(plan.todo.num_rows for plan in plans) else None
    return carry_out(settings, plans, collection, console, load=load, crop=crop)


def _report(
    settings: ReembedSettings,
    model: ModelRecord,
    change: Change,
    written: Sequence[Written],
    runs: list[str],
    index: IndexOutcome,
    clock: Stopwatch,
) -> ReembedReport:
    seconds = dict(clock.seconds)
    if written:
        embedding = sum(each.report.seconds for each in written)
        seconds = {**seconds, "start": round(seconds["embed"] - embedding, 3), "embed": round(embedding, 3)}
    failed = sum(each.report.retryable for each in written)
    return ReembedReport(
        source=without_secrets(settings.source),
        collection=without_secrets(settings.collection),
        model=str(model),
        dry_run=settings.dry_run,
        counts=change.counts,
        left_out=dict(clock.left_out),
        embedded=sum(each.report.embedded for each in written),
        rejected=sum(each.report.rejected for each in written) - failed,
        failed=failed,
        runs=runs,
        index_before=index.before,
        index_after=index.after,
        recall=index.recall,
        promoted=index.promoted,
        note=index.note,
        seconds=seconds,
        worker_seconds={
            stage: round(sum(getattr(each.report, f"{stage}_seconds") for each in written), 3)
            for stage in ("fetch", "decode", "model", "write")
        },
    )
