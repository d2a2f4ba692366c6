"""Keeps a collection up to date with a source that grows: a round of the job whenever something has changed there.

A round is `Update.run`, as of `reembed`: what it finds it takes from the listing, and it has the lease only while it
works. So nothing is lost with a round that fails, a change that nobody told of, or this process.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn

from rich.console import Console
from watchfiles import watch as watch_files

from embedder.errors import EmbedderError
from index.errors import CollectionError, EmptyCollectionError, LeaseError
from index.storage import Storage
from jobs.embedding.report import Report
from jobs.errors import EmptySourceError, JobError, TooManyMissingError
from jobs.schedule.run_job import retain
from jobs.sources.files import is_hidden
from jobs.update import Update

SETTLE_S = 1.0
"""A file counts once it has not changed for so long."""
ROUND_S = 2.0
"""Seconds from the start of a round that changed something to the next: each makes a run and an index version."""
LIST_S = 30.0
"""How often a source is listed whose changes nobody tells of."""
LIST_FOLDER_S = 600.0
"""How often a folder is listed: notifications may be lost, and file servers send none."""

_PRUNE_S = 600.0
_ERRORS = (JobError, CollectionError, EmbedderError, OSError)
_FIRST_ERRORS = (LeaseError, EmptySourceError, EmptyCollectionError)


@dataclass(kw_only=True)
class Watch:
    """The rounds of a job. `wait` returns once the source has changed, at the latest after so many seconds; `pause`
    waits for all of them; `say` takes a line for people. With no change the source is listed every `every` seconds.
    """

    update: Update
    say: Callable[[str], None]
    every: float
    wait: Callable[[float], object]
    pause: Callable[[float], object] = sleep
    _has_begun: bool = field(default=False, init=False)
    _failures: int = field(default=0, init=False)
    _pruned: float = field(default_factory=monotonic, init=False)
    _said: str = field(default="", init=False)

    def run(self) -> NoReturn:
        """Round after round, until KeyboardInterrupt. The first one raises mistakes; later ones try again."""
        while True:
            report = self.update.report = Report()
            started = monotonic()
            try:
                if not self._has_begun:
                    self.update.load()
                self._bring_up_to_date()
            except _ERRORS as error:
                if not self._has_begun and not isinstance(error, _FIRST_ERRORS):
                    raise
                self._put_off(error)
            else:
                self._conclude(report, started)

    def _bring_up_to_date(self) -> None:
        """One job. If too many images are gone, none is deleted, and the others are embedded all the same."""
        update, spec = self.update, self.update.spec
        try:
            update.run()
        except TooManyMissingError:
            gone = update.report.counts.missing - update.report.counts.moved
            update.spec = spec.model_copy(update={"missing": "keep"})
            try:
                update.run()
            finally:
                update.spec = spec
            update.report.notes.append(
                f"{gone:,} images are gone from {update.report.source}, but searches still find them: they are more "
                f"than --max-missing {spec.max_missing:g} allows. Is a disk not mounted? If they are really gone, "
                "`likeness reembed` with a higher --max-missing removes them"
            )

    def _put_off(self, error: Exception) -> None:
        self._failures = min(self._failures + 1, 6)
        self._say_once(f"{error}; retrying, at most a minute apart")
        # Where there is nothing yet, the first picture need not wait.
        (self.wait if isinstance(error, EmptySourceError) else self.pause)(2.0**self._failures)

    def _conclude(self, report: Report, started: float) -> None:
        """What follows a round: a line, and the wait for the next."""
        seconds = monotonic() - started
        changed = bool(report.runs) or report.promoted
        if changed and started - self._pruned >= _PRUNE_S:
            self._pruned = started
            retain(self.update)
        if changed:
            self.say(round_line(report, seconds))
        if report.note:
            self._say_once(report.note)
        if not self._has_begun:
            self.say(f"waiting for changes in {report.source}")
            self.update.console = Console(quiet=True)
        self._has_begun, self._failures = True, 0
        # A file that is being written for long is looked at for half of the time at most.
        self.pause(max(0.0, ROUND_S - seconds) if changed else seconds if report.unsettled else 0.0)
        self.wait(SETTLE_S if report.unsettled else self.every)

    def _say_once(self, line: str) -> None:
        if line != self._said:
            self.say(line)
        self._said = line


def round_line(report: Report, seconds: float) -> str:
    """What a round did: `3 new, 1 deleted: searchable after 2.1 s`."""
    counts = report.counts
    found = {
        "new": counts.new,
        "changed": counts.changed,
        "retried": counts.retried,
        "moved": counts.moved,
        "deleted": counts.deleted - counts.moved,
    }
    done = ", ".join(f"{count:,} {name}" for name, count in found.items() if count > 0)
    outcome = "searchable after" if report.promoted else "no new index, after"
    line = f"{done or 'other images'}: {outcome} {seconds:.1f} s"
    if unusable := counts.refused + report.rejected + report.failed:
        line += f", but {unusable:,} cannot be used: `likeness rejects` says why"
    return line


def watch(update: Update, say: Callable[[str], None], every: float | None = None) -> NoReturn:
    """Run a job whenever its source changes. A source that is no folder of this machine is listed every `every`
    seconds, by default `LIST_S`; a folder too, by default every `LIST_FOLDER_S`, whatever the system tells of it.
    """
    source = Storage.open(update.spec.source)
    update.settle_s = SETTLE_S if source.is_local else 0.0  # an object is there once it is complete
    if source.is_local and Path(source.root).is_dir():
        changes = FolderChanges(source.root, say)
        Watch(update=update, say=say, every=every or LIST_FOLDER_S, wait=changes.wait).run()
    Watch(update=update, say=say, every=every or LIST_S, wait=sleep).run()


class FolderChanges:
    """Waits for changes below a folder, of which the system tells."""

    def __init__(self, folder: str, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._changes: Generator[set[Any], None, None] | None = None
        self._watched: tuple[int, int] | None = None

    def wait(self, seconds: float) -> bool:
        """Whether something may have changed. Returns once it has, at the latest after so many seconds."""
        until = monotonic() + seconds
        try:
            while monotonic() < until:
                if self._begin() or (self._changes and next(self._changes)):
                    return True
        except (OSError, RuntimeError) as error:  # too many folders, or none at the moment
            self._watched = None
            self._say(f"changes in {self._folder} cannot be watched ({error}); listing it every {LIST_S:.0f} s")
            sleep(max(0.0, min(LIST_S, until - monotonic())))
        return False

    def _begin(self) -> bool:
        """Watch the folder, unless it is watched already and still the same: a disk may have been mounted there. True
        if it was not: what changed before has to be listed.
        """
        status = Path(self._folder).stat()
        if self._watched == (status.st_dev, status.st_ino):
            return False
        self._changes = watch_files(
            self._folder,
            watch_filter=lambda _, path: not is_hidden(path.removeprefix(self._folder)),
            step=250,
            debounce=1000,
            rust_timeout=250,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        next(self._changes)
        self._watched = status.st_dev, status.st_ino
        return True
