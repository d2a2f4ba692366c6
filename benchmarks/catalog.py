"""Peak memory and time of commands that read the rows of a large collection: `python -m benchmarks.catalog [--quick]`.

A tenth of the rows is rejected, and a tenth of the pictures have the bytes of another one. Commands that read no
vectors get a collection of facts alone, written by DuckDB, because 20 million rows take too long to make. Each command
runs in a process of its own; bytes a row are the difference between the last two sizes. In the indexes that are built,
images are looked up by their ids.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.common.process import in_new_process, likeness, peak_rss, seconds_of
from benchmarks.common.report import Figure, Report, run
from benchmarks.common.rows import MODIFIED, SOURCE, listing_of, manifest_of, model_of, random_vectors, usual_images
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.layout import FACTS, MANIFEST, ROW_FILES, run_path, version_path
from index.collection.records.run_manifest import RowFile, RunManifest
from index.collection.row_files import FileList
from index.collection.rows import EMBEDDING, embedding_column, text_array
from index.search import Searcher
from index.storage import Storage
from jobs.embedding.commit import WrittenRun, commit
from jobs.planning.changes import compare
from jobs.planning.decide import PlannedJob
from jobs.planning.todo import Todo
from jobs.sources.files import SourceFile
from jobs.sources.sorted_files import SortedFiles
from jobs.sources.stored_listing import Listing

SIZES, QUICK_SIZES = (1_000_000, 5_000_000, 20_000_000), (10_000, 100_000)
BAR_MIB, BAR_BYTES, BAR_LOOKUP_MS, BAR_PLAN_S = 1_500, 10, 1.0, 2.0
_LOOKUPS = 200
_MODEL = model_of(8)
_BLOCK = 1_024  # rows of a file
_FACTS = 1 << 20  # rows of a file of facts
_FACT_COMMANDS = {
    "info": ("info", "{0}"),
    "columns": ("columns", "{0}", "--format", "json"),
    "rejects": ("rejects", "{0}", "--format", "json"),
    "duplicates by bytes": ("duplicates", "{0}", "--kinds", "identical_bytes", "--format", "json"),
}
_VECTOR_COMMANDS = {
    "index": ("index", "{0}"),
    "export": ("export", "{0}", "{0}-vectors"),
    "import": ("import", "{0}-vectors", "{0}-imported", "--no-index"),
    "index, 0.1% new": ("index", "{0}"),
}
"""Commands in this order; `{0}` is the folder of the collection."""

_COLUMNS = f"""
printf('2026/album-%04d/IMG_%07d.jpg', n // 1000, n) AS image_id, '{SOURCE}/' || image_id AS uri,
-- Those that end in 1 have the bytes of those that end in 2.
printf('%064x', n + (n % 10 = 1)::BIGINT) AS content_hash, 100000 + n AS size,
TIMESTAMPTZ '{MODIFIED.isoformat()}' AS modified, NULL::VARCHAR AS etag, 4000::INTEGER AS width,
3000::INTEGER AS height, 'jpeg' AS format, CASE WHEN n % 10 = 0 THEN 'decode' END AS error_stage,
CASE WHEN n % 10 = 0 THEN 'truncated' END AS error_reason, CASE WHEN n % 10 = 0 THEN 'ends early' END AS error_message,
CASE WHEN n % 10 = 0 THEN false END AS retryable
"""


class Peaks:
    """Of each command by the number of rows: peak MiB, without and with files that it maps, whose pages the system may
    take back; and seconds.
    """

    def __init__(self) -> None:
        self._costs = defaultdict[str, dict[int, tuple[float, float, float]]](dict)

    def measure(self, home: Path, rows: int, name: str, words: Sequence[str]) -> None:
        done = likeness(*(word.format(home) for word in words))
        self._costs[name][rows] = done.anonymous_mib, done.peak_mib, done.seconds

    def add(self, name: str, rows: int, mib: float, seconds: float) -> None:
        self._costs[name][rows] = mib, mib, seconds

    def report(self, report: Report, of: str) -> None:
        table: list[Mapping[str, Figure]] = []
        for name, costs in self._costs.items():
            *_, (few, small), (many, large) = [(0, (0.0, 0.0, 0.0)), *costs.items()]
            a_row = (large[0] - small[0]) * 2**20 / (many - few)
            sizes = {f"MiB, {rows:,} rows": round(mib) for rows, (mib, _, _) in costs.items()}
            mapped = {"with files": round(max(with_files for _, with_files, _ in costs.values()))}
            table.append({"command": name, **sizes, **mapped, "bytes a row": a_row, "s": large[2]})
            report.at_most(f"{name}: peak MiB", max(mib for mib, _, _ in costs.values()), BAR_MIB)
            if few >= SIZES[1]:
                report.at_most(f"{name}: bytes a row", a_row, BAR_BYTES)
        report.table(f"commands on collections {of}", table)


def write_facts_alone(folder: Path, rows: int) -> None:
    """A collection of this many rows, most without row files, an annotation, and an index that seems to have all."""
    collection = write_collection(folder, 1_000)
    version = build_index(collection)
    runs = [*version.runs, _commit_facts(collection, 1_000, rows).run_id]
    manifest = version.model_copy(update={"runs": runs})
    collection.storage.write_atomic(version_path(version.version, MANIFEST), manifest.to_bytes())
    _commit_facts(annotation_log(collection, "mood"), 0, rows, "*, 'calm' AS mood")


def _commit_facts(collection: Collection, first: int, last: int, columns: str = "*") -> RunManifest:
    start = collection.start_run(SOURCE, _MODEL)
    files, facts = list[RowFile](), list[RowFile]()
    for low in range(first, last, _FACTS):
        count = min(_FACTS, last - low)
        path = run_path(start.run_id, FACTS, f"{len(facts):04}.{low:016x}.parquet")
        target = Path(collection.location, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        location = (
            f"'{start.run_id}' AS row_run, {len(facts)}::INTEGER AS row_file, (n - {low})::INTEGER AS row_position"
        )
        sql = f"SELECT {columns} FROM (SELECT {location}, {_COLUMNS} FROM range({low}, {low + count}) AS numbers(n))"
        duckdb.sql(f"COPY ({sql}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_FACTS // 8})")
        with target.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        facts.append(RowFile(path=path, rows=count, size=target.stat().st_size, sha256=digest))
        files.append(facts[-1].model_copy(update={"path": path.replace(f"/{FACTS}/", f"/{ROW_FILES}/0001-")}))
    manifest = manifest_of(start, FileList.write(collection.storage, start.run_id, files), facts)
    collection.storage.write_atomic(run_path(start.run_id, MANIFEST), manifest.to_bytes())
    return manifest


def write_collection(folder: Path, rows: int) -> Collection:
    """A collection of this many rows in one run, without an index."""
    collection = Collection.create_or_open(str(folder))
    collection.add_run(SOURCE, _MODEL, _tables(0, rows))
    return collection


def _tables(first: int, last: int) -> Iterator[pa.Table]:
    for low in range(first, last, _BLOCK):
        high = min(low + _BLOCK, last)
        facts: Any = duckdb.sql(f"SELECT {_COLUMNS} FROM range({low}, {high}) AS numbers(n) ORDER BY n")
        vectors = embedding_column(random_vectors(high - low, _MODEL.dim, low), np.arange(low, high) % 10 == 0)
        yield facts.to_arrow_table().append_column(EMBEDDING, vectors)


def _list(rows: int) -> tuple[float, float]:
    """List this many files; returns the peak memory in MiB, and seconds, of which walking a folder is no part."""
    storage, started = Storage.open(tempfile.gettempdir()), time.perf_counter()
    names = (f"2026/album-{number // 1000:04}/IMG_{number:07}.jpg" for number in range(rows))
    uri = f"{SOURCE}/{{}}".format
    files = (SourceFile(storage=storage, path=n, name=n, uri=uri(n), size=9, modified=MODIFIED) for n in names)
    listing = Listing.of(SortedFiles.of(files, ("jpg",)).images.tables())
    if listing.num_rows != rows:
        raise RuntimeError(f"expected {rows:,} images, got {listing.num_rows:,}")
    return peak_rss() / 2**20, time.perf_counter() - started


def _plan(home: Path, rows: int) -> tuple[float, float]:
    """Compare a listing, in which 0.1% of the images are changed, with the rows of a collection."""
    listing, started = Listing.of(listing_of(rows, _changed_images)), time.perf_counter()
    change = compare(
        listing, Collection.open(str(home)).snapshot(), PlannedJob(source=SOURCE, model=_MODEL, may_delete=True)
    )
    if (change.counts.to_embed, change.counts.unchanged) != (-(-rows // 1_000), rows - -(-rows // 1_000)):
        raise RuntimeError(f"expected 0.1% of {rows:,} images to be changed, got {change.counts}")
    return peak_rss() / 2**20, time.perf_counter() - started


def _changed_images(numbers: range) -> pa.Table:
    images = usual_images(numbers)
    sizes = [10**9 if number % 1_000 == 0 else 100_000 + number for number in numbers]
    return images.set_column(images.column_names.index("size"), "size", pa.array(sizes))


def _delete(home: Path, rows: int) -> tuple[float, float]:
    """Commit that all images but one are gone."""
    collection, started = Collection.open(str(home)), time.perf_counter()
    job = PlannedJob(source=SOURCE, model=_MODEL, may_delete=True)
    [plan] = compare(Listing.of([usual_images(range(1, 2))]), collection.snapshot(), job).plans
    commit(collection, [WrittenRun.begin(replace(plan, todo=Todo([])), collection)], 1.0)
    if plan.deleted != rows - 1:
        raise RuntimeError(f"expected {rows - 1:,} images to be deleted, got {plan.deleted:,}")
    return peak_rss() / 2**20, time.perf_counter() - started


def _write_unfinished(folder: Path, rows: int) -> None:
    """A collection of a run that has written this many rows, and was killed before its commit."""
    collection = Collection.create_or_open(str(folder))
    run = collection.start_run(SOURCE, _MODEL)
    for number, table in enumerate(_tables(0, rows)):
        collection.write_rows(run.run_id, f"0001-{number:06}", table)


def _resume(home: Path, rows: int) -> tuple[float, float]:
    """Find that an unfinished run has all images, and commit it."""
    listing, collection, started = Listing.of(listing_of(rows)), Collection.open(str(home)), time.perf_counter()
    change = compare(listing, collection.snapshot(), PlannedJob(source=SOURCE, model=_MODEL))
    if change.counts.resumed != rows:
        raise RuntimeError(f"expected {rows:,} images of the unfinished run, got {change.counts}")
    commit(collection, [WrittenRun.begin(plan, collection) for plan in change.plans], 1.0)
    return peak_rss() / 2**20, time.perf_counter() - started


def _lookup_ms(location: str) -> float:
    """Milliseconds (median) to find a live image by its id."""
    segments = Searcher.open(Collection.open(location)).segments
    numbers = np.sort(np.random.default_rng(0).integers(0, segments.live_count, _LOOKUPS))
    ids = [text_array([each]) for each in segments.ids(segments.live_positions(numbers))]
    return float(np.median([seconds_of(partial(segments.positions, each)) for each in ids])) * 1e3


def main(report: Report, folder: Path, options: Any) -> None:
    sizes = options.rows or (QUICK_SIZES if options.quick else SIZES)
    facts, vectors, lookups = Peaks(), Peaks(), dict[str, Figure]()
    for rows in sizes:
        home = folder / f"facts-{rows}"
        write_facts_alone(home, rows)
        facts.add("listing", rows, *in_new_process(_list, rows))
        planned = in_new_process(_plan, home, rows)
        facts.add("plan, 0.1% changed", rows, *planned)
        if rows <= SIZES[0]:
            report.at_most(f"plan, 0.1% of {rows:,} changed: s", planned[1], BAR_PLAN_S)
        report.console.log(f"{rows:,} rows: listing and plan")
        for name, words in _FACT_COMMANDS.items():
            facts.measure(home, rows, name, words)
            report.console.log(f"{rows:,} rows: {name}")
        facts.add("plan and commit, all deleted", rows, *in_new_process(_delete, home, rows))
    facts.report(report, "of facts alone")
    for rows in sizes[:2]:
        home = folder / f"vectors-{rows}"
        in_new_process(_write_unfinished, folder / f"resumed-{rows}", rows)
        vectors.add("resume and commit", rows, *in_new_process(_resume, folder / f"resumed-{rows}", rows))
        collection = write_collection(home, rows)
        for name, words in _VECTOR_COMMANDS.items():
            if name == "index, 0.1% new":
                collection.add_run(SOURCE, _MODEL, _tables(rows, rows + max(1, rows // 1_000)))
            vectors.measure(home, rows, name, words)
            report.console.log(f"{rows:,} rows: {name}")
        found_ms = in_new_process(_lookup_ms, str(home))
        lookups[f"ms, {rows:,} rows"] = found_ms
        report.at_most(f"finding an image by its id among {rows:,}: ms", found_ms, BAR_LOOKUP_MS)
    vectors.report(report, "with vectors")
    report.table("finding an image by its id", [lookups])


if __name__ == "__main__":
    rows_option = {"type": int, "nargs": "+", "help": f"how many rows, instead of {SIZES}; vectors for the first two"}
    run("catalog", __doc__, main, f"{QUICK_SIZES} rows", {"--rows": rows_option})
