"""Worked examples of `docs/scale.md`: what a number of images comes to, from the costs of a unit and assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.scale.costs import MILLION, Costs
from benchmarks.scale.index import FAST
from benchmarks.scale.text import amount, duration

GB, TB = 1e9, 1e12
DIM = 512
MODEL = "ViT-B/32"
IDS_STEP = "read the ids"
READ_AT_ONCE = 16
"""Files that `index.collection.row_files.map_in_threads` reads side by side."""
LISTED_AT_ONCE = 32
"""Requests that `index.storage.list_objects` makes side by side."""


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What was not measured: replace it by your own. A machine has `cores` like the one that was measured."""

    megapixels: float = 3.0
    gpu_images_per_s: float = 2_000.0
    cores: int = 16
    memory_bytes: float = 64 * GB
    disk_bytes: float = 4 * TB
    network_bytes_per_s: float = 1.25 * GB
    disk_reads_per_s: float = 300_000.0
    request_s: float = 0.03
    page_s: float = 0.1
    call_ms: float = 0.5
    usable: float = 0.75
    night: float = 0.01

    def waiting(self, requests: float) -> float:
        """Seconds for so many requests of the driver about row files."""
        return requests * self.request_s / READ_AT_ONCE


@dataclass(frozen=True, kw_only=True)
class Example:
    """So many images, the machines for the job (a GPU each), and the options that matter."""

    images: int
    machines: int
    block: int
    segment_rows: int

    @property
    def files(self) -> float:
        """Row files."""
        return self.images / self.block

    @property
    def segments(self) -> float:
        return max(1.0, self.images / self.segment_rows)


