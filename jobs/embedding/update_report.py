"""The report of re-embedding: a table for people, JSON for programs."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import perf_counter

from rich.markup import escape

from jobs.embedding.report import EmbedReport
from jobs.planning.counts import Counts
from jobs.text_table import TextTable


@dataclass(frozen=True, kw_only=True)
class ReembedReport:
    """What was found and done; with `dry_run` what would be.

    `left_out` counts, by extension, the files beside the images that may be pictures of kinds that are not read.
    `embedded`, `rejected` and `failed` add up to the images that needed the model; failed ones are tried again next
    time. `runs` were committed. `recall` is recall@10 of the live version, `promoted` whether this job made it live.
    `embedding` has the details of each run, or of the source where nothing was to write; JSON leaves it out.
    `seconds` by stage of this process; "start" is the start-up of Ray and the model, "embed" what followed it.
    `worker_seconds` are summed over all workers.
    """

    source: str
    collection: str
    model: str
    dry_run: bool
    counts: Counts
    left_out: dict[str, int]
    embedded: int
    rejected: int
    failed: int
    embedding: list[EmbedReport]
    runs: list[str]
    index_before: str | None
    index_after: str | None
    recall: float | None
    promoted: bool
    note: str | None
    seconds: dict[str, float]
    worker_seconds: dict[str, float]

    def to_json(self) -> str:
        """One object; the counts stand beside the rest."""
        content = asdict(replace(self, embedding=[]))
        del content["embedding"]
        return json.dumps({"outcome": "succeeded", **content.pop("counts"), **content}, indent=2, ensure_ascii=False)


class Stopwatch:
    """Seconds by stage, `left_out`, and `counts` once they are known: the content of the report of a failed job."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: Counts | None = None
        self.left_out = Counter[str]()

    def to_json(self, outcome: str, message: str) -> str:
        """The report of a job that did not end well."""
        counts = asdict(self.counts) if self.counts else {}
        known = {**counts, "left_out": self.left_out, "seconds": self.seconds}
        return json.dumps({"outcome": outcome, "message": message, **known}, indent=2, ensure_ascii=False)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + perf_counter() - started, 3)


def reembed_table(report: ReembedReport) -> TextTable:
    """The closing table, without zero counts."""
    shown = asdict(report.counts)
    if not report.dry_run:
        shown |= {"embedded": report.embedded, "rejected": report.rejected, "failed": report.failed}
    counts = [
        (name.replace("_", " "), f"{count:,}")
        for name, count in shown.items()
        if count or name in ("listed", "unchanged")
    ]
    seconds = [(f"  {stage}", f"{seconds:,.1f} s") for stage, seconds in report.seconds.items()]
    return TextTable((), [*counts, *seconds], right={1})


def closing_lines(report: ReembedReport) -> list[str]:
    """The note and what is said of the index, in rich's markup."""
    lines = [f"[yellow]{escape(report.note)}"] if report.note else []
    if report.dry_run:
        lines.append("nothing was changed")
    elif report.promoted:
        lines.append(f"index {report.index_after} is live, recall@10 {report.recall:.4f}, {escape(report.model)}")
    elif report.index_after:
        lines.append(f"index {report.index_after} stays live")
    return lines
