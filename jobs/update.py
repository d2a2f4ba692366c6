"""Brings a collection up to date with its source: new and changed images are embedded, moved ones keep their vectors,
missing ones are recorded as deleted, and the index follows. It may run at any time; the cost is that of the change.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.markup import escape

from embedder.fetch.uris import FRAME_MARK
from embedder.images.exif import EXIF_VERSION
from embedder.images.formats import IMAGE_EXTENSIONS
from embedder.protocol import Embedder
from index.collection import writing
from index.collection.annotations import annotation_log, list_annotations
from index.collection.collection import Collection, Snapshot
from index.collection.records.index_settings import IndexSettings
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunManifest
from index.collection.rows import metadata_columns
from index.errors import NotACollectionError, RolledBackError
from index.matches import SEARCHES
from index.storage.bucket_address import without_secrets
from index.versions.servable import live_manifest, live_or_last_good_manifest, live_version
from jobs.addresses.check_listing import CheckedListing, CheckRules, check_listing
from jobs.annotation.publish import hidden_columns
from jobs.embedding.commit import WrittenRun, commit
from jobs.embedding.model_source import ModelCache, ModelSource, choose_model, named_model
from jobs.embedding.pipeline import write_plans
from jobs.embedding.report import EmbedReport, Report
from jobs.errors import EmptySourceError
from jobs.indexing.on_ray import run_on_ray
from jobs.indexing.query_texts import QueryTexts, read_queries
from jobs.limits import check_limits
from jobs.planning.changes import SourceChange, compare
from jobs.planning.decide import PlannedJob
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter
from jobs.planning.known_rows import write_known
from jobs.planning.plan import Plan, last_filter
from jobs.planning.recent_changes import leave_out_recent
from jobs.sources.files import require_source_exists, source_address
from jobs.sources.list_images import left_out_warning, list_images
from jobs.sources.list_videos import Frames, frames_of
from jobs.sources.listing import UNREADABLE, WEB
from jobs.sources.stored_listing import Listing
from jobs.spec import JobSpec
from jobs.values import MAX_MISSING, counted, noted

if TYPE_CHECKING:
    from jobs.annotation.predictors.search_queries import Queries


@dataclass(frozen=True, kw_only=True)
class Update:
    """One job. It may be run again after any error or crash, and continues.

    Only `reembed` changes a collection's model: the other commands refuse another model, and give a new collection the
    default one. `verbose` shows what Ray and its workers print. `report` is filled as the job proceeds. Files that
    changed within the last `settle_s` seconds may be half written: they are skipped, and counted in the report.
    `clock` tells when web addresses are due. `model_cache` has the model for all jobs that share it. Without `create`
    the collection must exist. The job waits up to `wait_s` seconds for another one that is writing.
    """

    spec: JobSpec
    console: Console
    report: Report = field(default_factory=Report)
    command: Literal["embed", "reembed", "watch"] = "reembed"
    settle_s: float = 0.0
    index: bool = True
    dry_run: bool = False
    verbose: bool = False
    create: bool = True
    wait_s: float = 0.0
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    model_cache: ModelCache = field(default_factory=ModelCache)

    def run(self, then: Callable[[Collection], object] = lambda _: None) -> Report:
        """Bring the collection and its index up to date, and go on with `then` under the same lease.

        Raises `TooManyMissingError` with nothing changed, `TooManyRejectsError` and `RecallTooLowError` with nothing
        published, `SourceError` if the source cannot be listed, and the errors of loading, embedding and indexing.
        """
        report = self.report
        report.source, report.collection = without_secrets(self.spec.source), without_secrets(self.spec.collection)
        report.dry_run = self.dry_run
        texts = read_queries(self.spec.index.queries) if self.spec.index.queries else []
        try:
            require_source_exists(self.spec.source)
        except EmptySourceError:
            if not self._may_be_empty():
                raise
        collection, listing = self._open()
        if self.dry_run:
            self._bring_up_to_date(collection, listing, texts)
        else:
            with writing(collection, self.command, wait_s=self.wait_s) as leased:
                self._bring_up_to_date(leased, listing, texts)
                then(leased)
        return report

    def load(self) -> None:
        """Load the model before it is needed, for a job that runs repeatedly. Raises if it or the source is missing."""
        require_source_exists(self.spec.source)
        open_collection = Collection.open_or_empty if self.create else Collection.open
        snapshot = open_collection(self.spec.collection).snapshot()
        self.embedder(choose_model(self.spec, snapshot, self.model_cache, self.command), convert=True)

    def _open(self) -> tuple[Collection, Listing | None]:
        """The collection and None; or, if there is none yet and the model is known, a new one and the listing."""
        location = self.spec.collection
        try:
            return Collection.open(location), None
        except NotACollectionError:
            if not self.create or (model := named_model(self.spec, self.command)) is None:
                raise
            planned = Collection.open_or_empty(location)
        # Before the collection is made: a wrong model name, or a source without images, leaves none behind.
        if not self.dry_run:
            self.model_cache.find(model, self.spec.revision, self.spec.embedder)
        listing = self._list()
        self._filter_of(listing)
        return planned if self.dry_run else Collection.create_or_open(location), listing

    def _bring_up_to_date(self, collection: Collection, listing: Listing | None, texts: Sequence[str]) -> None:
        report, snapshot, incomplete = self.report, collection.snapshot(), False
        if listing is None or snapshot.committed:
            # Under the lease: images that another job embedded after the listing would otherwise seem to be gone.
            listing = self._list(snapshot)
        image_filter = self._filter_of(listing)
        if self.settle_s:
            listing, report.recently_changed, incomplete = leave_out_recent(listing, snapshot, self.settle_s)
            if report.recently_changed and not listing.num_rows:
                return
        if warning := left_out_warning(report.left_out):
            self._warn(warning)
        for warning in hidden_columns(collection, metadata_columns(listing.schema)):
            self._warn(warning)
        model = choose_model(self.spec, snapshot, self.model_cache, self.command)
        report.model = str(model)
        queries = self._check_searches(collection, listing, model) if self.spec.searches else None
        now = self.clock()
        checked = self._check(listing, snapshot, model, now)
        change = self._compare(checked, snapshot, model, image_filter, incomplete=incomplete)
        report.embedding = [EmbedReport.of(change.plans[0])]
        if self.dry_run:
            if queries:
                self._note_untested(queries, snapshot, model, change.counts.to_embed)
            self._report_live(collection)
            return
        counts = change.counts
        self.console.print(f"{counted(counts.listed, 'image')} listed, {counts.to_embed:,} to embed with {model.id}")
        with report.timed("reuse"):
            plans = [write_known(plan, collection) for plan in change.plans]
        written = self._write([plan for plan in plans if not plan.done], collection)
        with report.timed("commit"):
            runs = commit(collection, written, self._max_reject_rate, now)
        report.runs = [run.run_id for run in runs]
        self._report_live(collection)
        if self.index:
            with report.timed("index"), self.console.status("bringing the index up to date"):
                self._index(collection, sorted([*snapshot.committed, *runs], key=lambda run: run.run_id), texts)

    def _check_searches(self, collection: Collection, listing: Listing, model: ModelRecord) -> "Queries":
        """The queries of the saved searches. What will not work is said before hours of embedding."""
        from jobs.annotation.predictors.search_queries import remember  # late: most jobs have no searches
        from jobs.annotation.predictors.searches import check_searches

        queries = check_searches(self.spec, collection, listing.schema, model, self.embedder)
        if self.dry_run:
            self.report.problems += queries.broken.values()
        else:  # `run_searches` has the last word
            remember(collection, queries.vectors)
            for problem in queries.broken.values():
                self._warn(problem)
        return queries

    def _note_untested(self, queries: "Queries", snapshot: Snapshot, model: ModelRecord, to_embed: int) -> None:
        """How many images the saved searches would test: those to embed, and those that are embedded already."""
        searches = [each for each in self.spec.searches if each.name not in queries.broken]
        if not searches:
            return
        from jobs.annotation.annotate import plan_annotation
        from jobs.annotation.predictors.searches import searches_recipe

        collection, live = snapshot.collection, snapshot.live.of_model(model)
        recipe = searches_recipe(searches, queries, collection, live)
        plan = plan_annotation(live, annotation_log(collection, SEARCHES).snapshot(), recipe)
        tested, number = counted(to_embed + plan.todo.num_rows, "image"), len(searches)
        self.report.notes.append(f"{tested} would be tested by {number:,} search{'es' if number > 1 else ''}")

    def _report_live(self, collection: Collection) -> None:
        live, report = live_manifest(collection), self.report
        report.index_before = report.index_after = live.version if live else None
        report.recall = live.recall["10"] if live else None

    def _index(self, collection: Collection, runs: list[RunManifest], texts: Sequence[str]) -> None:
        """Build and promote a version if the live one does not cover all runs, or if other settings are requested."""
        previous, before = live_or_last_good_manifest(collection), live_version(collection).name
        changes = self.spec.index.changes(texts)
        settings = IndexSettings(**{**(previous.settings.model_dump() if previous else {}), **changes})
        columns = {annotation.name: annotation.run_ids for annotation in list_annotations(collection)}
        goal = (before, [run.run_id for run in runs], columns, settings)
        done = previous and (previous.version, previous.runs, previous.annotations, previous.settings) == goal
        if previous and done and not previous.aged:
            return
        from index.builder.build_index import build_index  # late: faiss takes a second

        try:
            run_jobs = run_on_ray(self.spec.resources.address, self.console, self.spec.resources.on)
            vectors = QueryTexts(collection=collection, load=self.embedder, runs=runs, texts=texts)
            built = build_index(collection, settings, run_jobs=run_jobs, runs=runs, texts=vectors)
        except RolledBackError as error:  # a version that was rolled back stays rolled back
            self.report.notes.append(str(error))
            return
        self.report.index_before, self.report.index_after = before, built.version
        self.report.recall = built.recall["10"]

    def _list(self, snapshot: Snapshot | None = None) -> Listing:
        """The listing. It may be empty if the rows of the source may be deleted; `max_missing` then decides. Frames of
        unchanged videos are taken from the snapshot's rows.
        """
        left_out = self.report.left_out
        left_out.clear()
        notes: dict[str, list[str]] = {}
        try:
            with self.report.timed("list"), self.console.status(f"listing {self.report.source}"):
                listing = list_images(
                    self.spec.source,
                    extensions=self.spec.extensions,
                    uri_column=self.spec.uri_column,
                    exclude=self.spec.exclude,
                    id_column=self.spec.id_column,
                    column_types=self.spec.column_types,
                    notes=notes,
                    left_out=left_out,
                    listed_frames=lambda: self._listed_frames(snapshot) if snapshot else {},
                )
        except EmptySourceError:
            if not self._may_be_empty():
                raise
            return Listing.of([])
        for note, files in notes.items():
            self._warn(noted(note, files))
        return listing

    def _filter_of(self, listing: Listing) -> ImageFilter:
        """Which images of the listing are embedded. UsageError if its columns do not fit."""
        if self.spec.keep is None or not listing.num_rows:
            return EVERY_IMAGE
        return ImageFilter.parse(self.spec.keep, listing.schema)

    def _listed_frames(self, snapshot: Snapshot) -> Frames:
        own = snapshot.live.of_source(self._address)
        sql = f"SELECT uri, size, modified, etag FROM {own.sql} WHERE contains(uri, '{FRAME_MARK}')"
        return frames_of(own.catalog.table(sql))

    def _may_be_empty(self) -> bool:
        """Whether the collection has rows of the source, which would then be deleted."""
        if self.spec.missing == "keep":
            return False
        return self._address in Collection.open_or_empty(self.spec.collection).snapshot().live.sources

    @property
    def _address(self) -> str:
        return source_address(self.spec.source)

    @property
    def _max_reject_rate(self) -> float:
        """In a watch one broken picture does not hold up the others, unless the job says so."""
        is_default = "max_reject_rate" not in self.spec.model_fields_set
        return 1.0 if self.command == "watch" and is_default else self.spec.max_reject_rate

    def embedder(self, model: ModelRecord, *, convert: bool = False) -> Embedder:
        """The model, ready to embed; loaded only if it is not yet."""
        found = self.model_cache.find_recorded(model, self.spec.embedder)
        loaded: Embedder = self.model_cache.load(ModelSource.of(model, found, self.spec.resources, convert=convert))
        return loaded

    def _check(self, listing: Listing, snapshot: Snapshot, model: ModelRecord, now: datetime) -> CheckedListing:
        """Look again at web addresses. With another model all pictures are read anyway."""
        if not listing.count(f"regexp_matches(uri, '{WEB}')"):
            return CheckedListing(listing=listing)
        spec, own = self.spec, snapshot.live.of_source(self._address)
        same_model = len(own) == len(own.of_model(model))
        rules = CheckRules(
            now=now,
            refresh_s=spec.refresh if same_model else None,
            gone_after=spec.gone_after,
            per_host=spec.per_host,
            all_due=spec.verify_hash and same_model,
        )
        with self.report.timed("check"), self.console.status("looking again at web addresses"):
            checked = check_listing(listing, own, snapshot.collection, self._address, rules)
        self.report.addresses = checked.counts
        return checked

    def _compare(
        self,
        checked: CheckedListing,
        snapshot: Snapshot,
        model: ModelRecord,
        image_filter: ImageFilter,
        *,
        incomplete: bool,
    ) -> SourceChange:
        """The changes of the source; nothing is deleted while parts of it cannot be read, or are being written."""
        source, spec, listing = self.report.source, self.spec, checked.listing
        unreadable = listing.read(["error_message"], f"error_reason = '{UNREADABLE}'")
        delete = spec.missing == "delete" and not unreadable.num_rows and not incomplete
        exif = last_filter(snapshot, self._address).settings.exif if spec.exif is None else EXIF_VERSION * spec.exif
        settings = image_filter.settings.model_copy(update={"exif": exif})
        with self.report.timed("compare"), self.console.status("comparing"):
            change = compare(
                listing,
                snapshot,
                PlannedJob(
                    source=self._address,
                    model=model,
                    may_delete=delete,
                    verify_hash=spec.verify_hash,
                    image_filter=replace(image_filter, settings=settings),
                    postponed=checked.postponed,
                ),
            )
            self.report.counts = change.counts
            check_limits(change, spec, source, delete=delete)
        for replaced in change.replaced:
            self._warn(replaced.warning)
        if unreadable.num_rows:
            self.report.notes.append(
                f"parts of {source} cannot be read, {unreadable.num_rows:,} in all, so their images stay unchanged, "
                f"and nothing is deleted: {unreadable['error_message'][0]}. `likeness rejects` lists them"
            )
        elif change.kept and not incomplete:
            self._warn(self._missing_warning(change))
        return change

    def _missing_warning(self, change: SourceChange) -> str:
        """A warning about images that are gone but still found, with the command that removes them."""
        spec, share = self.spec, change.counts.missing / change.rows
        options = {
            "--extensions": ",".join(spec.extensions) if spec.extensions != IMAGE_EXTENSIONS else None,
            "--uri-column": spec.uri_column,
            "--id-column": spec.id_column,
            "--column-types": ",".join(f"{name}={kind}" for name, kind in spec.column_types.items()),
            "--keep": None if spec.keep is None else json.dumps(spec.keep),
            "--max-missing": f"{min(1.0, share + 0.01):.2f}" if share > MAX_MISSING else None,
        }
        command = ["likeness", "reembed", self.report.source, self.report.collection]
        command += [part for pattern in spec.exclude for part in ("--exclude", pattern)]
        command += [part for name, value in options.items() if value for part in (name, value)]
        return (
            f"searches still find {counted(change.kept, 'image')} gone from {self.report.source}, or moved there; "
            f"`{shlex.join(command)}` removes what is gone"
        )

    def _write(self, plans: list[Plan], collection: Collection) -> list[WrittenRun]:
        """Embed and write the plans' rows; does not start Ray if there is nothing to embed."""
        report = self.report
        with report.timed("embed"):
            if any(plan.todo.num_rows for plan in plans):
                written = write_plans(
                    plans,
                    collection,
                    self.spec,
                    console=self.console,
                    model_cache=self.model_cache,
                    verbose=self.verbose,
                )
            else:
                written = [WrittenRun.begin(plan, collection) for plan in plans]
        if written:
            report.embedding = [each.report for each in written]
            embedding = sum(each.seconds for each in report.embedding)
            report.seconds["start"] = round(report.seconds["embed"] - embedding, 3)
            report.seconds["embed"] = round(embedding, 3)
        return written

    def _warn(self, warning: str) -> None:
        self.console.print(f"[yellow]{escape(warning)}", soft_wrap=True, highlight=False)
