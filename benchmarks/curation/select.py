"""Prunes, and selects among clustered vectors with near-copies: `python -m benchmarks.curation.select [--quick]`.

A tenth of the rows are near-copies of rows anywhere, with cosines on both sides of the cut. Commands are measured as a
whole, with reading the index and publishing the columns; then 1% of the rows are new, and 0.5% have left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common.clustered import BLOCK, DIM, Clustered, Rows, Vectors, add_rows
from benchmarks.common.process import in_new_process, likeness, seconds_of
from benchmarks.common.report import Figure, Report, run
from benchmarks.index.upkeep import build
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records import IndexSettings
from index.search import Searcher

ROWS, QUICK_ROWS = 1_000_000, 100_000
CUT: Final = 0.95
_COPIES = BLOCK // 10
_NOISE = 0.6  # maximum length of a near-copy's noise beside that of a vector: cosines from 0.86


@dataclass(frozen=True)
class Copied(Clustered):
    """Of each block but the first, the first rows are near-copies of rows of the block with half its number."""

    def _block(self, number: int) -> tuple[Vectors, Rows]:
        vectors, clusters = super()._block(number)
        if not 0 < number < 1 << 39:  # not that of queries
            return vectors, clusters
        rng = np.random.default_rng([self.seed, 6, number])
        lengths = rng.uniform(0, _NOISE, (_COPIES, 1)).astype(np.float32)
        noise = lengths / np.float32(DIM**0.5) * rng.standard_normal((_COPIES, DIM), np.float32)
        vectors[:_COPIES] = Clustered(self.seed)._block(number // 2)[0][self.originals(number) % BLOCK] + noise
        vectors[:_COPIES] /= np.linalg.norm(vectors[:_COPIES], axis=1, keepdims=True)
        return vectors, clusters

    def originals(self, number: int) -> Rows:
        """The rows that those at the start of a block are near-copies of; they are no near-copies themselves."""
        rng = np.random.default_rng([self.seed, 7, number])
        return number // 2 * BLOCK + rng.integers(_COPIES, BLOCK, _COPIES)

    def pairs(self, rows: int) -> Iterator[tuple[int, int]]:
        """The near-copies among the first `rows` that reach the cut, each with its original."""
        for number in range(1, rows // BLOCK):
            originals = self.originals(number)
            copies, sources = self._block(number)[0], Clustered(self.seed)._block(number // 2)[0]
            cosines = np.einsum("nd,nd->n", copies[:_COPIES], sources[originals % BLOCK])
            here = np.flatnonzero(cosines >= CUT)
            yield from zip((number * BLOCK + here).tolist(), originals[here].tolist(), strict=True)


def share_of_pairs(location: str, data: Copied, rows: int) -> float:
    """The share of planted pairs of which not both images are kept."""
    segments = Searcher.open(Collection.open(location)).segments
    table = segments.table_at(segments.live_positions(), ("keep",))
    kept = dict(zip(table["image_id"].to_pylist(), table["keep"].to_pylist(), strict=True))
    return float(np.mean([not (kept[str(one)] and kept[str(other)]) for one, other in data.pairs(rows)]))


def main(report: Report, folder: Path, options: Any) -> None:
    rows, data = options.rows or (QUICK_ROWS if options.quick else ROWS), Copied()
    collection = Collection.create_or_open(str(folder / "collection"))
    location = collection.location
    add_rows(collection, data, range(rows))
    built = in_new_process(build, location, IndexSettings(), data)
    jobs: dict[str, tuple[str, ...]] = {
        "prune": ("--prune", str(CUT), "--name", "keep"),
        "select 1,000": ("-n", "1000", "--name", "few"),
        "select 10,000": ("-n", "10000", "--name", "many"),
    }
    first = {name: likeness("select", location, *arguments) for name, arguments in jobs.items()}
    pairs = in_new_process(share_of_pairs, location, data, rows)
    deletes = np.random.default_rng(0).choice(rows, rows // 200, replace=False).tolist()
    add_rows(collection, data, range(rows, rows + rows // 100), deletes)
    updated = seconds_of(lambda: in_new_process(build_index, collection))
    jobs |= {
        "select 1,000": ("-n", "1010", "--name", "few", "--continue"),
        "select 10,000": ("-n", "10100", "--name", "many", "--continue"),
    }
    again = {name: likeness("select", location, *arguments) for name, arguments in jobs.items()}
    report.values(
        "index", {"rows": rows, "s to build": built.seconds, "s to update": updated, "kind": built.manifest.kind}
    )
    table: list[dict[str, Figure]] = []
    for name, command in first.items():
        later = again[name]
        table.append(
            {
                "command": name,
                "s": command.seconds,
                "CPU s": command.cpu_s,
                "MiB beside mapped files": command.anonymous_mib,
                "after 1%: s": later.seconds,
                "after 1%: CPU s": later.cpu_s,
                "after 1%: ÷ first": later.cpu_s / command.cpu_s,
            }
        )
        report.keep(f"{name} printed", [command.printed, later.printed])
        report.at_most(f"{name}: s", command.seconds, 300)
        report.at_most(f"{name}: MiB beside mapped files", max(command.anonymous_mib, later.anonymous_mib), 1_430)
        if not options.quick:
            report.at_most(f"{name}: CPU after 1% ÷ first", later.cpu_s / command.cpu_s, 0.05)
    report.table("likeness select", table)
    report.at_least("share of the pairs above the cut", pairs, 0.99)


if __name__ == "__main__":
    run("select", __doc__, main, f"{QUICK_ROWS:,} rows", {"--rows": {"type": int}})
