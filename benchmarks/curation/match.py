"""Matches one collection with another: `python -m benchmarks.curation.match [--rows 1000000] [--quick]`.

Times `likeness match` to the live version, with its memory and recall, and the file of pairs. Vectors have 512
dimensions, and k is 10.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.common.clustered import Clustered, index_rows
from benchmarks.common.process import in_new_process, likeness
from benchmarks.common.report import Report, run
from benchmarks.index.recall import exact, recall
from index.collection import Collection
from index.collection.annotations import Annotation, annotation_log
from index.collection.rows import vectors_of

_K, _SAMPLE = 10, 2_000


def matches(location: str, name: str) -> pa.Table:
    """The `row` of each image, ascending, with its `ids` and `scores`."""
    log = annotation_log(Collection.open(location), name)
    rows = Annotation(name, log, log.runs()).rows.read(["image_id", f"{name}_ids", f"{name}_scores"])
    rows = rows.rename_columns(["row", "ids", "scores"])
    return rows.set_column(0, "row", rows["row"].cast(pa.int64())).sort_by("row")


def recall_of_sample(location: str, rows: int) -> float:
    """Recall@10 of the first images, against a comparison with all."""
    data, found = Clustered(), matches(location, "seen")["ids"].slice(0, _SAMPLE)
    queries = vectors_of(data.table(rows, rows + _SAMPLE)["embedding"])
    truth = exact(queries, data.array(rows), _K)[1]
    return recall(np.asarray(pc.list_flatten(found).cast(pa.int64())).reshape(-1, _K), truth)


def main(report: Report, folder: Path, options: Any) -> None:
    rows = 100_000 if options.quick else options.rows
    own, other = str(folder / "own"), str(folder / "other")
    in_new_process(index_rows, other, range(rows))
    in_new_process(index_rows, own, range(rows, 2 * rows))
    matched = likeness("match", own, other, "--name", "seen")
    written = likeness("match", own, other, "--name", "seen", "--to", str(folder / "pairs.parquet"))
    figures = {
        "seconds to the live version": matched.seconds,
        "memory beside mapped files, GB": matched.anonymous_mib * 2**20 / 1e9,
        "seconds of a run without new images, with the file of pairs": written.seconds,
        "recall@10": in_new_process(recall_of_sample, own, rows),
    }
    report.values(f"{rows:,} images matched with {rows:,}", figures)
    report.at_most("seconds", matched.seconds, 240)
    report.at_most("memory beside mapped files, GB", matched.anonymous_mib * 2**20 / 1e9, 1.5)
    report.at_least("recall@10", figures["recall@10"], 0.99)


if __name__ == "__main__":
    rows = {"--rows": {"type": int, "default": 1_000_000, "help": "images of each collection, in ten thousands"}}
    run("match", __doc__, main, "100,000 images of each", rows)
