"""Makes one index version: its segments, tombstones, held-out queries and measurements."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from index.arrays import Vectors
from index.builder.choose import choose
from index.builder.columns import with_columns
from index.builder.ground_truth import GroundTruth
from index.builder.measure import (
    check_new_rows,
    cost_alike,
    measure_kinds,
    measure_recall,
    measure_speed,
    score_distribution,
)
from index.builder.queries_file import queries_of, write_queries
from index.builder.segment import SegmentJob
from index.builder.segment_change import NewSegment, mark_gone, plan_change, touched_ids
from index.collection import Collection
from index.collection.annotations import Annotation
from index.collection.current_file import begin_current
from index.collection.layout import (
    INDEX,
    MANIFEST,
    QUERIES,
    SEGMENTS,
    STARTED,
    TOMBSTONES,
    VERSION,
    next_number,
    version_path,
)
from index.collection.live_rows import LiveRows
from index.collection.records.index_settings import IndexSettings
from index.collection.records.record import FileRecord
from index.collection.records.run_manifest import RunManifest
from index.collection.records.version_manifest import FLAT, Option, ScoreDistribution, SegmentRecord, VersionManifest
from index.errors import EmptyCollectionError, FactoryError, LeaseError
from index.segments.exact import MIN_TRAINING_ROWS
from index.segments.segmented_index import SegmentedIndex
from index.storage.scratch import Scratch
from index.versions.files import store_file, write_tombstones
from index.versions.opening import open_segments
from index.versions.servable import check_version
from index.words.word_index import text_columns

logger = logging.getLogger(__name__)

_SPEED = ("latency_ms", "queries_per_second", "cost")
RunJobs = Callable[[Sequence[SegmentJob]], list[SegmentRecord | None]]
Texts = Callable[[], Vectors | None]
"""Makes vectors of texts like those of users' searches, `(n, dim)`, unit norm. None: the model takes no text."""