EXAMPLES = (
    Example(images=MILLION, machines=1, block=256, segment_rows=MILLION),
    Example(images=100 * MILLION, machines=8, block=4096, segment_rows=5 * MILLION),
    Example(images=1_000 * MILLION, machines=32, block=4096, segment_rows=10 * MILLION),
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: its `work` in words and the seconds that each resource needs for it.

    They are needed at once, so that the slowest counts, or one after the other where `serial`.
    """

    name: str
    work: str
    seconds: Mapping[str, float]
    remedy: str
    serial: bool = False

    @property
    def total(self) -> float:
        return sum(self.seconds.values()) if self.serial else max(self.seconds.values())

    @property
    def bottleneck(self) -> str:
        """What takes longest."""
        return max(self.seconds, key=lambda name: self.seconds[name])


def job_steps(costs: Costs, example: Example, assumed: Assumed) -> list[Step]:
    """From a source to rows: listing, decoding, embedding, writing."""
    images, machines = example.images, example.machines
    jpeg, listing = costs.decoding_of(assumed.megapixels), costs.listing
    cpu_s = jpeg.cpu_ms / jpeg.megapixels * assumed.megapixels / 1e3
    file_bytes = jpeg.file_bytes / jpeg.megapixels * assumed.megapixels
    pages = costs.requests_of("list", "1,000 pictures").total * images / 1_000
    model_s = next(model.core_ms for model in costs.models if model.name == MODEL) / 1e3
    row = costs.row_of(DIM, example.block).bytes
    gpu_cores = assumed.gpu_images_per_s * cpu_s
    return [
        Step(
            name="List",
            work=f"{pages:,.0f} LIST requests; {amount(images * listing.listing_bytes)} of the driver's memory",
            seconds={
                f"LIST requests, {LISTED_AT_ONCE} at once": pages * assumed.page_s / LISTED_AT_ONCE,
                "one core of the driver": images * listing.listing_s,
            },
            remedy="a list in Parquet instead of a listing; on Azure folders, for each is listed page after page",
        ),
        Step(
            name="Fetch and decode",
            work=f"{amount(images * file_bytes)} read, {requests_for(costs, 'fetch', 'picture') * images:,.0f} "
            f"requests, {images * cpu_s / 3600:,.0f} core hours",
            seconds={
                "cores": images * cpu_s / (machines * assumed.cores),
                "network": images * file_bytes / (machines * assumed.network_bytes_per_s),
            },
            remedy="more machines, which need no GPU; smaller pictures at the source",
        ),
        Step(
            name="Embed",
            work=f"{images / assumed.gpu_images_per_s / 3600:,.1f} GPU hours, or {images * model_s / 3600:,.0f} core "
            f"hours; {amount(images * costs.crop_bytes)} of crops between the stages",
            seconds={
                "GPUs": images / (machines * assumed.gpu_images_per_s),
                "cores that decode": images * cpu_s / (machines * assumed.cores),
            },
            remedy=f"one GPU of the assumed speed takes what {gpu_cores:,.0f} cores decode: add machines of the kind "
            "that runs short",
        ),
        Step(
            name="Write and commit",
            work=f"{amount(images * row)} in {example.files:,.0f} files; a manifest of "
            f"{amount(example.files * listing.manifest_bytes_per_file)}",
            seconds={
                "network": images * row / (machines * assumed.network_bytes_per_s),
                f"requests of the commit, {READ_AT_ONCE} at once": assumed.waiting(
                    requests_for(costs, "commit", "row file") * example.files
                ),
            },
            serial=True,
            remedy="`--block-size 4096` or more: everything that is done for each row file shrinks with it",
        ),
    ]


def index_steps(costs: Costs, example: Example, assumed: Assumed) -> list[Step]:
    """From rows to a version: segments by tasks, then what one process does alone."""
    index = costs.index_of(FAST)
    share, machines = example.images / index.rows, example.machines
    # A row is compared with all inverted lists, which are as many as the root of the rows.
    longer = max(1.0, min(example.images, example.segment_rows) / index.rows) ** 0.5
    core_s = share * (index.build_core_s - index.truth_core_s) * longer
    task_bytes = costs.line(FAST, lambda each: each.peak_own_bytes).at(min(example.images, example.segment_rows))
    map_in_threads = machines * max(1, min(assumed.cores // 2, int(assumed.usable * assumed.memory_bytes / task_bytes)))
    ids = requests_for(costs, IDS_STEP, "row file") * example.files
    rows = requests_for(costs, "build the index", "row file") * example.files - ids
    copied_bytes = share * index.disk_bytes
    return [
        Step(
            name="Build segments",
            work=f"{example.segments:,.0f} of {min(example.images, example.segment_rows):,} rows; "
            f"{duration(core_s)} of a core, {amount(task_bytes)} of memory each",
            seconds={
                f"row files that the driver opens, {READ_AT_ONCE} at once": assumed.waiting(ids),
                f"row files that a task fetches, {READ_AT_ONCE} at once": assumed.waiting(rows)
                / min(map_in_threads, example.segments),
                "cores": core_s / min(machines * assumed.cores, assumed.cores * example.segments),
            },
            serial=True,
            remedy="larger `--block-size`; more machines, as long as there are more segments than tasks",
        ),
        Step(
            name="Finish the version",
            work=f"one process copies {amount(copied_bytes)} from the bucket, checks it, and "
            "compares all rows with 1,000 queries",
            seconds={
                "copying from the bucket": copied_bytes / assumed.network_bytes_per_s,
                "checksums": share * index.check_s / assumed.cores,
                "exact neighbours": share * index.truth_core_s / assumed.cores,
            },
            serial=True,
            remedy="run it on the machine with the fastest network and disk; a collection in a folder copies nothing",
        ),
    ]


def night(costs: Costs, example: Example, assumed: Assumed) -> Step:
    """A re-embedding of a share of the images, everything else unchanged."""
    listing, index, some = costs.listing, costs.index_of(FAST), assumed.night
    whole = example.images * index.disk_bytes / index.rows
    jobs = {step.name: step for step in job_steps(costs, example, assumed)}
    build = next(step for step in index_steps(costs, example, assumed) if step.name == "Build segments")
    return Step(
        name=f"A night with {some:.0%} changed",
        work=f"{example.images * some:,.0f} images embedded; {amount(example.images * listing.comparing_bytes)} of the "
        f"driver's memory to compare; the job and each server download {amount(some * whole)} of new segments, or all "
        f"{amount(whole)} where their cache is empty",
        seconds={
            "listing": jobs["List"].total,
            f"row files that the driver opens, {READ_AT_ONCE} at once": assumed.waiting(
                requests_for(costs, "compare", "row file") * example.files
            ),
            "comparing, on the driver": example.images * listing.comparing_s,
            "fetching, decoding, embedding": some * max(jobs["Fetch and decode"].total, jobs["Embed"].total),
            "building the new segments": some * build.seconds["cores"],
            "downloading the new segments": some * whole / assumed.network_bytes_per_s,
        },
        serial=True,
        remedy="several collections, each with its own job and its own night; those that did not change cost a listing",
    )


def requests_for(costs: Costs, step: str, unit: str) -> float:
    """How many requests a step makes for each of a unit."""
    return costs.requests_of(step, unit).total
