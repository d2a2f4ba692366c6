"""Brings annotations up to date: new and changed images get a predictor's columns, which the index copies."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from rich.console import Console

from embedder.images.limits import ACCEPTED_LIMITS
from index.collection import Collection
from index.collection.annotations import (
    annotation_log,
    list_annotations,
    lost,
    read_learned,
    rows_with_values,
)
from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.collection import Snapshot
from index.collection.layout import learned_path
from index.collection.live_rows import LiveRows
from index.collection.records.bounds import MAX_RECORD
from index.collection.records.learned import Learned
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunStart
from index.collection.row_files import map_small, read_schema
from index.versions.servable import collection_model
from jobs.annotation.predictor import EMBEDDED_HASH, Recipe, annotated_rows, require_one_type
from jobs.annotation.publish import SOURCE, publish, require_name_available, require_same_kind
from jobs.annotation.recipes import recipe_of
from jobs.annotation_spec import AnnotationSpec
from jobs.embedding.commit import WrittenRun, commit
from jobs.embedding.model_source import Load, ModelCache, load_recorded
from jobs.embedding.pipeline import add_blocks, embed_settings, report_bar, write
from jobs.embedding.placement import Place, choose_place, run_stored_blocks
from jobs.embedding.report import EmbedReport
from jobs.embedding.stages import DecodeSettings
from jobs.errors import TooManyRejectsError, UsageError
from jobs.planning.image_filter import EVERY_IMAGE
from jobs.planning.plan import Plan, next_attempt, unfinished_run
from jobs.planning.plan_query import retried
from jobs.sources.listing import LISTING
from jobs.sources.stored_listing import Listing
from jobs.spec import Resources
from jobs.values import MAX_REJECT_RATE

_VECTOR_BLOCK = 16_384  # rows; with 512 dimensions, 32 MB of vectors


@dataclass(kw_only=True)
class Annotate:
    """Annotates a collection, whose lease the caller holds. All can be repeated after any error or crash."""

    collection: Collection
    console: Console
    resources: Resources = field(default_factory=Resources)
    load: Load = load_recorded
    recipe: Callable[[AnnotationSpec, Collection, ModelRecord, Resources, Load], Recipe] = recipe_of
    max_reject_rate: float = MAX_REJECT_RATE
    made: dict[str, ModelRecord] = field(default_factory=dict)
    """The predictors of annotations that the caller has brought up to date before, by their names; kept up to date. If
    another job has made other columns since, they are left alone: else both would undo each other's work for ever.
    """

    def run(self, spec: AnnotationSpec) -> EmbedReport:
        """Bring an annotation up to date, then the index; raises like `write_columns`."""
        report = self.write_columns(spec)
        publish(self.collection, self.console)
        return report

    def write_columns(self, spec: AnnotationSpec) -> EmbedReport:
        """Bring an annotation up to date, without publishing it.

        Raises UsageError if nothing is embedded yet, a name is taken, by another job too, or a predictor is invalid.
        TooManyRejectsError leaves the run unfinished.
        """
        live, model = self.live
        if spec.is_computed:
            from jobs.annotation.neighbours import neighbour_column  # imported late: faiss takes a second

            return neighbour_column(self.collection, spec, self.console)
        recipe = self.recipe(spec, self.collection, model, self.resources, self.load)
        report = self.annotate(spec.name, recipe, live)
        self.made[spec.name] = recipe.record
        return report

    @cached_property
    def live(self) -> tuple[LiveRows, ModelRecord]:
        """The rows to annotate, and their model. UsageError if nothing is embedded yet."""
        snapshot = self.collection.snapshot()
        model = collection_model(snapshot)
        if model is None:
            raise UsageError(f"nothing is embedded yet in {self.collection.location}: run `likeness embed` first")
        return snapshot.live.of_model(model), model

    def annotate(self, name: str, recipe: Recipe, live: LiveRows) -> EmbedReport:
        """Bring the columns of a predictor up to date, without publishing them; raises like `write_columns`."""
        require_name_available(self.collection, name, live.metadata)
        log = annotation_log(self.collection, name)
        snapshot = log.snapshot()
        require_same_kind(self.collection, name, recipe.id, snapshot)
        self._require_not_taken_over(name, recipe, snapshot)
        plan = plan_annotation(live, snapshot, recipe)
        if plan.done:
            return EmbedReport.of(plan)
        known = snapshot.live.catalog
        earlier = [number for number, run in enumerate(known.runs) if run.model.agrees_with(plan.model)]
        learned = self._learned(name, recipe, log, live, begun=bool(earlier or plan.run))
        plan = replace(plan, run=plan.run or log.start_run(SOURCE, plan.model))
        # What learns may hold the job, which cannot be sent to workers.
        load = partial(replace(recipe, learn=None).load, name, learned, proven=plan.todo.num_rows < plan.listed)
        activity = f"annotating {name}"
        if recipe.needs == "embedding":
            written = self._write_from_vectors(plan, log, recipe, live, load=load, activity=activity)
        else:
            written = self._write_from_pictures(plan, log, recipe, load=load, activity=activity)
        schemas = map_small(log.storage, partial(read_schema, log.storage), written.files)
        require_one_type(recipe.id, [*known.schemas(earlier), *schemas])
        try:
            commit(log, [written], self.max_reject_rate)
        except TooManyRejectsError as error:
            raise TooManyRejectsError(_too_many_message(name, log, written, self.max_reject_rate)) from error
        return written.report

    def _require_not_taken_over(self, name: str, recipe: Recipe, log: Snapshot) -> None:
        if name not in self.made or not log.committed:
            return
        newest = log.committed[-1].model
        if not any(newest.agrees_with(own) for own in (self.made[name], recipe.record)):
            raise UsageError(
                f"another job has made other columns under the name {name} since this one did, so they are left alone: "
                "give one of the two another name; or, for the columns of this job, restart it or edit its file"
            )

    def _learned(self, name: str, recipe: Recipe, log: Collection, live: LiveRows, *, begun: bool) -> Learned | None:
        """What the predictor learned before its first run, in a file beside the runs; learned now if none has begun."""
        if recipe.learn is None:
            return None
        learned = read_learned(log, recipe.record)
        if learned is None:
            if begun:
                raise lost(log, recipe.record)
            others = [each for each in list_annotations(self.collection) if each.name != name]
            learned = recipe.learn(live, rows_with_values(others))
            if len(data := learned.to_bytes()) > MAX_RECORD:
                raise UsageError(
                    f"what {name} has learned has {len(data):,} bytes, more than the {MAX_RECORD:,} that can be read "
                    "again: give it fewer labels"
                )
            log.check_lease()
            log.storage.write_atomic(learned_path(recipe.fingerprint), data)
        return learned

    def _write_from_pictures(
        self, plan: Plan, log: Collection, recipe: Recipe, *, load: Callable[[], Any], activity: str
    ) -> WrittenRun:
        resources, console = self.resources, self.console
        with (
            choose_place(activity, resources, recipe.memory, console, model_cache=ModelCache()) as where,
            report_bar(console, activity, plan) as progress,
        ):
            return write(
                plan,
                log,
                load=load,
                decode=DecodeSettings(
                    crop=None if recipe.needs == "file" else recipe.crop,
                    draft=recipe.draft,
                    limits=ACCEPTED_LIMITS,
                ),
                where=where,
                block_size=resources.block_size,
                make_rows=annotated_rows,
                progress=progress,
            )

    def _write_from_vectors(
        self, plan: Plan, log: Collection, recipe: Recipe, live: LiveRows, *, load: Callable[[], Any], activity: str
    ) -> WrittenRun:
        """Write the rows of a plan's images from the collection's stored vectors; reads no pictures. That is soon done,
        so it is on Ray only by request.
        """
        written = WrittenRun.begin(plan, log)
        if not plan.todo.num_rows:
            return written
        place: AbstractContextManager[Place] = nullcontext(Place())
        if self.resources.on == "ray" and recipe.on_ray:
            resources = self.resources.model_copy(update={"num_gpus": 0.0})
            place = choose_place(activity, resources, recipe.memory, self.console, model_cache=ModelCache())
        stored = (
            rows
            for images in plan.todo.tables(_VECTOR_BLOCK)
            for rows in LiveRows.at(live.catalog, np.asarray(images["seq"], np.int64)).split(_VECTOR_BLOCK)
        )
        with place as where, report_bar(self.console, activity, plan) as progress:
            blocks = run_stored_blocks(stored, embed_settings(written, log, load, annotated_rows), where)
            add_blocks(written, blocks, log, progress)
        return written


_MESSAGES = """
SELECT error_reason, count(*) AS images, min(error_message) AS message FROM live_rows WHERE error_message IS NOT NULL
GROUP BY error_reason ORDER BY images DESC, error_reason LIMIT 3
"""


def _too_many_message(name: str, log: Collection, written: WrittenRun, allowed: float) -> str:
    messages = written.catalog(log).table(_MESSAGES).to_pylist()
    most = "; ".join("{images} × {error_reason}, such as: {message}".format(**each) for each in messages)
    return (
        f"{written.report.reject_reasons.total()} of {written.report.listed} images have no value for {name} (mostly "
        f"{most}), more than the {allowed:.1%} allowed, so nothing was published. "
        "Annotated images are kept: fix the predictor or the pictures, or raise --max-reject-rate (max_reject_rate in "
        "a job's file), and run the same command again"
    )


_DONE = f"""
CREATE VIEW done AS
SELECT image_id, uri, content_hash, error_reason,
       CASE WHEN run = {{resumed}} THEN {retried()} ELSE coalesce(retryable, false) END
       OR coalesce(len({{waiting}}) > 0, false) AS retryable
