"""Index and model change twenty times and twice while searches come: nobody notices but by what they find."""

from pathlib import Path

import pytest

from benchmarks.common.servers import Server, serving
from benchmarks.serve.swaps import SETTINGS, sequence, swap_under_load
from index.versions.promotion import promote
from tests.support.collections.editions import Editions, check_of_one_version, make_editions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def editions(tmp_path_factory: pytest.TempPathFactory) -> Editions:
    return make_editions(tmp_path_factory.mktemp("editions"), demo=3)


def require_answers(server: Server, editions: Editions) -> None:
    """No search fails, and each answer is of one version. How late they come is a bar of `benchmarks.serve`."""
    *demo, other = editions.names
    swapping = swap_under_load(server, editions.collection, sequence(demo, other), editions.pictures, usual_s=1.0)
    assert [each for each in swapping.asked if each.status != 200] == []
    assert check_of_one_version(swapping.asked, editions) == set(editions.names)


def test_on_the_local_server(editions: Editions, tmp_path: Path) -> None:
    with serving(editions.collection.location, tmp_path / "log", "--local", **SETTINGS) as server:
        require_answers(server, editions)


@pytest.mark.ray
def test_on_ray_serve(editions: Editions, tmp_path: Path) -> None:
    promote(editions.collection, editions.names[0])
    with serving(editions.collection.location, tmp_path / "log", **SETTINGS) as server:
        require_answers(server, editions)
