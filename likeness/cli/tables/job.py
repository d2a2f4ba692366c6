"""Tables about jobs for the terminal: the counts of one job, and the history of jobs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.markup import escape

from jobs.addresses.check_listing import AddressCounts
from jobs.embedding.report import STAGES, EmbedReport, Report
from likeness.cli.tables.text_table import TextTable

_HISTORY_COUNTS = ("new", "changed", "retried", "other_model", "deleted", "filtered", "rejected", "failed")

_SHOWN_KINDS = 20  # of files that are left out


def embed_table(report: EmbedReport, done: str = "embedded") -> TextTable:
    counts = {"listed": report.listed, "already there": report.already_there, done: report.embedded}
    if report.filtered or report.filtered_in_all:
        counts["filtered"] = report.filtered
        if report.filtered_in_all != report.filtered:
            counts["filtered in all"] = report.filtered_in_all
    counts["rejected"] = report.refused + report.rejected
    if (known := report.reject_reasons.total()) != counts["rejected"]:
        counts["rejects in all"] = known
    counts |= {f"  {reason}": count for reason, count in report.reject_reasons.most_common()}
    rows: list[tuple[object, ...]] = [(name, count, "") for name, count in counts.items()]
    if report.seconds:
        rows.append(("images/s", f"{report.images_per_second:,.1f}", f"in {report.seconds:.1f} s, without start-up"))
        for stage, worker in zip(STAGES, ("thread", "thread", "actor", "actor"), strict=True):
            if seconds := getattr(report, f"{stage}_seconds"):
                rate = report.done / seconds
                rows.append((f"  {stage}", f"{rate:,.1f}", f"per {worker}"))
        rows.append(("actors idle", f"{report.idle_share:.0%}", f"of the time, {len(report.actors)} of them"))
        rows.append(("bottleneck", "", report.bottleneck))
    return TextTable((), rows, right={1})


def left_out_rows(left_out: Counter[str]) -> list[tuple[str, object]]:
    """What the source has besides its images, by kind."""
    kinds = sorted(left_out.items(), key=lambda each: (-each[1], each[0]))[:_SHOWN_KINDS]
    rest = left_out.total() - sum(count for _, count in kinds)
    kinds += [("other kinds", rest)] if rest else []
    return [("left out", left_out.total()), *((f"  {kind}", count) for kind, count in kinds)]


def reembed_table(report: Report) -> TextTable:
    """The closing table of `reembed`, without zero counts."""
    counts = asdict(report.counts)
    if not report.dry_run:
        done = {"embedded": report.embedded, "filtered": report.filtered}
        counts |= {**done, "rejected": report.rejected, "failed": report.failed}
    shown = [name for name, count in counts.items() if count or name in ("listed", "unchanged")]
    rows: list[tuple[str, object]] = [(name.replace("_", " "), counts[name]) for name in shown]
    rows += [(f"  {stage}", f"{seconds:,.1f} s") for stage, seconds in report.seconds.items()]
    if report.left_out:
        rows += left_out_rows(report.left_out)
    return TextTable((), rows, right={1})


def closing_lines(report: Report) -> list[str]:
    """The report's note, and a line about the index, in rich's markup."""
    lines = [f"[yellow]{escape(report.note)}"] if report.note else []
    if any(asdict(report.addresses).values()):
        lines.append(_addresses_line(report.addresses, dry_run=report.dry_run))
    if report.dry_run:
        lines.append("nothing was changed")
    elif report.promoted:
        lines.append(f"index {report.index_after} is live, recall@10 {report.recall:.4f}, {escape(report.model)}")
    elif report.index_after:
        lines.append(f"index {report.index_after} stays live")
    return lines


def _addresses_line(counts: AddressCounts, *, dry_run: bool) -> str:
    """`web addresses: 40 looked at again (38 unchanged, 1 changed, 1 gone), 260 later`."""
    outcomes = {name: getattr(counts, name) for name in ("unchanged", "changed", "gone", "failed")}
    looked = sum(outcomes.values())
    found = ", ".join(f"{count:,} {name}" for name, count in outcomes.items() if count)
    parts = [f"{looked:,} looked at again" + (f" ({found})" if found else "")]
    if left := counts.due - looked:
        parts.append(f"{left:,} due" + ("" if dry_run else ", whose hosts do not answer"))
    return f"web addresses: {'; '.join([*parts, f'{counts.later:,} later'])}"


def history_table(jobs: Sequence[Mapping[str, Any]]) -> TextTable:
    """The jobs of `schedule.history.history_facts`. An id contains the time when the job began, in UTC."""
    rows = []
    for job in jobs:
        counts = [f"{job['counts'].get(name, 0):,} {name}" for name in _HISTORY_COUNTS if job["counts"].get(name)]
        took = ""
        if job["ended_at"]:
            took = str(datetime.fromisoformat(job["ended_at"]) - datetime.fromisoformat(job["started_at"]))
        row = (job["id"], took.partition(".")[0], job["outcome"], ", ".join(counts), job["index"], job["message"])
        rows.append([value or "" for value in row])
    header = ("job", "took", "outcome", "images", "index", "message")
    return TextTable(header, rows, right={1}, unfolded={0, 1, 2, 4})
