"""Reports of a job: counts and seconds, filled in as the job runs. A run records `RunCounts`, see `commit.py`."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Literal, Self

from index.collection.records.run_manifest import RowFile
from index.collection.rows import FILTERED
from jobs.addresses.check_listing import AddressCounts
from jobs.planning.plan import Counts, Plan
from jobs.planning.rejects import count_reasons
from jobs.values import counted

_SHOWN_SEARCHES = 20
STAGES = ("fetch", "decode", "model", "write")
_REPORTED = (
    *("source", "collection", "model", "dry_run", "left_out", "runs", "index_before", "index_after"),
    *("recall", "promoted", "problems", "note", "seconds", "worker_seconds"),
)


@dataclass(frozen=True, kw_only=True)
class BlockSummary:
    """The result of one block of rows, and all that the driver receives of it. `*_at` are Unix times."""

    path: str
    actor: str
    rows: int
    size: int
    sha256: str
    embedded: int
    rejected: int
    filtered: int
    started_at: float
    ended_at: float
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    model_seconds: float
    write_seconds: float

    @property
    def file(self) -> RowFile:
        return RowFile(path=self.path, rows=self.rows, size=self.size, sha256=self.sha256)


@dataclass(kw_only=True)
class EmbedReport:
    """Counts and seconds of a run.

    The listing itself rejected the `refused` images. `reject_reasons` counts all rejects of the source, old ones too.
    `retryable` of the `rejected` are tried again by the next job. Images that the job's filter leaves out are not
    rejects: `filtered_unread` are left out before they are fetched, `filtered_read` after they are decoded;
    `filtered_in_all` includes old ones. `*_seconds` are summed over workers, `seconds` is elapsed time. `actors` maps
    each actor to the start of its first block and the end of its last.
    """

    listed: int
    already_there: int
    refused: int = 0
    actors: dict[str, tuple[float, float]] = field(default_factory=dict)
    embedded: int = 0
    rejected: int = 0
    retryable: int = 0
    filtered_unread: int = 0
    filtered_read: int = 0
    filtered_in_all: int = 0
    reject_reasons: Counter[str] = field(default_factory=Counter)
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    model_seconds: float = 0.0
    write_seconds: float = 0.0

    @classmethod
    def of(cls, plan: Plan) -> Self:
        report = cls(
            listed=plan.listed,
            already_there=plan.already_there,
            refused=plan.refusals - plan.filtered,
            filtered_unread=plan.filtered,
        )
        if plan.rejects and plan.rejects.num_rows:
            report.set_reasons(count_reasons(plan.rejects.workspace, plan.rejects.sql))
        return report

    def set_reasons(self, reasons: Counter[str]) -> None:
        """Set the reasons of all rejects of the source, and of all images that are left out."""
        self.reject_reasons = reasons
        self.filtered_in_all = reasons.pop(FILTERED, 0)

    def add(self, block: BlockSummary) -> None:
        began, ended = self.actors.get(block.actor, (block.started_at, block.ended_at))
        self.actors[block.actor] = (min(began, block.started_at), max(ended, block.ended_at))
        self.embedded += block.embedded
        self.rejected += block.rejected
        self.filtered_read += block.filtered
        for name in (f"{stage}_seconds" for stage in STAGES):
            setattr(self, name, getattr(self, name) + getattr(block, name))

    @property
    def seconds(self) -> float:
        """From the first block's forward pass to the end of the last block."""
        times = self.actors.values()
        return max(ended for _, ended in times) - min(began for began, _ in times) if times else 0.0

    @property
    def filtered(self) -> int:
        return self.filtered_unread + self.filtered_read

    @property
    def unfiltered(self) -> int:
        """Listed images that the filter does not leave out."""
        return self.listed - self.filtered_in_all

    @property
    def done(self) -> int:
        """Images that were read: embedded, rejected or left out."""
        return self.embedded + self.rejected + self.filtered_read

    @property
    def images_per_second(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0

    @property
    def rate(self) -> str:
        return f"{self.images_per_second:,.0f} images/s" + (f", {self.rejected} rejected" if self.rejected else "")

    @property
    def idle_share(self) -> float:
        """Share of time in which actors, and their GPUs if any, embedded nothing."""
        return max(0.0, 1 - self.model_seconds / self._actor_seconds) if self.seconds else 0.0

    @property
    def _actor_seconds(self) -> float:
        """Sum over actors of the time from first block to last, as some may have started later or been lost."""
        return sum(ended - began for began, ended in self.actors.values())

    @property
    def bottleneck(self) -> str:
        """The slowest stage: the model or writing if busy nearly all the time, else reading or decoding images."""
        if not self.seconds:
            return "nothing to do"
        busy = self.model_seconds / self._actor_seconds
        if busy >= 0.85:
            return f"the model (busy {busy:.0%} of the time)"
        stage = "reading" if self.fetch_seconds > self.decode_seconds else "decoding"
        if self.write_seconds >= 0.85 * self._actor_seconds:
            stage = "writing"
        return f"{stage} (the model was busy {busy:.0%} of the time)"


@dataclass(kw_only=True)
class SearchCounts:
    """How many images a saved search has tested, how many of these match, and how many matches it has delivered."""

    tested: int = 0
    matched: int = 0
    delivered: int = 0


@dataclass(kw_only=True)
class Report:
    """What a job did; with `dry_run`, what it would do.

    `left_out` is filled by `list_images`. `embedding` has a report for each run, or one of the source if nothing had to
    be written; `runs` are the ids of the committed ones. `recall` is recall@10 of the live version. `seconds` are by
    stage of this process: "start" is the start-up of Ray and the model, "embed" the rest. `recently_changed` counts
    files that may be half written and were left alone. `annotated` are the annotations with new rows. `problems` say
    which annotations and saved searches were left out, and why.
    """

    source: str = ""
    collection: str = ""
    model: str = ""
    dry_run: bool = False
    counts: Counts = field(default_factory=Counts)
    addresses: AddressCounts = field(default_factory=AddressCounts)
    left_out: Counter[str] = field(default_factory=Counter)
    embedding: list[EmbedReport] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    index_before: str | None = None
    index_after: str | None = None
    recall: float | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    annotated: dict[str, EmbedReport] = field(default_factory=dict)
    searches: dict[str, SearchCounts] = field(default_factory=dict)
    recently_changed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def embedded(self) -> int:
        return sum(each.embedded for each in self.embedding)

    @property
    def failed(self) -> int:
        """Images that the next job tries again."""
        return sum(each.retryable for each in self.embedding)

    @property
    def rejected(self) -> int:
        """Images that cannot be used. Together with the embedded and the failed ones, all that needed the model."""
        return sum(each.rejected for each in self.embedding) - self.failed

    @property
    def filtered(self) -> int:
        """Images that this job's filter left out, without those that earlier jobs left out."""
        return sum(each.filtered for each in self.embedding)

    @property
    def promoted(self) -> bool:
        """Whether this job promoted a new version."""
        return self.index_after != self.index_before

    @property
    def annotated_line(self) -> str:
        """Which annotations have new rows, such as `kind: 3 images annotated, 0 rejected`; empty if none has."""
        return "; ".join(
            f"{name}: {counted(each.embedded, 'image')} annotated, {each.rejected:,} rejected"
            for name, each in self.annotated.items()
        )

    @property
    def found(self) -> str:
        """What saved searches found, such as `stars matches 3 of 120 images, 2 delivered`; empty if nothing."""
        lines = [
            f"{name} matches {each.matched:,} of {counted(each.tested, 'image')}"
            + (f", {each.delivered:,} delivered" if each.delivered else "")
            for name, each in self.searches.items()
            if each.matched or each.delivered
        ]
        more = [f"and {len(lines) - _SHOWN_SEARCHES:,} other searches"] if len(lines) > _SHOWN_SEARCHES else []
        return "; ".join(lines[:_SHOWN_SEARCHES] + more)

    @property
    def outcome(self) -> Literal["succeeded", "failed"]:
        return "failed" if self.problems else "succeeded"

    @property
    def failure(self) -> str | None:
        """What was left out, if anything was."""
        rest = "all else would be done" if self.dry_run else "all else is done, and the next job tries again"
        return f"{'; '.join(self.problems)}; {rest}" if self.problems else None

    @property
    def note(self) -> str | None:
        return "; ".join(filter(None, [*self.notes, self.annotated_line, self.found])) or None

    @property
    def worker_seconds(self) -> dict[str, float]:
        return {stage: round(sum(getattr(each, f"{stage}_seconds") for each in self.embedding), 3) for stage in STAGES}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + perf_counter() - started, 3)

    def known_counts(self) -> dict[str, int]:
        """All counts by name; empty until the source has been compared with its rows."""
        done = {"embedded": self.embedded, "rejected": self.rejected, "failed": self.failed}
        if not self.dry_run:
            done["filtered"] = self.filtered
        addresses = {f"addresses_{name}": count for name, count in asdict(self.addresses).items()}
        known = asdict(self.counts) | done | (addresses if any(addresses.values()) else {})
        return known if self.counts != Counts() else {}

    def to_json(self) -> str:
        """The report of a job that came to its end, as one flat object."""
        rest = {name: getattr(self, name) for name in _REPORTED}
        searches = {name: asdict(each) for name, each in self.searches.items()}
        return _json({"outcome": self.outcome, **self.known_counts(), **rest, "searches": searches})

    def failure_json(self, outcome: str, message: str) -> str:
        """The report of a job that failed, as far as it is known. Its source is empty if the job did not begin."""
        known = {name: getattr(self, name) for name in ("source", "collection", "left_out", "seconds")}
        return _json({"outcome": outcome, "message": message, **self.known_counts(), **known})


def _json(content: dict[str, object]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False)
