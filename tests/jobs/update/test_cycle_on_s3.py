"""The whole cycle (embed, index, serve, search, re-embed, roll back) on a failing S3 server, compared with a folder."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.build_service import build_service
from api.http.app import create_app
from api.settings import ServeSettings
from embedder.fetch.fetcher import Fetcher
from index.collection import Collection
from index.storage import Storage
from index.storage.bucket_address import Bucket as BucketAddress
from index.storage.picture_reader import PictureReader
from index.versions import promotion
from index.versions.files import version_files
from tests.support.collections.s3_server import FAULTS, Bucket, FaultyProxy
from tests.support.nights.reembed_nights import DEMO, Nights, bmp, load_once

Matches = list[tuple[str, float]]

QUERIES = 3
PICTURES = 20

REQUEST_S = 1.0
"""A body may take twice as long, so one that trickles in over 2.5 s is late as well."""


@dataclass
class Source:
    """Pictures by name, in a folder or below `pictures/` of a bucket."""

    place: Path | Bucket

    @property
    def address(self) -> str:
        return str(self.place) if isinstance(self.place, Path) else f"s3://{self.place.name}/pictures"

    def write(self, name: str, seed: int) -> None:
        if isinstance(self.place, Path):
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).write_bytes(bmp(seed))
        else:
            self.place.put(f"pictures/{name}", bmp(seed))

    def remove(self, name: str) -> None:
        if isinstance(self.place, Path):
            (self.place / name).unlink()
        else:
            self.place.client.delete_object(Bucket=self.place.name, Key=f"pictures/{name}")

    def change(self) -> None:
        """Add, replace and remove three pictures each: there are as many as before."""
        for number in range(3):
            self.write(f"{number % 4}/new-{number}.bmp", 200 + number)
            self.write(f"{number % 4}/{number}.bmp", 300 + number)
            self.remove(f"{(number + 4) % 4}/{number + 4}.bmp")


@dataclass(frozen=True)
class Outcome:
    """The results of a cycle: rows by content, and matches at first, after the change and after the rollback."""

    rows: list[list[tuple[str, str]]]
    matches: list[list[Matches]]
    embedded: list[list[str]]


def cycle(source: Source, location: str) -> Outcome:
    """The cycle in this process without Ray: the jobs' own stages, and the app that serves."""
    for number in range(PICTURES):
        source.write(f"{number % 4}/{number}.bmp", number)
    nights = Nights(Path(), location)
    nights.night(DEMO, source=source.address)
    settings = ServeSettings(collection=location, embedding_cache_bytes=0)
    service = build_service(settings, load_model=lambda record: load_once(record.id))
    rows, matches = [_rows(nights)], []
    with TestClient(create_app(service)) as client:
        matches.append(_search(client))
        source.change()
        nights.night(source=source.address)
        rows.append(_rows(nights))
        service.live.refresh()
        matches.append(_search(client))
        assert nights.night(source=source.address).embedded == 0  # nothing has changed
        promotion.rollback(nights.collection)
        service.live.refresh()
        matches.append(_search(client))
    return Outcome(rows, matches, [sorted(ids) for ids in nights.embedded])


def _rows(nights: Nights) -> list[tuple[str, str]]:
    table = nights.collection.live_rows(["image_id", "content_hash", "error_reason"])
    assert table["error_reason"].null_count == table.num_rows
    return [(str(row["image_id"]), str(row["content_hash"])) for row in table.to_pylist()]


def _search(client: TestClient) -> list[Matches]:
    return [_matches(client.post("/search", files=_query(n), data={"k": "10"}).json()) for n in range(QUERIES)]


def _query(number: int) -> dict[str, Any]:
    return {"image": ("query.bmp", bmp(number), "image/bmp")}


def _matches(answer: dict[str, Any]) -> Matches:
    return [(match["image_id"], round(match["score"], 5)) for match in answer["matches"]]


@contextmanager
def watched(bucket: Bucket, location: str) -> Iterator[Counter[str]]:
    """Reads the collection all the while through a connection without faults; everything visible must be complete."""
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            try:
                wrong.extend(_incomplete_files(bucket, location, seen))
            except Exception as error:
                wrong.append(repr(error))
            if wrong:
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    assert wrong == []


def _incomplete_files(bucket: Bucket, location: str, seen: Counter[str]) -> list[str]:
    """Files that a manifest or CURRENT names and that are not complete. Manifests are read before files are listed."""
    if "collection/.lease" not in bucket.keys("collection/"):
        return []
    collection = Collection(Storage.open(location))
    live = collection.current()
    named: dict[str, int] = {}
    manifests = [collection.read_version(name) for name in collection.versions()]
    for manifest in manifests:
        named |= {path: record.size for path, record in version_files(manifest).items()}
    for run in collection.runs():
        named |= {file.path: file.size for file in [*run.files, *([run.deletes] if run.deletes else [])]}
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix="collection/")
    sizes = {entry["Key"].removeprefix("collection/"): entry["Size"] for page in pages for entry in page["Contents"]}
    seen.update({"reads": 1, f"live {live}": 1})
    wrong = [f"{path}: {sizes.get(path)} of {size} bytes" for path, size in named.items() if sizes.get(path) != size]
    if live and live not in [manifest.version for manifest in manifests]:
        wrong.append(f"CURRENT names {live}, which is not complete")
    return wrong


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of the cycle in a folder, without faults."""
    folder = tmp_path_factory.mktemp("cycle")
    return cycle(Source(folder / "pictures"), str(folder / "collection"))


def run_with_faults(bucket: Bucket, proxy: FaultyProxy, expected: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy.listening() as host, watched(bucket, bucket.address("collection")) as seen:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
        assert cycle(Source(bucket), f"s3://{bucket.name}/collection") == expected
    assert seen["reads"] > 5
    assert seen["live 000002"] > 0
    assert all(proxy.count[fault] > 0 for fault in proxy.faults), proxy.count
    assert bucket.unfinished_uploads() == []


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests, also those for pictures, time out after `REQUEST_S`."""
    defaults: Any = BucketAddress.__init__
    monkeypatch.setitem(defaults.__kwdefaults__, "request_s", REQUEST_S)
    fetcher = Fetcher(buckets=PictureReader(request_s=REQUEST_S))
    monkeypatch.setattr("jobs.embedding.stages._fetcher", cache(lambda: fetcher))
    monkeypatch.setattr("jobs.planning.plan.Fetcher", lambda *_, **__: fetcher)


@pytest.mark.slow
@pytest.mark.usefixtures("short_timeouts")
def test_the_cycle_on_a_store_that_fails(bucket: Bucket, in_folder: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = (*FAULTS, "silent")
    proxy = FaultyProxy(bucket.server, share=0.06, seed=1, faults=faults, page=7, pause_s=2.5 * REQUEST_S)
    run_with_faults(bucket, proxy, in_folder, monkeypatch)
    assert [len(rows) for rows in in_folder.rows] == [PICTURES, PICTURES]
    assert in_folder.matches[0] == in_folder.matches[2] != in_folder.matches[1]
    assert [len(ids) for ids in in_folder.embedded] == [PICTURES, 6, 0]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_the_cycle_on_a_store_that_fails_often(
    bucket: Bucket, in_folder: Outcome, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run_with_faults(bucket, FaultyProxy(bucket.server, share=0.25, seed=seed, page=3), in_folder, monkeypatch)