@dataclass(eq=False)
class VersionBuild:
    collection: Collection
    runs: Sequence[RunManifest]
    annotations: Sequence[Annotation]
    settings: IndexSettings
    run_jobs: RunJobs

    def __post_init__(self) -> None:
        self.storage = self.collection.storage
        self.version = _reserve_version(self.collection)
        self.started = time.monotonic()
        self._base: VersionManifest | None = None
        """The version that is updated, with its annotations."""

    def from_scratch(self, texts: Texts) -> VersionManifest:
        """Build from all live rows, in segments of at most `segment_rows`, and measure with `texts` as well."""
        with self._discard_on_failure(), Scratch("segments") as cache:
            live = LiveRows.of_runs(self.storage, self.runs)
            if not len(live):
                raise _empty(self.collection, self.runs)
            model = self.runs[-1].model
            options = choose(len(live) * (1 + len(model.boxes)), model.dim, self.settings)
            # A requested index is used for all rows, a chosen one only for enough rows to train it.
            max_exact_rows = 0 if self.settings.factory else MIN_TRAINING_ROWS
            new = [([part], None) for part in live.split(self.settings.segment_rows)]
            draft = self._draft([record for record, _ in self._build_segments(new, options, max_exact_rows)], options)
            segments = open_segments(self.collection, draft, cache.path)
            self._warn_of_words(text_columns(segments.schema, None))
            return self._finish(draft, segments, None, texts())

    def update(self, base: VersionManifest) -> VersionManifest:
        """Build from the base's segments, with more tombstones, and new ones. DamagedVersionError if it is damaged."""
        self._base, known = base, set(base.runs)
        new = [run for run in self.runs if run.run_id not in known]
        base = base.without_columns()  # every version writes its own
        with self._discard_on_failure(), Scratch("segments") as cache:
            changed = LiveRows.of_runs(self.storage, new)
            # Files are checked: Arrow and faiss may crash on altered ones, and a server would not open the update.
            old = open_segments(self.collection, base, cache.path)
            touched = touched_ids(changed)
            mark_gone(old.parts, touched)
            # Chosen again, in case the collection has outgrown exact scans. Some changed rows may be rejects.
            vectors = (old.live_count + len(changed)) * (1 + len(base.model.boxes))
            options = choose(vectors, base.dim, self.settings) if vectors else []
            approximate = any(option.chosen and option.name != FLAT for option in options)
            change = plan_change(changed, base.segments, old.parts, self.settings, approximate=approximate)
            built = self._build_segments(change.new, options, MIN_TRAINING_ROWS)
            tombstones = {**change.tombstones, **{record.name: job.dead_positions for record, job in built}}
            records = [*change.retained, *(record for record, _ in built)]
            files = {}
            if any(map(len, tombstones.values())):
                files[TOMBSTONES] = self._put(TOMBSTONES, partial(write_tombstones, tombstones=tombstones))
            names = ["scores", "kinds", "built_cost", *(_SPEED if cost_alike(base.segments, records) else [])]
            kept = {name: getattr(base, name) for name in names}
            draft = self._draft(records, options, base=base.version, files=files, **kept)
            segments = open_segments(self.collection, draft, cache.path, verify=False, opened=old.parts)
            gained = {
                number: job.first
                for number, (_, job) in enumerate(built, len(change.retained))
                if segments.parts[number].parameters
            }
            return self._finish_update(base, draft, segments, touched, gained, cache.path)

    def _finish_update(
        self,
        base: VersionManifest,
        draft: VersionManifest,
        segments: SegmentedIndex,
        touched: pa.Array[Any],
        gained: Mapping[int, int],
        cache: Path,
    ) -> VersionManifest:
        """Measure with the base's queries, as far as the `touched` ids or the rows that approximate indexes `gained`,
        those from a position on, by the segment's number, may have changed their recall.
        """
        held_out = queries_of(base, self.storage.root_here(cache) / version_path(base.version, QUERIES))
        if not held_out.fits(draft.ntotal):
            return self._finish(draft, segments, None, held_out.of("text").vectors)
        held_out = held_out.updated(touched, segments)
        # An approximate index may miss what another one, or a scan, found.
        held_out = held_out.unmeasured_near(segments, gained, {kind: each.width for kind, each in base.kinds.items()})
        if gained:
            new = segments.positions(touched)
            check_new_rows(segments, new[new >= 0], gained, base.kinds["image"].width, self.settings.target_recall)
        return self._finish(draft, segments, held_out)

    def annotate(self, base: VersionManifest) -> VersionManifest:
        """The base with the current annotations. It shares all segments, and no vector is read.

        DamagedVersionError if a file of the base has another size than its manifest says.
        """
        self._base = base
        with self._discard_on_failure():
            check_version(self.collection, base, verify=False)
            for name, file in base.files.items():
                # Opening the new version checks their digests.
                content = self.storage.read(version_path(base.version, name), max_bytes=file.size)
                self.storage.write_atomic(version_path(self.version, name), content)
            annotates = base.annotates or base.version
            facts = {"version": self.version, "base": base.version, "annotates": annotates}
            draft = base.without_columns().model_copy(update={**facts, "created_at": datetime.now(UTC)})
            return self._publish(draft)

    def _build_segments(
        self, new: Sequence[NewSegment], options: Sequence[Option], max_exact_rows: int
    ) -> list[tuple[SegmentRecord, SegmentJob]]:
        """The built segments and their jobs, without those that have no rows."""
        jobs = [
            SegmentJob(
                storage=self.storage,
                name=f"{self.version}-{number:02d}",
                sources=sources,
                options=options,
                settings=self.settings,
                max_exact_rows=max_exact_rows,
                inherited=inherited,
            )
            for number, (sources, inherited) in enumerate(new)
        ]
        return [(record, job) for record, job in zip(self.run_jobs(jobs), jobs, strict=True) if record]

    def _draft(self, records: Sequence[SegmentRecord], options: Sequence[Option], **facts: Any) -> VersionManifest:
        """The manifest of the built segments, without measurements. FactoryError if they take too much memory."""
        if not records:
            raise _empty(self.collection, self.runs)
        memory, limit = sum(record.memory for record in records), self.settings.max_memory
        if limit is not None and memory > limit:
            raise FactoryError(
                f"the segments take {memory:,} bytes of memory, over --max-memory {limit:,}: raise it, or name a "
                "smaller index with --factory"
            )
        draft = VersionManifest(
            version=self.version,
            base=None,
            model=self.runs[-1].model,
            created_at=datetime.now(UTC),
            runs=[run.run_id for run in self.runs],
            settings=self.settings,
            choice=list(options),
            segments=list(records),
            files={},
            ntotal=sum(record.live for record in records),
            queries=0,
            recall={"10": 0.0},  # until it is measured
            kinds={},
            latency_ms={},
            queries_per_second=0.0,
            scores=ScoreDistribution(levels=[], random={}, nearest=[]),
            seconds=0.0,
        )
        return draft.model_copy(update=facts)

    def _warn_of_words(self, own: Sequence[str]) -> None:
        """Warn of columns whose words are to be indexed, and which are neither among these nor of an annotation."""
        for name in self.settings.words or ():
            if name not in own and not any(annotation.has(name) for annotation in self.annotations):
                logger.warning("no column of text is called %s (--words): there are %s", name, ", ".join(own))

    def _finish(
        self,
        draft: VersionManifest,
        segments: SegmentedIndex,
        held_out: GroundTruth | None,
        texts: Vectors | None = None,
    ) -> VersionManifest:
        """Measure, and write the remaining files, the manifest last. Without `held_out`, new queries are sampled, and
        the texts are added to them. A draft's speed is kept while images are searched as widely.
        """
        scores, kinds = draft.scores, draft.kinds
        if held_out is None:
            held_out = GroundTruth.sample(segments, texts=texts)
            scores, kinds = score_distribution(segments, held_out), {}
        width = kinds["image"].width if kinds else 1.0
        kinds, held_out = measure_kinds(segments, held_out, self.settings, kinds)
        images = kinds["image"]
        recall, held_out = measure_recall(segments, held_out, width=images.width)
        queries = self._put(QUERIES, partial(write_queries, queries=held_out))
        facts = {
            "queries": images.queries,
            "recall": recall,
            "kinds": kinds,
            "scores": scores,
            "files": {**draft.files, QUERIES: queries},
        }
        if not draft.latency_ms or images.width != width:
            facts |= measure_speed(segments, held_out, width=images.width)
        if draft.base is None:
            facts["built_cost"] = facts["cost"]
        return self._publish(draft.model_copy(update=facts))

    def _publish(self, draft: VersionManifest) -> VersionManifest:
        """Write the columns of annotations and their words, and the manifest last."""
        segments = with_columns(self.storage, draft, self.annotations, self._base)
        runs = {annotation.name: annotation.run_ids for annotation in self.annotations}
        seconds = round(time.monotonic() - self.started, 3)
        manifest = draft.model_copy(update={"segments": segments, "annotations": runs, "seconds": seconds})
        self.collection.check_lease()
        begin_current(self.storage)
        self.storage.write_atomic(version_path(self.version, MANIFEST), manifest.to_bytes())
        return manifest

    def _put(self, name: str, write: Callable[[Path], None]) -> FileRecord:
        """Store one of the version's own files, which `write` writes to a local path."""
        home = version_path(self.version)
        with self.storage.scratch(home) as scratch:
            write(scratch / name)
            return store_file(self.storage, scratch / name, f"{home}/{name}")

    def discard(self) -> None:
        self.storage.delete(version_path(self.version))
        for entry in self.storage.list(SEGMENTS):
            if entry.name.startswith(f"{self.version}-"):
                self.storage.delete(entry.path)

    @contextmanager
    def _discard_on_failure(self) -> Iterator[None]:
        """Free the space of a version that failed. If the lease is lost, nothing is removed."""
        try:
            yield
        except LeaseError:
            raise
        except BaseException:
            self.discard()
            raise


