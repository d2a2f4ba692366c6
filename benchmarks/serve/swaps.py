"""How much later searches are answered while index and model of a server change under load."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from benchmarks.common.collections import add_version, make_collection
from benchmarks.common.load import Asked, crowd, load, milliseconds
from benchmarks.common.models import save_small_clip
from benchmarks.common.report import Report
from benchmarks.common.servers import Server, eventually, serving
from index.collection import Collection
from index.versions.promotion import promote
from jobs.values import DEMO_MODEL

SWAPS = 20
SETTINGS = {"embedding_cache_bytes": 0, "swap_interval_s": 0.2}
"""Of the server: each search embeds its picture, and a new version is found at once."""

_ROWS = 20_000
_BETWEEN_SWAPS_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Swapping:
    """All searches, and of these the usual ones, before and after the swaps, and those during them."""

    asked: Sequence[Asked]
    usual: Sequence[Asked]
    during: Sequence[Asked]


def sequence(same_model: Sequence[str], another_model: str) -> list[str]:
    """Twenty versions of the same model, and another model's in their middle: two changes of models."""
    indexes = list(islice(cycle([*same_model[1:], same_model[0]]), SWAPS))
    return [*indexes[: SWAPS // 2], another_model, *indexes[SWAPS // 2 :]]


def swap_under_load(
    server: Server, collection: Collection, versions: Sequence[str], pictures: Path, *, usual_s: float
) -> Swapping:
    """Make one version after another the live one while searches come at a third of the rate that the server can take;
    before and after that they come for `usual_s` without a swap.
    """

    crowd(server.url, pictures, clients=2, seconds=2)
    able = len(crowd(server.url, pictures, clients=4, seconds=4)) / 4
    with load(server.url, pictures, able / 3) as going:
        began = time.monotonic()
        time.sleep(usual_s)
        swaps = time.monotonic()
        for version in versions:
            promote(collection, version)
            eventually(partial(_answers, server, version), f"{version} answers", seconds=60)
            time.sleep(_BETWEEN_SWAPS_S)
        swapped = time.monotonic()
        time.sleep(usual_s)
        ended = time.monotonic()
    usual = [*going.between(began, swaps), *going.between(swapped, ended)]
    return Swapping(asked=going.asked, usual=usual, during=going.between(swaps, swapped))


def _answers(server: Server, version: str) -> bool:
    return server.version() == version


def measure_swaps(servers: Mapping[str, Sequence[str]], pictures: Path, folder: Path, whole: Report) -> None:
    """The bars of servers, by name with the options that start them."""
    collection = make_collection(folder / "swapped", str(DEMO_MODEL), _ROWS)
    same = [*collection.versions(), *(add_version(collection, str(DEMO_MODEL), _ROWS, seed=seed) for seed in (1, 2))]
    other = add_version(collection, str(save_small_clip(folder / "another-model", seed=2)), _ROWS)
    for name, options in servers.items():
        promote(collection, same[0])
        with serving(collection.location, folder / f"{name}.log", *options, **SETTINGS) as server:
            swapping = swap_under_load(server, collection, sequence(same, other), pictures, usual_s=8.0)
        report, phases = whole.about(name), {"usual": swapping.usual, "during swaps": swapping.during}
        report.table(
            f"{SWAPS} swaps of the index and two of the model under load",
            [
                {
                    "": phase,
                    "searches": len(asked),
                    **{f"p{level} ms": milliseconds(asked, level) for level in (50, 95, 99)},
                }
                for phase, asked in phases.items()
            ],
        )
        failed = sum(each.status != 200 for each in swapping.asked)
        report.at_most("searches that failed during swaps", failed, 0)
        share = milliseconds(swapping.during, 99) / milliseconds(swapping.usual, 99)
        report.at_most("p99 during swaps ÷ the usual", share, 2)
