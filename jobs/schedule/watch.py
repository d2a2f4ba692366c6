"""Keeps a collection up to date with its source: runs a round of the job whenever the source has changed.

A round is `Update.run`, as for `reembed`: it compares the whole listing, and holds the lease only while it works. So
nothing is lost if a round fails, a change goes unnoticed, or this process ends.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn

from rich.console import Console
from watchfiles import watch as watch_files

from embedder.errors import EmbedderError
from index.collection.records.model_record import ModelRecord
from index.errors import DISK_FULL, PASSING, CollectionError, EmptyCollectionError, LeaseError
from jobs.embedding.report import Report
from jobs.errors import EmptySourceError, JobError, SpecError, TooManyMissingError
from jobs.exclusions import Exclusions
from jobs.schedule.run_job import annotate, prune_versions
from jobs.schedule.spec_file import SpecFile
from jobs.sources.files import open_source
from jobs.spec import JobSpec
from jobs.update import Update
from jobs.values import counted

SETTLE_S = 1.0
"""Seconds without a change after which a file is embedded."""
ROUND_S = 2.0
"""Minimum seconds from the start of a round with changes to the next: each makes a run and an index version."""
_YIELD_S = 1.5
"""Minimum seconds after it, in which others may take the lease: they look once a second."""
LIST_S = 30.0
"""Seconds between listings of a source that sends no notifications."""
LIST_FOLDER_S = 600.0
"""Seconds between listings of a folder: notifications may be lost, and file servers send none."""

_PRUNE_S = 600.0
_LOOK_S = 1.0
"""Seconds between looks at the job's file."""
_FIXED = ("source", "collection", "exclude")
"""What a watch keeps until it is restarted: it is already waiting for changes there."""
_RETRIED = (JobError, CollectionError, EmbedderError, OSError)
_RETRIED_AT_FIRST = (LeaseError, EmptySourceError, EmptyCollectionError)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Runs a job in rounds. `wait` returns once the source has changed, at the latest after the given seconds; `pause`
    always waits that long; `say` prints a line. Without changes, the source is listed every `interval_s` seconds. If
    the job is from a `file`, each round does what that says by then.
    """

    job: Update
    say: Callable[[str], None]
    interval_s: float
    wait: Callable[[float], object]
    pause: Callable[[float], object] = sleep
    file: SpecFile | None = None

    def run(self) -> NoReturn:
        """Run rounds until KeyboardInterrupt. Until one has succeeded, errors that retrying cannot help are raised."""
        job, has_begun, retry_s, last_prune, said = self.job, False, 1.0, monotonic(), ""
        is_new, made = True, dict[str, ModelRecord]()
        while True:
            if self.file and self.file.has_changed and (spec := self._read_again(self.file, job.spec)):
                job, is_new = replace(job, spec=spec), True
                made.clear()
            started = monotonic()
            try:
                if is_new:
                    job.load()
                report = _run_round(job, made)
            except _RETRIED as error:
                passes = isinstance(error, _RETRIED_AT_FIRST) or getattr(error, "errno", None) in PASSING
                if not has_begun and not passes:
                    raise
                advice = ": free some space there" if getattr(error, "errno", None) in DISK_FULL else ""
                said = self._say_unless(said, f"{error}{advice}; retrying, at most a minute apart")
                retry_s = min(2 * retry_s, 60.0)
                # In an empty source, the first picture ends the wait.
                (self.wait if isinstance(error, EmptySourceError) else self.pause)(retry_s)
                continue
            seconds, changed = monotonic() - started, bool(report.runs) or report.promoted
            if changed and started - last_prune >= _PRUNE_S:
                last_prune = started
                prune_versions(job.spec, report)
            if changed:
                self.say(round_line(report, seconds))
            for line in filter(None, [report.annotated_line, report.found]):
                self.say(line)
            if report.problems or report.notes:
                said = self._say_unless(said, "; ".join([*report.problems, *report.notes]))
            if report.runs or report.index_after:
                job = replace(job, create=False)  # from now on, one that is missing is away: a disk that is not mounted
            if not has_begun:
                self.say(f"waiting for changes in {report.source}")
                job = replace(job, console=Console(quiet=True))
            has_begun, is_new, retry_s = True, False, 1.0
            # While a file is being written for a long time, rounds take at most half of it.
            self.pause(max(_YIELD_S, ROUND_S - seconds) if changed else seconds if report.recently_changed else 0.0)
            self.wait(SETTLE_S if report.recently_changed else self.interval_s)

    def _read_again(self, file: SpecFile, before: JobSpec) -> JobSpec | None:
        """The job in the file now. None if that cannot be used, which is said once: the job then stays as `before`."""
        try:
            spec = file.read_again()
        except SpecError as error:
            self.say(f"{error}; going on with the job as it was before")
            return None
        if fixed := [name for name in _FIXED if getattr(spec, name) != getattr(before, name)]:
            self.say(
                f"{file.path} has another {' and another '.join(fixed)}, which a watch cannot change: restart it, or "
                "change that back; going on with the job as it was before"
            )
            return None
        self.say(f"{file.path} has changed: going on with what it says now")
        return spec

    def _say_unless(self, said: str, line: str) -> str:
        """Print a line unless it is what was `said` last; returns it."""
        if line != said:
            self.say(line)
        return line


def _run_round(job: Update, made: dict[str, ModelRecord]) -> Report:
    """One job. If too many images are gone, none are deleted, and the others are still embedded. `made` has the
    predictors of the annotations that earlier rounds have made, as for `Annotate`.
    """
    job, spec = replace(job, report=Report()), job.spec
    then = partial(annotate, job, made=made)
    try:
        return job.run(then)
    except TooManyMissingError:
        gone = job.report.counts.missing - job.report.counts.moved
    report = replace(job, spec=spec.model_copy(update={"missing": "keep"})).run(then)
    report.notes.append(
        f"searches still find {counted(gone, 'image')} gone from {report.source}: too many to remove "
        "unattended. Is a disk not mounted? If they are really gone, `likeness reembed` removes them, or says how"
    )
    return report


def round_line(report: Report, seconds: float) -> str:
    """A line about a round: `3 new, 1 deleted: searchable after 2.1 s`. Without a change of its own images, a round has
    brought the index up to date with annotations, another job's images or other settings.
    """
    counts = report.counts
    changes = {
        "new": counts.new,
        "changed": counts.changed,
        "retried": counts.retried,
        "moved": counts.moved,
        "deleted": counts.deleted - counts.moved,
    }
    done = ", ".join(f"{count:,} {name}" for name, count in changes.items() if count > 0)
    if not done and report.annotated:
        done = f"columns of {', '.join(report.annotated)} made anew"
    outcome = "searchable after" if report.promoted else "no new index, after"
    line = f"{done or ('index made anew' if report.promoted else 'nothing new')}: {outcome} {seconds:.1f} s"
    if unusable := counts.refused + report.rejected + report.failed:
        line += f", but {unusable:,} cannot be used: `likeness rejects` says why"
    return line


def watch(
    job: Update, say: Callable[[str], None], interval_s: float | None = None, file: SpecFile | None = None
) -> NoReturn:
    """Run a job whenever its source changes. The source is listed every `interval_s` seconds, by default `LIST_S`. A
    folder of this machine is watched for changes as well, and by default listed every `LIST_FOLDER_S`.
    A change of the job's file, if it has one, is noticed at once too.
    """
    source = open_source(job.spec.source)
    job = replace(job, settle_s=SETTLE_S if source.is_local else 0.0)  # an object appears only once it is complete
    default_s = LIST_S
    wait: Callable[[float], object] = partial(_sleep, file)
    if source.is_local and Path(source.root).is_dir():
        default_s, wait = LIST_FOLDER_S, FolderChanges(source.root, say, Exclusions(job.spec.exclude), file).wait
    Watch(job=job, say=say, interval_s=interval_s or default_s, wait=wait, file=file).run()


def _sleep(file: SpecFile | None, seconds: float) -> None:
    """Sleep so long, or until the job's file, if it has one, was edited."""
    deadline = monotonic() + seconds
    while (left := deadline - monotonic()) > 0 and not (file and file.has_changed):
        sleep(min(left, _LOOK_S))


