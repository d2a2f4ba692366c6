"""The parts of `docs/scale.md` that are figures, rendered from the costs so that page and figures cannot drift."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from benchmarks.scale.costs import Costs, Line
from benchmarks.scale.examples import EXAMPLES, GB, Assumed, Example, Step, index_steps, job_steps, night
from benchmarks.scale.index import FAST, KINDS
from benchmarks.scale.limits import limits
from benchmarks.scale.serving import serving
from benchmarks.scale.text import amount, duration, shown, table

_BLOCK = re.compile(r"(<!-- figures: (?P<name>[a-z-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def rendered(page: str, costs: Costs, assumed: Assumed | None = None) -> str:
    """The page with every block of figures written anew. KeyError for a block that nobody renders."""
    blocks = _blocks(costs, assumed or Assumed())
    return _BLOCK.sub(lambda found: f"{found[1]}\n{blocks[found['name']]()}\n\n{found[3]}", page)


def tables(costs: Costs, assumed: Assumed | None = None) -> str:
    """All of the figures, in Markdown."""
    return "\n\n".join(block() for block in _blocks(costs, assumed or Assumed()).values())


def _blocks(costs: Costs, assumed: Assumed) -> Mapping[str, Callable[[], str]]:
    return {
        "machine": lambda: _machine(costs),
        "images": lambda: _images(costs),
        "rows": lambda: _rows(costs),
        "index": lambda: _index(costs),
        "requests": lambda: _of_requests(costs),
        "assumed": lambda: _assumed(assumed),
        "limits": lambda: _limits(costs, assumed),
        "examples": lambda: "\n\n".join(_example(costs, example, assumed) for example in EXAMPLES),
    }


def _machine(costs: Costs) -> str:
    machine = costs.machine
    text = (
        f"Measured {machine.date} on {machine.cores} cores of {machine.cpu} with {amount(machine.memory_bytes)} of "
        f"memory and no GPU, Python {machine.python}."
    )
    if machine.quick:
        text += (
            " **These figures are of a quick run, on few rows and beside other work: they show the form and are not "
            "to be planned with. `python -m benchmarks.scale --write docs` replaces them.**"
        )
    if machine.kept:
        text += f" Not measured this time, and kept from the run before: {', '.join(machine.kept)}."
    return text


def _images(costs: Costs) -> str:
    decoded = table(
        ("picture", "pixels", "megapixels", "file", "reduced scale", "CPU ms a picture", "CPU ms a megapixel"),
        [
            (
                each.picture,
                f"{each.width} × {each.height}",
                each.megapixels,
                amount(each.file_bytes),
                "yes" if each.draft else "no",
                each.cpu_ms,
                each.cpu_ms / each.megapixels,
            )
            for each in costs.decoding
        ],
    )
    models = table(
        ("model", "crop", "core ms an image", "images/s a core"),
        [(each.name, f"{each.side} × {each.side}", each.core_ms, 1e3 / each.core_ms) for each in costs.models],
    )
    return f"{decoded}\n\n{models}\n\nA crop is {amount(costs.crop_bytes)} on its way from decoding to the model."


def _rows(costs: Costs) -> str:
    listing = costs.listing
    parquet = table(
        ("dimensions", "rows of a file", "bytes a row"),
        [(each.dim, str(each.block), each.bytes) for each in costs.rows],
    )
    driver = table(
        ("a million", "seconds", "driver's memory"),
        [
            ("files of a folder, listed", 1e6 * listing.listing_s, amount(1e6 * listing.listing_bytes)),
            ("listed rows, compared with live ones", 1e6 * listing.comparing_s, amount(1e6 * listing.comparing_bytes)),
        ],
    )
    return (
        f"{parquet}\n\n{driver}\n\nExtrapolated from {listing.listed:,} files and {listing.compared:,} rows in local "
        f"folders. Each row file takes {listing.manifest_bytes_per_file:.0f} bytes in its run's manifest."
    )


def _index(costs: Costs) -> str:
    every = costs.indexes
    lines: list[tuple[str, list[object]]] = [
        ("faiss factory", [f"`{each.factory}`" for each in every]),
        ("recall@10, as its build measured it", [f"{each.recall:.3f}" for each in every]),
        ("memory to search", [amount(each.memory_bytes) for each in every]),
        ("… of which the server's own", [amount(each.own_bytes) for each in every]),
        ("bytes a row on disk: approximate index", [each.ann_bytes / each.rows for each in every]),
        ("… exact vectors", [each.vectors_bytes / each.rows for each in every]),
        ("… rows", [each.rows_bytes / each.rows for each in every]),
        ("core seconds to build, a million rows", [each.build_core_s * 1e6 / each.rows for each in every]),
        ("… of which exact neighbours, to measure recall", [each.truth_core_s * 1e6 / each.rows for each in every]),
        ("seconds to check files, a million rows", [each.check_s * 1e6 / each.rows for each in every]),
        ("memory to build, without pages of files", [amount(each.peak_own_bytes) for each in every]),
        ("… with them, given back at need", [amount(each.peak_bytes) for each in every]),
        ("queries/s a core, in batches", [1e3 / each.core_ms for each in every]),
        ("p50 ms, single queries on one core, with their rows", [each.p50_ms for each in every]),
        ("exact vectors read for a query", [str(each.candidates) for each in every]),
        ("ms to find a row by its id", [each.lookup_ms for each in every]),
    ]
    head = ["", *(f"{each.kind}, {each.rows:,} rows" for each in every)]
    scan = costs.scan
    return (
        f"{table(head, [(name, *values) for name, values in lines])}\n\n{_by_rows(costs)}\n\n"
        f"An exact scan of {scan.rows:,} vectors of {scan.dim} dimensions in memory: {shown(1e3 / scan.core_ms)} "
        f"queries/s a core in batches, {shown(scan.p50_ms)} ms for a single query on one core. {_growth(costs)}"
    )


def _by_rows(costs: Costs) -> str:
    """What grows in proportion, as the lines through the measured sizes."""

    def cells(line: Line) -> tuple[str, float]:
        return amount(line.constant), line.slope

    return table(
        ("memory", "for no row", "and bytes for each row"),
        [
            *((f"to search, {kind}", *cells(costs.line(kind, lambda each: each.memory_bytes))) for kind in KINDS),
            *((f"to build, {kind}", *cells(costs.line(kind, lambda each: each.peak_own_bytes))) for kind in KINDS),
        ],
    )


def _growth(costs: Costs) -> str:
    """How a query's cost grows with a segment, and what follows for the number of segments."""
    power = costs.growth(FAST)
    if power < 0.9:
        advice = "few large segments search faster than many small ones"
    elif power < 1.1:
        advice = "the size of segments makes little difference to a search"
    else:
        advice = "small segments searched faster here: measure yours before you make them large"
    return (
        f"Between the sizes above the cost of a query grows with the rows of a segment to the power of {power:.2f}: "
        f"four times the rows cost {4**power:.1f} times as much, so {advice} (`--segment-rows`)."
    )