def _reserve_version(collection: Collection) -> str:
    """A number that no version ever had. Its folder is created, so that no other build uses it."""
    folders = [*collection.storage.list(INDEX), *collection.storage.list(SEGMENTS)]
    makers = {entry.name.partition("-")[0] for entry in folders}
    taken = {int(maker) for maker in makers if re.fullmatch(VERSION, maker)}  # others are not ours
    version = f"{next_number(taken, 999_999):06}"
    collection.check_lease()
    collection.storage.write_atomic(version_path(version, STARTED), f"{datetime.now(UTC).isoformat()}\n".encode())
    return version


def _empty(collection: Collection, runs: Sequence[RunManifest]) -> EmptyCollectionError:
    rows = len(LiveRows.of_runs(collection.storage, runs))
    found = f"embedded 0 of {rows} rows in {collection.location}"
    if not rows and not any(run.files.rows for run in runs):
        return EmptyCollectionError(f"{found}: embed images first with `likeness embed`")
    if rows and collection.current() is None:
        return EmptyCollectionError(f"{found}: see `likeness rejects`")
    left = f"{found}, see `likeness rejects`" if rows else f"every image of {collection.location} has been deleted"
    return EmptyCollectionError(
        f"{left}; an index cannot be empty, so a live index version still finds the images that it has: embed images "
        "with `likeness embed`, or remove the collection"
    )