class FolderChanges:
    """Waits for the system's notifications of changes below a folder, or until the job's file was edited."""

    def __init__(
        self, folder: str, say: Callable[[str], None], exclusions: Exclusions, file: SpecFile | None = None
    ) -> None:
        self._folder = folder
        self._exclusions = exclusions
        self._say = say
        self._file = file
        self._changes: Generator[set[Any], None, None] | None = None
        self._watched_id: tuple[int, int] | None = None

    def wait(self, seconds: float) -> bool:
        """Whether something may have changed. Returns once it has, at the latest after the given seconds."""
        deadline = monotonic() + seconds
        try:
            while monotonic() < deadline:
                is_edited = self._file is not None and self._file.has_changed
                if self._begin() or is_edited or (self._changes and next(self._changes)):
                    return True
        except (OSError, RuntimeError) as error:  # too many folders to watch, or the folder is gone at the moment
            self._watched_id = None
            self._say(f"changes in {self._folder} cannot be watched ({error}); listing it every {LIST_S:.0f} s")
            _sleep(self._file, min(LIST_S, deadline - monotonic()))
        return False

    def _begin(self) -> bool:
        """Start to watch the folder, unless it is already watched and is still the same one: a disk may have been
        mounted there. True if it was not watched: earlier changes have to be listed.
        """
        status = Path(self._folder).stat()
        if self._watched_id == (status.st_dev, status.st_ino):
            return False
        self._changes = watch_files(
            self._folder,
            watch_filter=lambda _, path: self._is_watched(path.removeprefix(self._folder).lstrip("/")),
            step=250,
            debounce=1000,
            rust_timeout=250,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        next(self._changes)
        self._watched_id = status.st_dev, status.st_ino
        return True

    def _is_watched(self, path: str) -> bool:
        """Whether a path below the folder, of a file or a folder, is not left out by its name."""
        return not (self._exclusions.reason(path) or self._exclusions.reason_of_folder(path))
