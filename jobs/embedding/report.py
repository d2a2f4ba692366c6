"""The output of an embedding job: a progress bar while it runs, and a table at its end."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, Self

import pyarrow as pa
from rich.console import Console

from jobs.embedding.decode import BlockSummary
from jobs.planning.plan import Plan, rejects_of
from jobs.progress import RateBar
from jobs.text_table import TextTable


@dataclass(kw_only=True)
class EmbedReport:
    """Counts and seconds of a job.

    `refused` images were rejected by the listing, before the job began. `reject_reasons` counts all rejects of the
    source, including old ones. `retryable` are the `rejected` images that the next job tries again, known once the run
    is committed. `*_seconds` are summed over workers and may exceed `seconds`, which is elapsed time. `actors`: when
    each began its first block and ended its last.
    """

    listed: int
    already_there: int
    refused: int = 0
    actors: dict[str, tuple[float, float]] = field(default_factory=dict)
    embedded: int = 0
    rejected: int = 0
    retryable: int = 0
    reject_reasons: Counter[str] = field(default_factory=Counter)
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    model_seconds: float = 0.0
    write_seconds: float = 0.0
    started_at: float = math.inf
    ended_at: float = -math.inf

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The report of a job that has not begun."""
        known = count_reasons(rejects_of(plan.listing, plan.live))
        return cls(
            listed=plan.listing.num_rows,
            already_there=plan.already_there,
            refused=plan.refused,
            reject_reasons=known,
        )

    def add(self, block: BlockSummary) -> None:
        """Count a block that is on disk."""
        began, ended = self.actors.get(block.actor, (block.started_at, block.ended_at))
        self.actors[block.actor] = (min(began, block.started_at), max(ended, block.ended_at))
        self.started_at = min(self.started_at, block.started_at)
        self.ended_at = max(self.ended_at, block.ended_at)
        self.embedded += block.embedded
        self.rejected += block.rejected
        for name in ("fetch_seconds", "decode_seconds", "model_seconds", "write_seconds"):
            setattr(self, name, getattr(self, name) + getattr(block, name))

    @property
    def seconds(self) -> float:
        """From the start of the first block's forward pass to the end of the last block."""
        return max(0.0, self.ended_at - self.started_at)

    @property
    def images_per_second(self) -> float:
        """Images embedded or rejected per second, without the start-up of Ray and the model."""
        return (self.embedded + self.rejected) / self.seconds if self.seconds else 0.0

    @property
    def idle_share(self) -> float:
        """Share of their time in which actors embedded nothing, and a GPU of theirs was idle."""
        return max(0.0, 1 - self.model_seconds / self._actor_seconds) if self.seconds else 0.0

    @property
    def _actor_seconds(self) -> float:
        """Sum of each actor's time from its first block to its last: some may have started later, or been lost."""
        return sum(ended - began for began, ended in self.actors.values())

    @property
    def bottleneck(self) -> str:
        """The stage that the others waited for: the model if it was nearly always busy, else its supply of images."""
        if not self.seconds:
            return "nothing to do"
        busy = (self.model_seconds + self.write_seconds) / self._actor_seconds
        if busy >= 0.85:
            return f"the model (busy {busy:.0%} of the time)"
        stage = "reading" if self.fetch_seconds > self.decode_seconds else "decoding"
        return f"{stage} (the model was busy {busy:.0%} of the time)"


class Progress(Protocol):
    """Told of each block that is on disk."""

    def advance(self, report: EmbedReport) -> None: ...


class ProgressBar(RateBar):
    """Images."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, "embedding", total, "starting Ray and the model")

    def advance(self, report: EmbedReport) -> None:
        rate = f"{report.images_per_second:,.0f} images/s" + (
            f", {report.rejected} rejected" if report.rejected else ""
        )
        self.show(report.embedded + report.rejected, rate)


def count_reasons(rejects: pa.Table) -> Counter[str]:
    """How often each reason occurs in rows of rejects; equally frequent ones are in the order of their names."""
    return Counter(sorted(map(str, rejects["error_reason"].to_pylist())))


def embed_table(report: EmbedReport) -> TextTable:
    """The closing table."""
    rejected = report.refused + report.rejected
    rows = [
        ("listed", f"{report.listed:,}", ""),
        ("already there", f"{report.already_there:,}", ""),
        ("embedded", f"{report.embedded:,}", ""),
        ("rejected", f"{rejected:,}", ""),
    ]
    if (known := report.reject_reasons.total()) != rejected:
        rows.append(("rejects in all", f"{known:,}", ""))
    rows += [(f"  {reason}", f"{count:,}", "") for reason, count in report.reject_reasons.most_common()]
    if report.seconds:
        rows.append(("images/s", f"{report.images_per_second:,.1f}", f"in {report.seconds:.1f} s, start-up apart"))
        for stage, by in (("fetch", "thread"), ("decode", "thread"), ("model", "actor"), ("write", "actor")):
            if seconds := getattr(report, f"{stage}_seconds"):
                rate = (report.embedded + report.rejected) / seconds
                rows.append((f"  {stage}", f"{rate:,.1f}", f"by one {by}"))
        rows.append(("actors idle", f"{report.idle_share:.0%}", f"of the time, {len(report.actors)} of them"))
        rows.append(("bottleneck", "", report.bottleneck))
    return TextTable((), rows, right={1})