FROM live_rows WHERE run IN ({{same}});
CREATE VIEW listed AS FROM {{images}} WHERE error_reason IS NULL
"""
_TODO = f"""
SELECT {", ".join(f"listed.{name}" for name in LISTING.names)}, {{columns}}
FROM listed LEFT JOIN done USING (image_id)
WHERE NOT coalesce(done.content_hash IS NOT DISTINCT FROM listed.content_hash AND NOT done.retryable, false)
ORDER BY seq
"""
_COLUMNS: dict[bool, str] = {False: f"listed.content_hash AS {EMBEDDED_HASH}", True: "seq, listed.content_hash"}
"""The columns of the images to do beside those of `LISTING`, for pictures and for stored vectors."""
_REJECTS = """
SELECT image_id, uri, error_reason, retryable FROM done SEMI JOIN listed USING (image_id) WHERE error_reason IS NOT NULL
"""


def plan_annotation(live: LiveRows, log: Snapshot, recipe: Recipe) -> Plan:
    """The plan for the embedded images of `live`; the listing's column `seq` says where their rows are."""
    plan, run = _plan(live, log, recipe, None), unfinished_run(log, SOURCE, recipe.record, EVERY_IMAGE)
    return _plan(live, log, recipe, run) if plan.todo.num_rows and run else plan  # else all that it has is gone


def _plan(live: LiveRows, log: Snapshot, recipe: Recipe, run: RunStart | None) -> Plan:
    files = log.collection.written_files(run) if run else []
    storage, resumed = log.collection.storage, [RunRows(run=run, files=files)] if run else []
    runs = [*(RunRows.of(storage, manifest) for manifest in log.committed), *resumed]
    catalog = Catalog(storage, runs)
    same = [number for number, each in enumerate(runs) if each.model.agrees_with(recipe.record)]
    catalog.create(
        _DONE.format(
            images=live.sql,
            same=", ".join(map(str, same)) or "NULL",
            resumed=len(runs) - 1 if run else -1,
            waiting=catalog.aliases.get(recipe.waiting or "", "NULL::VARCHAR[]"),
        )
    )
    [counts] = catalog.table("SELECT count(*) AS listed FROM listed").to_pylist()
    return Plan(
        source=SOURCE,
        model=recipe.record,
        listed=counts["listed"],
        todo=Listing.of(catalog.query(_TODO.format(columns=_COLUMNS[recipe.needs == "embedding"]))),
        rejects=catalog.store(_REJECTS),
        images=f"{catalog.name}.listed",
        run=run,
        files=files,
        attempt=next_attempt(files),
    )
