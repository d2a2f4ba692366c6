"""What a unit of each kind of work costs, for planning: `python -m benchmarks.scale [--quick] [--write docs]`.

Measures decoding, the models, rows, listing, segments of an index and requests to an object store, and prints the
tables of `docs/scale.md`. `--write` puts the figures into `scale.json` of a folder and renders its `scale.md` anew;
a part that fails keeps its figures of the run before, the page says so, and the exit code is 1.
`--render` only renders, from the figures that are there.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.common.report import Report
from benchmarks.index.upkeep import in_new_process
from benchmarks.scale.costs import Costs, Machine
from benchmarks.scale.page import rendered, tables
from embedder.openmp import WAITING

FIGURES, PAGE = "scale.json", "scale.md"
DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured: seconds for each rate, files listed, rows compared, rows of the segments, smallest first.

    `latency_ms` of a scan, so short that the smallest segment is not searched exactly.
    """

    seconds: float = 5.0
    files: int = 100_000
    listed: int = 1_000_000
    rows: tuple[int, int] = (100_000, 1_000_000)
    latency_ms: float = 5.0


QUICK = Plan(seconds=0.7, files=10_000, listed=50_000, rows=(20_000, 60_000), latency_ms=0.5)


def parts(plan: Plan, folder: Path) -> dict[str, Callable[[], dict[str, object]]]:
    """What is measured, by its name: fields of `Costs`."""
    # Imported late, because `--render` needs none of it.
    from benchmarks.common.models import save_clip
    from benchmarks.scale import images, index, listing
    from benchmarks.scale import requests as requests_of
    from jobs.values import DEMO_MODEL

    def decoding() -> dict[str, object]:
        found, crop_bytes = in_new_process(images.decoding, folder, plan.seconds)
        return {"decoding": found, "crop_bytes": crop_bytes}

    def models() -> dict[str, object]:
        large = in_new_process(save_clip, folder / "vit-b-32")
        asked = (("ViT-B/32", large, 32), ("demo", DEMO_MODEL, 64))
        found = [in_new_process(images.forward, name, str(model), batch, plan.seconds) for name, model, batch in asked]
        return {"models": found}

    def rows() -> dict[str, object]:
        found, manifest_bytes = images.row_bytes(folder / "rows")
        of_listing = listing.listing(folder, files=plan.files, rows=plan.listed, manifest_bytes_per_file=manifest_bytes)
        return {"rows": found, "listing": of_listing}

    def requests() -> dict[str, object]:
        return {"requests": in_new_process(requests_of.requests, folder)}

    def indexes() -> dict[str, object]:
        found = []
        for size in plan.rows:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                found += index.indexes(Path(name) / "c", rows=size, latency_ms=plan.latency_ms)
        return {"indexes": found, "scan": in_new_process(index.scan, plan.rows[0])}

    return {
        "decoding": decoding,
        "models": models,
        "rows, listing and comparing": rows,
        "requests": requests,
        "indexes": indexes,
    }


def measure(
    parts: Mapping[str, Callable[[], dict[str, object]]], earlier: Costs, console: Console, *, quick: bool
) -> Iterator[Costs]:
    """All that is known after each part. One that fails, or whose turn has not come, has its `earlier` figures."""
    found: dict[str, object] = {}
    kept = list(parts)
    for name, part in parts.items():
        started = time.perf_counter()
        try:
            with console.status(name):
                found |= part()
            kept.remove(name)
            console.print(f"{name}: {time.perf_counter() - started:.0f} s")
        except Exception as error:
            console.print(f"{name}: not measured: {type(error).__name__}: {error}", markup=False)
        machine = _machine(quick=quick or (bool(kept) and earlier.machine.quick), kept=kept)
        yield earlier.model_copy(update={**found, "machine": machine})


def _machine(*, quick: bool, kept: list[str]) -> Machine:
    named = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return Machine(
        date=dt.date.today().isoformat(),
        cpu=named[0] if named else platform.machine(),
        cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        quick=quick,
        kept=list(kept),
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def render(folder: Path) -> None:
    """Write the page's figures anew from the folder's JSON."""
    page = folder / PAGE
    page.write_text(rendered(page.read_text(), Costs.read(folder / FIGURES)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows, within 2 minutes; nothing to plan with")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help=f"put {FIGURES} there and render its {PAGE}")
    parser.add_argument("--render", type=Path, metavar="FOLDER", help=f"measure nothing: render {PAGE} from {FIGURES}")
    options = parser.parse_args()
    for folder in (options.write, options.render):
        if folder and not (folder / PAGE).is_file():  # before minutes of measuring
            parser.error(f"{folder} has no {PAGE}: expected the folder docs of the repository")
    if options.render:
        render(options.render)
        return 0
    for name, value in {**WAITING, "RAY_USAGE_STATS_ENABLED": "0"}.items():
        os.environ.setdefault(name, value)
    earlier = Costs.read((options.write or DOCS) / FIGURES)
    with tempfile.TemporaryDirectory() as name:
        plan = QUICK if options.quick else Plan()
        try:
            for costs in measure(parts(plan, Path(name)), earlier, Console(stderr=True), quick=options.quick):
                if options.write:
                    costs.write(options.write / FIGURES)
        finally:  # whatever ends the run, what it has is there
            if options.write:
                render(options.write)
    print(tables(costs))
    report = Report(benchmark="scale", figures=costs.model_dump()).conclude()
    return report or int(bool(costs.machine.kept))


if __name__ == "__main__":
    sys.exit(main())
