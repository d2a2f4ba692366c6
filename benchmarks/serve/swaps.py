"""Latency of searches while index and model of a server change under load."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path

from benchmarks.common.collections import add_version, make_collection
from benchmarks.common.load import Load, TimedSearch, closed_loop, latencies, load
from benchmarks.common.report import Report
from benchmarks.common.servers import Server, serving
from benchmarks.common.waiting import eventually
from benchmarks.models.random_models import save_small_clip
from embedder.models.checkpoint import DEMO_MODEL
from index.collection import Collection
from index.versions.promotion import promote

SWAPS = 20
SETTINGS = {"embedding_cache_bytes": 0, "swap_interval_s": 0.2}
"""Of the server: each search embeds its picture, and new versions are noticed at once."""

_ROWS = 20_000
_BETWEEN_SWAPS_S = 1.0


def sequence(same_model: Sequence[str], another_model: str) -> list[str]:
    """Twenty versions of one model with one of another model in the middle, so the model changes twice."""
    indexes = list(islice(cycle([*same_model[1:], same_model[0]]), SWAPS))
    return [*indexes[: SWAPS // 2], another_model, *indexes[SWAPS // 2 :]]


def swap_under_load(
    server: Server, collection: Collection, versions: Sequence[str], pictures: Path, *, usual_s: float
) -> tuple[Load, dict[str, list[TimedSearch]]]:
    """Promote one version after another while searches come at a third of the server's maximum rate, with `usual_s`
    seconds without swaps before and after. Returns all searches, and those of each phase.
    """
    closed_loop(server.url, pictures, clients=2, seconds=2)
    max_rate = len(closed_loop(server.url, pictures, clients=4, seconds=4)) / 4
    with load(server.url, pictures, max_rate / 3) as running:
        marks = [time.monotonic()]
        time.sleep(usual_s)
        marks.append(time.monotonic())
        for version in versions:
            promote(collection, version)
            eventually(lambda version=version: server.version() == version, f"{version} answers", seconds=60)  # type: ignore[misc]
            time.sleep(_BETWEEN_SWAPS_S)
        marks.append(time.monotonic())
        time.sleep(usual_s)
        marks.append(time.monotonic())
    before, during, after = (running.between(start, end) for start, end in pairwise(marks))
    return running, {"usual": [*before, *after], "during swaps": during}


def measure_swaps(servers: Mapping[str, Sequence[str]], pictures: Path, folder: Path, whole: Report) -> None:
    """Swap versions under each of the servers, given by name with their options."""
    collection = make_collection(folder / "swapped", str(DEMO_MODEL), _ROWS)
    same = [*collection.versions(), *(add_version(collection, str(DEMO_MODEL), _ROWS, seed=seed) for seed in (1, 2))]
    other = add_version(collection, str(save_small_clip(folder / "another-model", seed=2)), _ROWS)
    for name, options in servers.items():
        promote(collection, same[0])
        with serving(collection.location, folder / f"{name}.log", *options, **SETTINGS) as server:
            running, phases = swap_under_load(server, collection, sequence(same, other), pictures, usual_s=8.0)
        report = whole.about(name)
        report.table(
            f"{SWAPS} swaps of the index and two of the model under load",
            {phase: {"searches": len(searches), **latencies(searches)} for phase, searches in phases.items()},
        )
        failed = sum(each.status != 200 for each in running.searches)
        report.at_most("searches that failed during swaps", failed, 0)
        during, usual = (latencies(phases[phase])["p99 ms"] for phase in ("during swaps", "usual"))
        report.at_most("p99 during swaps ÷ the usual", during / usual, 2)