def _of_requests(costs: Costs) -> str:
    return (
        table(
            ("step", "for each", "PUT", "GET", "HEAD", "LIST", "POST"),
            [
                (each.step, each.unit, *map(_few, (each.put, each.get, each.head, each.list, each.other)))
                for each in costs.requests
            ],
        )
        + "\n\n"
        + table(
            ("a million images", "requests"),
            [
                ("listed", f"{costs.requests_of('list', '1,000 pictures').total * 1e3:,.0f}"),
                ("fetched", f"{costs.requests_of('fetch', 'picture').total * 1e6:,.0f}"),
                *(
                    (
                        f"{step}, files of {block} rows",
                        f"{costs.requests_of(step, 'row file').total * 1e6 / block:,.0f}",
                    )
                    for step in ("write", "commit", "compare", "build the index")
                    for block in (256, 4096)
                ),
            ],
        )
    )


def _assumed(assumed: Assumed) -> str:
    return table(
        ("assumed", ""),
        [
            ("a picture", f"JPEG of {assumed.megapixels:g} megapixels, decoded at reduced scale"),
            ("a GPU", f"{assumed.gpu_images_per_s:,.0f} images/s of ViT-B/32: **not measured**, put your own here"),
            (
                "a machine",
                f"{assumed.cores} cores like those measured, {assumed.memory_bytes / GB:.0f} GB of memory, of which "
                f"{assumed.usable:.0%} for an index or a build",
            ),
            (
                "its network and disk",
                f"{8 * assumed.network_bytes_per_s / GB:g} Gbit/s, {amount(assumed.disk_bytes)}, "
                f"{assumed.disk_reads_per_s:,.0f} random reads/s",
            ),
            (
                "the object store",
                f"{assumed.request_s * 1e3:.0f} ms a request, {assumed.page_s * 1e3:.0f} ms a page of a listing",
            ),
            ("a call from the front to a shard", f"{assumed.call_ms:g} ms of a core of the front"),
        ],
    )


def _limits(costs: Costs, assumed: Assumed) -> str:
    return table(
        ("images", "what stops, or takes that long", "because", "what to do"),
        [(f"{shown(each.images / 1e6)} million", each.what, each.why, each.remedy) for each in limits(costs, assumed)],
    )


def _example(costs: Costs, example: Example, assumed: Assumed) -> str:
    steps = [*job_steps(costs, example, assumed), *index_steps(costs, example, assumed), night(costs, example, assumed)]
    machines = f"{example.machines} machines with a GPU each" if example.machines > 1 else "1 machine with a GPU"
    rows = table(
        ("step", "work", "takes", "bottleneck", "what to do about it"),
        [(step.name, step.work, duration(step.total), _bottleneck(step), step.remedy) for step in steps],
    )
    return (
        f"### {example.images / 1e6:,.0f} million images\n\n"
        f"{machines}, `--block-size {example.block}`, `--segment-rows {example.segment_rows}`.\n\n{rows}\n\n"
        f"Serving, one replica:\n\n{_serving(costs, example, assumed)}"
    )


def _bottleneck(step: Step) -> str:
    share = f" ({step.seconds[step.bottleneck] / step.total:.0%})" if step.serial and step.total else ""
    return f"{step.bottleneck}{share}"


def _serving(costs: Costs, example: Example, assumed: Assumed) -> str:
    rows = []
    for kind in KINDS:
        it = serving(costs, example, assumed, kind)
        rows.append(
            (
                kind,
                amount(it.memory_bytes),
                amount(it.disk_bytes),
                f"{it.shards} of {example.images / it.shards / 1e6:,.3g} million rows",
                it.core_ms,
                it.rate,
                it.bottleneck,
            )
        )
    return table(
        ("index", "memory", "disk", "shards, a machine each", "core ms a query", "queries/s at most", "bottleneck"),
        rows,
    )


def _few(count: float) -> str:
    return f"{count:.3g}" if count else ""
