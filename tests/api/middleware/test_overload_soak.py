"""Ten times a server's capacity, for a minute, with a model of ViT-B/32's size, in one process and on Ray."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.common.collections import draw_pictures
from benchmarks.common.load import closed_loop, load
from benchmarks.common.servers import Server, serving
from benchmarks.models.random_models import save_clip
from embedder.models.clip import ClipEmbedder
from index.builder.build_index import build_index
from index.collection import Collection
from tests.support.collections.many_rows import add_many

_MAX_SEARCHES = 8
_FLOOD_S = 60.0


@contextmanager
def watching_memory(served: Server) -> Iterator[list[int]]:
    """The server's memory in bytes, sampled each second during the block."""
    samples: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            samples.append(served.rss())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        ended.set()
        watcher.join()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("options", [["--local"], pytest.param([], marks=pytest.mark.ray)], ids=["local", "ray-serve"])
def test_ten_times_the_load_is_answered_or_refused_and_leaves_nothing(tmp_path: Path, options: list[str]) -> None:
    pictures = draw_pictures(tmp_path / "pictures", 40)
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    add_many(collection, pictures, ClipEmbedder.load(str(save_clip(tmp_path / "vit-b-32")), device="cpu"))
    build_index(collection)
    settings = {"embedding_cache_bytes": 0, "max_searches": _MAX_SEARCHES}
    with serving(collection.location, tmp_path / "log", *options, **settings) as served:
        before = closed_loop(served.url, pictures, clients=_MAX_SEARCHES, seconds=10)
        with load(served.url, pictures, len(before)) as flood, watching_memory(served) as memory:
            time.sleep(_FLOOD_S)
            receded = time.monotonic()
        after = closed_loop(served.url, pictures, clients=1, seconds=5)
    during = [each for each in flood.searches if each.at < receded]
    assert {each.status for each in (*before, *after)} == {200}
    assert {each.status for each in during} == {200, 429}
    assert {each.retry_after for each in during if each.status == 429} == {"1"}
    assert max(memory[-10:]) <= 1.05 * max(memory[10:20])
