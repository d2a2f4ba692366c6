"""Ten collections under load: one damaged, one with another model, two that change, memory for four, limited keys."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.access.keys import KeyRing, KeyScope, add_key
from api.build_service import build_collections
from api.http.app import create_app
from api.local import running
from api.settings import Access, ServeSettings
from benchmarks.common.waiting import eventually
from index.collection import Collection
from index.versions.promotion import promote
from tests.support.collections.several import Loader, damage, make_several, own_colour, picture_of

NAMES = ["ants", "bats", "cows", "dogs", "elks", "fish", "gnus", "hens", "ibis", "jays"]
DAMAGED, OTHER, SWAPPING = "cows", "hens", ["ants", "bats"]
CLIENTS = 64


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A caller with a key for some collections."""

    key: str
    allowed: set[str]

    def expected(self, names: list[str]) -> int:
        if not set(names) <= self.allowed:
            return 403
        if DAMAGED in names:
            return 503
        return 200


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(4, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.long)],
    ids=["short", "minute"],
)
def test_many_clients_of_ten_collections_get_only_their_own_answers(tmp_path: Path, seconds: float) -> None:
    assert len({own_colour(name, number) for name in NAMES for number in range(3)}) == 30
    make_several(tmp_path / "all", NAMES, other=[OTHER])
    first = Collection.open(str(tmp_path / "all" / "ants")).read_version("000001").memory
    make_several(tmp_path / "all", SWAPPING, start=3, count=1)
    grown = Collection.open(str(tmp_path / "all" / "ants")).read_version("000002").memory - first
    damage(tmp_path / "all" / DAMAGED)
    holders = [holder(tmp_path, number) for number in range(CLIENTS)]
    loader = Loader()
    settings = ServeSettings(
        collection=str(tmp_path / "all"),
        max_memory=4 * first + 2 * grown,
        collection_idle_s=2,
        swap_interval_s=0.05,
        max_searches=2 * CLIENTS,
    )
    collections = build_collections(settings, load_model=loader.load)
    app = create_app(collections, limits=settings.limits(), access=Access(keys=KeyRing(tmp_path / "keys.json")))
    peak_memory = 0
    ended = threading.Event()
    with running(app) as url, ThreadPoolExecutor(CLIENTS + 1) as pool:
        asking = [pool.submit(ask_on, url, each, number, ended) for number, each in enumerate(holders)]
        swapping = pool.submit(swap_on, tmp_path / "all", ended)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not any(each.done() for each in asking):
            peak_memory = max(peak_memory, collections.memory)
            time.sleep(0.01)
        ended.set()
        counts: Counter[int] = sum((each.result() for each in asking), Counter())
        swaps = swapping.result()
        eventually(lambda: not collections.open_services, "all are closed", 20)
    assert counts[200] > 100
    assert min(counts[403], counts[503]) > 0
    assert swaps > 2
    # A larger version counts from the next check.
    assert first < peak_memory <= 4 * first + 4 * grown


def holder(folder: Path, number: int) -> Holder:
    """Every fourth key is for all collections, the others are for three each."""
    several = random.Random(number).sample(NAMES, 3) if number % 4 else []
    key = add_key(folder / "keys.json", f"client-{number}", KeyScope.search, several)
    return Holder(key=key, allowed=set(several or NAMES))


def ask_on(url: str, caller: Holder, number: int, ended: threading.Event) -> "Counter[int]":
    """Send requests until `ended`, check their answers and count their statuses."""
    counts: Counter[int] = Counter()
    dice = random.Random(number)
    with httpx.Client(base_url=url, headers={"X-API-Key": caller.key}, timeout=60) as client:
        while not ended.is_set():
            ask = dice.choice([search_one, search_one, picture, search_two])
            counts[ask(client, caller, dice)] += 1
    return counts


def search_one(client: httpx.Client, caller: Holder, dice: random.Random) -> int:
    name, number = dice.choice(NAMES), dice.randrange(3)
    files = {"image": ("query", picture_of(name, number))}
    answer = client.post(f"/collections/{name}/search", files=files, data={"k": "3"})
    assert answer.status_code == caller.expected([name]), answer.text
    if answer.status_code == 200:
        matches = answer.json()["matches"]
        assert {match["metadata"]["collection"] for match in matches} == {name}
        assert matches[0]["image_id"] == f"{number}.png"
        assert matches[0]["score"] == pytest.approx(1.0, abs=1e-5)
        assert answer.json()["index"]["ntotal"] == (4 if answer.json()["index"]["version"] == "000002" else 3)
    return answer.status_code


def picture(client: httpx.Client, caller: Holder, dice: random.Random) -> int:
    name, number = dice.choice(NAMES), dice.randrange(3)
    answer = client.get(f"/collections/{name}/picture?id={number}.png")
    assert answer.status_code == caller.expected([name]), answer.text
    assert answer.status_code != 200 or answer.content == picture_of(name, number)
    return answer.status_code


def search_two(client: httpx.Client, caller: Holder, dice: random.Random) -> int:
    names, number = dice.sample(sorted(caller.allowed), 2), dice.randrange(3)
    body: dict[str, Any] = {"collections": names, "text": f"words {number}", "words": "off", "k": 6}
    answer = client.post("/search/collections", json=body)
    assert answer.status_code == caller.expected(names), answer.text
    if answer.status_code == 200:
        matches = answer.json()["matches"]
        assert all(match["collection"] == match["metadata"]["collection"] for match in matches)
        assert {match["collection"] for match in matches} == set(names)
        scores = [match["score"] for match in matches]
        places = [match["collection"] for match in matches]
        if OTHER in names:  # by rank
            assert all(set(places[rank : rank + 2]) == set(names) for rank in range(0, 6, 2))
        else:
            assert scores == sorted(scores, reverse=True)
    return answer.status_code


def swap_on(folder: Path, ended: threading.Event) -> int:
    """Promote versions in turn until `ended`; returns how often."""
    swaps = 0
    while not ended.wait(0.3):
        for name in SWAPPING:
            promote(Collection.open(str(folder / name)), "000002" if swaps % 2 else "000001")
        swaps += 1
    return swaps
