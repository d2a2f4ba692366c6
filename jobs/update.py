"""Brings a collection up to date with its source: new and changed images are embedded, moved ones keep their vectors,
missing ones are recorded as deleted, and the index follows. It costs what the change costs, and may run at any time.

`likeness embed` is the same with `missing="keep"` and `other_model="refuse"`.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from rich.console import Console
from rich.markup import escape

from embedder.models.checkpoint import Checkpoint
from index.collection import writing
from index.collection.collection import Collection, Snapshot
from index.collection.records import ModelRecord, RunManifest
from index.errors import NotACollectionError
from index.storage.bucket import without_secrets
from index.storage.storage import Storage, canonical_address
from jobs.embedding.commit import WrittenRun, commit
from jobs.embedding.model import crop_of, known_models, wanted_model
from jobs.embedding.report import EmbedReport
from jobs.embedding.request import JobRequest, ModelSource
from jobs.embedding.update_report import ReembedReport, Stopwatch
from jobs.embedding.write_plans import carry_out
from jobs.errors import EmptySourceError, OtherModelError, UsageError
from jobs.indexing.up_to_date import IndexOutcome, bring_index_up_to_date
from jobs.planning.changes import SourceChange, compare
from jobs.planning.plan import Plan
from jobs.planning.reuse import write_known
from jobs.sources.files import require_place
from jobs.sources.list_images import left_out_warning, list_images
from jobs.sources.listing import LISTING, UNREADABLE, refused_mask
from jobs.values import IMAGE_EXTENSIONS


@dataclass(frozen=True, kw_only=True)
class ReembedSettings(JobRequest):
    """What to bring up to date, and how.

    `model` None: that of the live index, or `default_model` for a collection that has none. `other_model` says what
    happens if the collection has another one. `index` has the `IndexSettings` to change, by name; None: no index is
    built. `missing` says what happens to rows whose images are not listed any more; if they are more than
    `max_missing` of the source's rows, nothing is done. `verify_hash` reads the bytes of every image.
    """

    command: str = "reembed"
    model: str | None = None
    default_model: str | None = None
    revision: str | None = None
    device: str | None = None
    batch_size: int = 64
    index: Mapping[str, Any] | None = field(default_factory=dict)
    missing: Literal["keep", "delete"] = "delete"
    max_missing: float = 0.2
    other_model: Literal["embed", "refuse"] = "embed"
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
    clock = clock or Stopwatch()
    try:
        require_place(settings.source)
    except EmptySourceError:
        if not _may_be_empty(settings):
            raise
    collection, listing = _opened(settings, clock, console)
    if settings.dry_run:
        return _bring_up_to_date(settings, collection, listing, clock, console)
    with writing(collection, settings.command) as held:
        return _bring_up_to_date(settings, held, listing, clock, console)


def _opened(settings: ReembedSettings, clock: Stopwatch, console: Console) -> tuple[Collection, pa.Table | None]:
    """The collection, and None; if there is none and a model is known to make it with, a new one, and the listing."""
    try:
        return Collection.open(settings.collection), None
    except NotACollectionError:
        model = settings.model or settings.default_model
        if model is None:
            raise
        planned = Collection.planned(settings.collection)
    # Before the collection is made: a mistake in the model's name, or a source without images, leaves none behind.
    if not settings.dry_run:
        Checkpoint.find(model, settings.revision)
    listing = _list(settings, clock, console)
    return planned if settings.dry_run else Collection.create_or_open(settings.collection), listing


def _bring_up_to_date(
    settings: ReembedSettings, collection: Collection, listing: pa.Table | None, clock: Stopwatch, console: Console
) -> ReembedReport:
    snapshot = collection.snapshot()
    if listing is None or snapshot.committed:
        # Under the lease: images that another job embedded after the listing would otherwise seem to be gone.
        listing = _list(settings, clock, console)
    if clock.left_out:
        console.print(f"[yellow]{escape(left_out_warning(clock.left_out))}", soft_wrap=True)
    model = _model(settings, snapshot)
    notes = _unreadable_parts(settings, listing)
    change = _compare(settings, listing, snapshot, model, clock, console, keep=bool(notes))
    if settings.dry_run:
        return _report(settings, model, change, [], [], IndexOutcome.untouched(collection), notes, clock)
    console.print(f"{change.counts.listed:,} images listed, {change.counts.to_embed:,} to embed with {model.id}")
    with clock("reuse"):
        plans = [write_known(known, collection) for known in change.known]
    with clock("embed"):
        written = _carry_out(settings, model, [plan for plan in plans if not plan.done], collection, console)
    with clock("commit"):
        runs = commit(collection, written, settings.options.max_reject_rate)
    outcome = IndexOutcome.untouched(collection)
    if settings.index is not None:
        every = sorted([*snapshot.committed, *runs], key=lambda run: run.run_id)
        with clock("index"), console.status("bringing the index up to date"):
            outcome = bring_index_up_to_date(collection, every, settings.index, settings.address, console)
    return _report(settings, model, change, written, runs, outcome, notes, clock)


def _list(settings: ReembedSettings, clock: Stopwatch, console: Console) -> pa.Table:
    """The listing; `clock` gets what it leaves out. It may be empty if all rows of the source may be deleted;
    `max_missing` then decides.
    """
    clock.left_out.clear()
    try:
        with clock("list"), console.status(f"listing {without_secrets(settings.source)}"):
            return list_images(settings.source, extensions=settings.extensions, left_out=clock.left_out)
    except EmptySourceError:
        if not _may_be_empty(settings):
            raise
        return LISTING.empty_table()


def _may_be_empty(settings: ReembedSettings) -> bool:
    """Whether the collection has rows of the source, which would then be deleted."""
    if settings.missing == "keep":
        return False
    return _address(settings.source) in Collection.planned(settings.collection).snapshot().live().sources


def _model(settings: ReembedSettings, snapshot: Snapshot) -> ModelRecord:
    """The model to embed with. UsageError where none is named and none is known, OtherModelError if it is refused."""
    known, location = known_models(snapshot), snapshot.collection.location
    there = known[0] if known else None
    # A first run that was stopped, or refused for its rejects, has chosen the model too.
    usual = there or next((run.model for run in reversed(snapshot.unfinished)), None)
    name = settings.model
    if name is None and usual:
        if settings.revision is None:
            return usual
        name = usual.id
    if (name := name or settings.default_model) is None:
        raise UsageError(f"nothing is embedded yet in {location}: name a model with --model")
    model = wanted_model(settings.load(name, settings.revision))
    if settings.other_model == "refuse" and there and not there.agrees_with(model):
        raise OtherModelError(
            f"{location} was embedded with {there}, not with {model}: their vectors cannot be compared. Use that "
            "model, or name another folder for a new collection; `likeness reembed --model` changes the model"
        )
    return model


def _unreadable_parts(settings: ReembedSettings, listing: pa.Table) -> list[str]:
    """A note if tars, lists or folders cannot be read beside others that can."""
    unreadable = listing.filter(refused_mask(listing, UNREADABLE))
    if not unreadable.num_rows:
        return []
    return [
        f"parts of {without_secrets(settings.source)} cannot be read, {unreadable.num_rows:,} in all, so their images "
        f"are left as they are, and nothing is deleted: {unreadable['error_message'][0]}. `likeness rejects` lists them"
    ]


def _compare(
    settings: ReembedSettings,
    listing: pa.Table,
    snapshot: Snapshot,
    model: ModelRecord,
    clock: Stopwatch,
    console: Console,
    *,
    keep: bool,
) -> SourceChange:
    """What has changed; with `keep` nothing is deleted. TooManyMissingError if it is too much."""
    source, delete = without_secrets(settings.source), settings.missing == "delete" and not keep
    with clock("compare"), console.status("comparing"):
        address = _address(settings.source)
        change = compare(listing, snapshot, address, model, delete=delete, verify_hash=settings.verify_hash)
        clock.counts = change.counts
        change.require_few_missing(source, settings.max_missing, delete=delete)
        change.require_few_replaced(source, settings.max_missing)
    warnings = [replaced.warning for replaced in change.replaced]
    if change.kept and not keep:
        warnings.append(_kept_warning(settings, change))
    for warning in warnings:
        console.print(f"[yellow]{escape(warning)}", soft_wrap=True, highlight=False)
    return change


def _kept_warning(settings: ReembedSettings, change: SourceChange) -> str:
    """What is said of images that are gone and still found, with the command that removes them."""
    source, collection = without_secrets(settings.source), without_secrets(settings.collection)
    command = ["likeness", "reembed", source, collection]
    if tuple(settings.extensions) != IMAGE_EXTENSIONS:
        command += ["--extensions", ",".join(settings.extensions)]
    if (share := change.counts.missing / change.rows) > ReembedSettings.max_missing:
        command += ["--max-missing", f"{min(1.0, share + 0.01):.2f}"]
    return (
        f"no longer in {source}, or moved within it, and still found: {change.kept:,} images. "
        f"`{shlex.join(command)}` removes them"
    )


def _address(source: str) -> str:
    """The source's address as runs record it: absolute, in one spelling, without credentials."""
    return canonical_address(Storage.open(source).location)


def _carry_out(
    settings: ReembedSettings, model: ModelRecord, plans: Sequence[Plan], collection: Collection, console: Console
) -> list[WrittenRun]:
    load = settings.load(model.id, model.revision)
    crop = crop_of(model, load) if any(plan.todo.num_rows for plan in plans) else None
    return carry_out(settings, plans, collection, console, load=load, crop=crop)


def _report(
    settings: ReembedSettings,
    model: ModelRecord,
    change: SourceChange,
    written: Sequence[WrittenRun],
    runs: Sequence[RunManifest],
    index: IndexOutcome,
    notes: list[str],
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
        embedding=[each.report for each in written] or [EmbedReport.of(change.known[0].plan)],
        runs=[run.run_id for run in runs],
        index_before=index.before,
        index_after=index.after,
        recall=index.recall,
        promoted=index.promoted,
        note="; ".join([*notes, *([index.note] if index.note else [])]) or None,
        seconds=seconds,
        worker_seconds={
            stage: round(sum(getattr(each.report, f"{stage}_seconds") for each in written), 3)
            for stage in ("fetch", "decode", "model", "write")
        },
    )
