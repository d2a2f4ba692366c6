"""The whole cycle (embed, index, serve, search, re-embed, roll back) on a failing S3 server, compared with a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.build_service import build_service
from api.http.app import create_app
from api.settings import ServeSettings
from index.versions import promotion
from tests.support.collections.s3_server import FAULTS, Bucket, FaultyServer
from tests.support.nights.failing_store import REQUEST_S, Source, watched
from tests.support.nights.reembed_nights import DEMO, Nights, load_once, query_form

Matches = list[tuple[str, float]]

QUERIES = 3
PICTURES = 20


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
    return [_matches(client.post("/search", files=query_form(n), data={"k": "10"}).json()) for n in range(QUERIES)]


def _matches(answer: dict[str, Any]) -> Matches:
    return [(match["image_id"], round(match["score"], 5)) for match in answer["matches"]]


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of the cycle in a folder, without faults."""
    folder = tmp_path_factory.mktemp("cycle")
    return cycle(Source(folder / "pictures"), str(folder / "collection"))


def run_with_faults(bucket: Bucket, server: FaultyServer, expected: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.listening() as host, watched(bucket, bucket.address("collection")) as seen:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
        assert cycle(Source(bucket), f"s3://{bucket.name}/collection") == expected
    assert seen["reads"] > 5
    assert seen["live 000002"] > 0
    assert all(server.count[fault] > 0 for fault in server.faults), server.count
    assert bucket.unfinished_uploads() == []


@pytest.mark.slow
@pytest.mark.usefixtures("short_timeouts")
def test_the_cycle_on_a_store_that_fails(bucket: Bucket, in_folder: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = (*FAULTS, "silent")
    server = FaultyServer(share=0.06, seed=1, faults=faults, page=7, pause_s=2.5 * REQUEST_S)
    run_with_faults(bucket, server, in_folder, monkeypatch)
    assert [len(rows) for rows in in_folder.rows] == [PICTURES, PICTURES]
    assert in_folder.matches[0] == in_folder.matches[2] != in_folder.matches[1]
    assert [len(ids) for ids in in_folder.embedded] == [PICTURES, 6, 0]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_the_cycle_on_a_store_that_fails_often(
    bucket: Bucket, in_folder: Outcome, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run_with_faults(bucket, FaultyServer(share=0.25, seed=seed, page=3), in_folder, monkeypatch)
