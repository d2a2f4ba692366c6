"""Index and model change twenty times and twice while searches come: nobody notices but by what they find."""

import time
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path

import pytest

from index.versions.promotion import promote
from tests.support.collections.editions import Editions, check_of_one_version, make_editions
from tests.support.servers.load import Asked, Load, crowd, eventually, load, milliseconds
from tests.support.servers.served import Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

how_late = pytest.mark.parametrize("at_most", [None, pytest.param(2.0, marks=pytest.mark.long)])
"""How many times as long p99 may be meanwhile, in the long form alone: a machine that pauses decides it too."""

_SWAPS = 20
_NORMAL_S = 8.0
_BETWEEN_SWAPS_S = 1.0
_SETTINGS = {
    "embedding_cache_bytes": 0,  # so that each search embeds its picture
    "swap_interval_s": 0.2,
}


@pytest.fixture(scope="module")
def editions(tmp_path_factory: pytest.TempPathFactory) -> Editions:
    return make_editions(tmp_path_factory.mktemp("editions"), demo=3)


def sequence(editions: Editions) -> list[str]:
    """Twenty versions of the demo model, and the other model's for a while in their middle: two changes of models."""
    *demo, other = editions.names
    indexes = list(islice(cycle(demo[1:] + demo[:1]), _SWAPS))
    half = _SWAPS // 2
    return [*indexes[:half], other, *indexes[half:]]


def swap_under_load(served: Served, editions: Editions, at_most: float | None) -> None:
    crowd(served.url, editions.pictures, clients=2, seconds=2)
    able = len(crowd(served.url, editions.pictures, clients=4, seconds=4)) / 4
    with load(served.url, editions.pictures, able / 3) as going:
        began = time.monotonic()
        time.sleep(_NORMAL_S)
        swaps = time.monotonic()
        for version in sequence(editions):
            promote(editions.collection, version)
            eventually(partial(answers, served, version), f"{version} answers")
            time.sleep(_BETWEEN_SWAPS_S)
        swapped = time.monotonic()
        time.sleep(_NORMAL_S)
        ended = time.monotonic()
    judge(going, editions, at_most, normal=[(began, swaps), (swapped, ended)], swapping=(swaps, swapped))


def answers(served: Served, version: str) -> bool:
    return served.version() == version


def judge(
    going: Load,
    editions: Editions,
    at_most: float | None,
    *,
    normal: list[tuple[float, float]],
    swapping: tuple[float, float],
) -> None:
    failed = [each for each in going.asked if each.status != 200]
    usual: list[Asked] = list(chain(*(going.between(*phase) for phase in normal)))
    during = going.between(*swapping)
    for name, asked in (("normal", usual), ("swapping", during)):
        figures = ", ".join(f"p{level} {milliseconds(asked, level):.1f} ms" for level in (50, 95, 99))
        print(f"{name}: {len(asked)} searches, {figures}")
    assert failed == []
    seen = check_of_one_version(going.asked, editions)
    assert seen == set(editions.names)
    if at_most is not None:
        assert milliseconds(during, 99) <= at_most * milliseconds(usual, 99)


@how_late
def test_on_the_local_server(editions: Editions, tmp_path: Path, at_most: float | None) -> None:
    location = editions.collection.location
    with serving(location, tmp_path / "log", "--local", **_SETTINGS) as served:
        swap_under_load(served, editions, at_most)


@pytest.mark.ray
@how_late
def test_on_ray_serve(editions: Editions, tmp_path: Path, at_most: float | None) -> None:
    promote(editions.collection, editions.names[0])
    with serving(editions.collection.location, tmp_path / "log", **_SETTINGS) as served:
        swap_under_load(served, editions, at_most)
