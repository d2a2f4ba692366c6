"""Ten times the load that a server can take, for a minute, on a model of ViT-B/32's size; in one process and on Ray."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.common.collections import draw_pictures
from benchmarks.common.models import save_clip
from embedder.models.clip import ClipEmbedder
from index.build.build_index import build_index
from index.collection import Collection
from tests.support.collections.editions import add_edition
from tests.support.servers.load import Asked, crowd, load, milliseconds
from tests.support.servers.served import Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_PLACES = 8
_NORMAL_S = 15.0
_FLOOD_S = 60.0


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("soak")
    collection = Collection.create_or_open(str(folder / "collection"))
    embedder = ClipEmbedder.load(str(save_clip(folder / "vit-b-32")), device="cpu")
    add_edition(collection, draw_pictures(folder / "pictures", 40), embedder, 1)
    build_index(collection)
    return folder


@contextmanager
def watching_memory(served: Served) -> Iterator[list[int]]:
    """The server's memory in bytes, each second while the block lasts."""
    seen: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            seen.append(served.rss())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


@pytest.mark.parametrize("options", [["--local"], pytest.param([], marks=pytest.mark.ray)], ids=["local", "ray-serve"])
def test_ten_times_the_load_for_a_minute(collection: Path, tmp_path: Path, options: list[str]) -> None:
    """Normal is the most that is not refused: as many clients as there are places, each waiting for its answers."""
    pictures = collection / "pictures"
    location = str(collection / "collection")
    with serving(location, tmp_path / "log", *options, embedding_cache_bytes=0, max_searches=_PLACES) as served:
        crowd(served.url, pictures, clients=_PLACES, seconds=5)
        before = crowd(served.url, pictures, clients=_PLACES, seconds=_NORMAL_S)
        able = len(before) / _NORMAL_S
        with load(served.url, pictures, 10 * able) as flood, watching_memory(served) as memory:
            time.sleep(_FLOOD_S)
            receded = time.monotonic()
        after = crowd(served.url, pictures, clients=1, seconds=5)
    print(f"able to answer {able:.1f}/s")
    during = [each for each in flood.asked if each.at < receded]
    for name, asked in (("before", before), ("flood", during), ("after", after)):
        tell(name, asked)
    megabytes = [each >> 20 for each in memory]
    print(f"memory {megabytes[10]} MiB after 10 s, {megabytes[-1]} at the end, {max(megabytes)} at most")

    assert {each.status for each in before} == {200}
    assert {each.status for each in during} == {200, 429}
    assert {each.retry_after for each in during if each.status == 429} == {"1"}
    answered = [each for each in during if each.status == 200]
    assert len(answered) >= 0.5 * able * _FLOOD_S
    assert milliseconds(answered, 99) <= 3 * milliseconds(before, 99)
    # The flood ends with its last answer: from then on nothing is left of it.
    assert {each.status for each in after} == {200}
    assert milliseconds([each for each in after if each.at < after[0].at + 1], 100) <= milliseconds(before, 99)
    assert max(megabytes[-10:]) <= 1.05 * max(megabytes[10:20])


def tell(name: str, asked: list[Asked]) -> None:
    refused = sum(each.status == 429 for each in asked)
    answered = [each for each in asked if each.status == 200]
    figures = ", ".join(f"p{level} {milliseconds(answered, level):.0f} ms" for level in (50, 95, 99) if answered)
    print(f"{name}: {len(answered)} answered, {refused} refused, {figures}")
