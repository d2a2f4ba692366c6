"""Columns made from vectors: `python -m benchmarks.curation [--rows 1000000] [--quick]`.

Whole commands over clustered vectors of 512 dimensions, a tenth of them near-copies of rows anywhere, with cosines on
both sides of the cut: pruning, selecting, values of each image, clusters, matches in another collection of as many
images, and few-shot labels. They are measured with reading the index and publishing the column, and again after 1% of
the rows are new and 0.5% have left. Samples of the values are compared with brute force. Then come few-shot labels and
clusters of the demo's pictures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.clustered import BLOCK, DIM, GROUPS, add_rows, index_rows
from benchmarks.common.process import Command, in_new_process, likeness
from benchmarks.common.report import Figure, Report, run
from benchmarks.curation.checks import errors, recall_of_matches, share_of_pairs, sizes
from benchmarks.curation.demo import agreement, few_shot_labels
from benchmarks.curation.near_copies import CUT, Copied
from index.builder.build_index import build_index
from index.collection import Collection

ROWS, QUICK_ROWS = 1_000_000, 100_000


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command, and that after 1% if it differs; the bars for the seconds and the MiB beside mapped files of both, and
    for the CPU time after 1% ÷ that at first.
    """

    words: str
    again: str = ""
    s: int = 300
    mib: int = 1_430
    ratio: float | None = None


_SELECT = {
    "keep": Step(words=f"select {{own}} --prune {CUT}", ratio=0.05),
    "few": Step(words="select {own} -n 1000", again="select {own} -n 1010 --continue", ratio=0.05),
    "many": Step(words="select {own} -n 10000", again="select {own} -n 10100 --continue", ratio=0.05),
}
_OTHERS = {
    "outlier": Step(words="annotate {own} --outlier", mib=1_536),
    "unique": Step(words="annotate {own} --uniqueness", mib=1_536),
    "kind": Step(words="annotate {own} --clusters auto", mib=1_536),
    "seen": Step(words="match {own} {other}", again="match {own} {other} --to {other}.parquet", s=240),
    "like": Step(
        words="annotate {own} --examples {own}-20.jsonl", again="annotate {own} --examples {own}-21.jsonl", s=60
    ),
}
"""By column. Each command writes the columns of all, so those with a bar for their CPU time are measured first."""


def columns(report: Report, folder: Path, rows: int, quick: bool) -> None:
    own, other, data, others = str(folder / "own"), str(folder / "other"), Copied(), range(2 * rows, 3 * rows)
    in_new_process(index_rows, own, range(rows), data)
    in_new_process(index_rows, other, others)
    for count in (20, 21):
        write_examples(Path(f"{own}-{count}.jsonl"), data, count)
    leaving, table = np.random.default_rng(0).permutation(np.arange(BLOCK, rows)).tolist(), list[dict[str, Figure]]()

    def call(name: str, words: str) -> Command:
        return likeness(*words.format(own=own, other=other).split(), "--name", name)

    for number, steps in enumerate((_SELECT, _OTHERS)):
        first = {name: call(name, step.words) for name, step in steps.items()}
        start, gone = rows + number * (rows // 100), number * (rows // 200)
        deletes = leaving[gone : gone + rows // 200]
        add_rows(Collection.open(own), data, range(start, start + rows // 100), deletes)
        in_new_process(build_index, Collection.open(own))
        later = {name: call(name, step.again or step.words) for name, step in steps.items()}
        table += [judge(report, name, step, first[name], later[name], quick) for name, step in steps.items()]
    report.table("whole commands; MiB beside mapped files", table)
    report.at_least("share of the pairs above the cut", in_new_process(share_of_pairs, own, data, rows), 0.99)
    report.at_least("recall@10 of matches", in_new_process(recall_of_matches, own, data, others), 0.99)
    for name, wrong in zip(("outlier", "unique"), in_new_process(errors, own), strict=True):
        report.at_most(f"{name}: share of values that differ from brute force", wrong, 0.05)
    number, smallest, largest = in_new_process(sizes, own)
    report.values("clusters", {"number": number, "smallest ÷ mean": smallest, "largest ÷ mean": largest})
    report.at_most("clusters: largest ÷ mean", largest, 6)


def judge(report: Report, name: str, step: Step, first: Command, later: Command, quick: bool) -> dict[str, Figure]:
    """Add the bars of a command; returns its row of the table."""
    share, figures = later.cpu_s / first.cpu_s, dict[str, Figure]()
    for when, each in (("", first), ("after 1%: ", later)):
        figures |= {f"{when}s": each.seconds, f"{when}CPU s": each.cpu_s, f"{when}MiB": each.anonymous_mib}
    report.keep(f"{name} printed", [first.printed, later.printed])
    report.at_most(f"{name}: s", max(first.seconds, later.seconds), step.s)
    report.at_most(f"{name}: MiB beside mapped files", max(first.anonymous_mib, later.anonymous_mib), step.mib)
    if step.ratio and not quick:
        report.at_most(f"{name}: CPU after 1% ÷ first", share, step.ratio)
    return {"column": name, **figures, "after 1%: CPU ÷ first": share}


def write_examples(path: Path, data: Copied, count: int) -> None:
    """Judgements whether the first images are in the first half of the clusters."""
    clusters = np.asarray(data.table(0, count)["cluster"])
    lines = [{"image_id": str(row), "label": int(cluster < GROUPS // 2)} for row, cluster in enumerate(clusters)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main(report: Report, folder: Path, options: Any) -> None:
    few_shot_labels(folder / "labels", 600 if options.quick else 2_000, report)
    agreement(folder / "clusters", report.about("demo"))
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    columns(report.about(f"{rows:,} × {DIM}"), folder, rows, options.quick)


if __name__ == "__main__":
    rows = {"--rows": {"type": int, "help": f"images of each collection in ten thousands, instead of {ROWS:,}"}}
    run("curation", __doc__, main, f"{QUICK_ROWS:,} rows, fewer of the demo's pictures", rows)
